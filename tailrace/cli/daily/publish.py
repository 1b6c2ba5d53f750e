"""``tailrace publish``: send topics and results to other systems, until stopped, or up to the log's end."""

from __future__ import annotations

import threading
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from tailrace.cli.daily.capture import MetricsAddressOption, metrics_port_option
from tailrace.cli.errors import INTERRUPTED
from tailrace.cli.invocation import Invocation, invocation_of, stop_on_signals, unknown_name
from tailrace.eventstore.errors import UsageError
from tailrace.terminal import count

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tailrace.eventstore.publishing.feed import Feed
    from tailrace.eventstore.publishing.publisher import OpenSession, PublishedCounts, Publisher
    from tailrace.eventstore.settings import PublicationSettings, Settings
    from tailrace.eventstore.store import Store

ONCE_PATIENCE_SECONDS = 60.0  # with --once, for a destination that takes nothing


def publish(
    context: typer.Context,
    names: Annotated[
        list[str] | None, typer.Argument(help="Publications. Default: all.", show_default=False)
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="Publish up to the log's head, then stop.")] = False,
    metrics_port: Annotated[int | None, metrics_port_option("metrics.publications_port")] = None,
    metrics_address: MetricsAddressOption = None,
    forget: Annotated[
        str | None,
        typer.Option(
            "--forget",
            metavar="NAME",
            help="Publish nothing: retention no longer keeps rows for this publication, until it publishes again.",
        ),
    ] = None,
) -> int:
    """Publish topics of the log and results of projections to other systems, each row once, until stopped.

    SIGTERM or Ctrl-C stops it. To Kafka exactly once. Other destinations may get a record again after a crash,
    with the same id.
    """
    from tailrace.metrics.capture import metrics_server
    from tailrace.metrics.publications import PublicationCollector

    invocation = invocation_of(context)
    if forget is not None:
        _forget(invocation, forget, names or (), once=once)
        return 0
    chosen = _chosen(invocation, names or ())
    stop = threading.Event()
    metrics = invocation.settings.metrics
    if metrics_port is None and not once:
        metrics_port = metrics.publications_port
    invocation.output.load()
    with invocation.store() as store, stop_on_signals(stop) as interrupted:
        publishers = {name: _publisher(invocation, store, name, stop, once=once) for name in chosen}
        collector = PublicationCollector(
            store, invocation.settings.publish, {name: each.progress for name, each in publishers.items()}
        )
        address = metrics_address or metrics.address
        with metrics_server(collector, metrics_port, address, invocation.output.note):
            _run([*publishers.values()], stop, once=once)
    return INTERRUPTED if interrupted.is_set() else 0


def _forget(invocation: Invocation, name: str, others: Sequence[str], *, once: bool) -> None:
    """Also of one that is no longer in the configuration."""
    from tailrace.eventstore.metadata.publications import forget, publication_needs

    if others or once:
        raise UsageError("--forget publishes nothing", hint=f"tailrace publish --forget {name}")
    with invocation.store() as store:
        known = [each.name for each in publication_needs(store.groups_database)]
        if name not in known:
            otherwise = "retention keeps rows for none" if not known else f"there are {', '.join(known)}"
            raise unknown_name("publication", name, known, otherwise)
        invocation.confirm(f"let retention remove rows that {name} did not publish")
        forget(store.groups_database, name)
    invocation.output.line(f"retention no longer keeps rows for {name}")


def _chosen(invocation: Invocation, names: Sequence[str]) -> list[str]:
    known = invocation.settings.publish
    if not known:
        raise UsageError(
            f"{invocation.configuration.path} names no publication", hint="add a table [publish.NAME]"
        )
    for name in names:
        if name not in known:
            otherwise = f"it must be a table [publish.{name}] in {invocation.configuration.path}"
            raise unknown_name("publication", name, known, otherwise)
    return list(dict.fromkeys(names or sorted(known)))


def _publisher(
    invocation: Invocation, store: Store, name: str, stop: threading.Event, *, once: bool
) -> Publisher:
    from tailrace.eventstore.publishing.publisher import Publisher

    def note(text: str) -> None:
        invocation.output.note(f"{name}: {text}")

    open_session = _sessions(invocation.settings, store, name, stop, note, once=once)
    report = partial(_report, invocation, name)
    wanted = invocation.settings.publish[name]
    feed = _result_feed(store, name, wanted) if wanted.projection else None
    return Publisher(store, name, wanted, open_session, stop=stop, feed=feed, report=report, note=note)


def _result_feed(store: Store, name: str, wanted: PublicationSettings) -> Feed:
    from tailrace.projections.publishing.result_feed import ResultFeed

    return ResultFeed(store, name, wanted)


def _sessions(
    settings: Settings,
    store: Store,
    name: str,
    stop: threading.Event,
    note: Callable[[str], None],
    *,
    once: bool,
) -> OpenSession:
    """Opens sessions of the destination's kind."""
    wanted = settings.publish[name]
    destination = settings.destinations[wanted.destination]
    if destination.kind == "kafka":
        from tailrace.eventstore.compiled.compiler import load_compiler
        from tailrace.eventstore.publishing.kafka.session import KafkaSession

        load_compiler()
        return partial(KafkaSession, destination, wanted, settings.store.name, name)
    from tailrace.eventstore.publishing.bridges.open import open_bridge
    from tailrace.eventstore.publishing.bridges.session import BridgeSession

    patience = ONCE_PATIENCE_SECONDS if once else None
    opened = partial(open_bridge, destination)
    return partial(
        BridgeSession, store, name, wanted, opened, stop=stop, note=note, patience_seconds=patience
    )


def _report(invocation: Invocation, name: str, found: PublishedCounts) -> None:
    if invocation.output.json:
        invocation.output.json_line({"publication": name, "epoch": found.epoch, "records": found.records})
    else:
        invocation.output.note(f"{name}: {count(found.records, 'record')}, up to epoch {found.epoch:,}")


def _run(publishers: Sequence[Publisher], stop: threading.Event, *, once: bool) -> None:
    """Each on a thread of its own; the first that fails stops the others. Raises what it raised."""
    with ThreadPoolExecutor(len(publishers), thread_name_prefix="publish") as pool:
        futures: list[Future[object]] = []
        for each in publishers:
            future: Future[object] = pool.submit(each.run_once if once else each.run)
            future.add_done_callback(lambda done: stop.set() if done.exception() else None)
            futures.append(future)
    for future in futures:
        future.result()
