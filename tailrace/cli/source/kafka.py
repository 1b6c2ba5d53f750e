"""``tailrace source parked`` and ``reread``: records of Kafka that could not be read, and topics that begin again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from tailrace.cli.invocation import Invocation, invocation_of
from tailrace.cli.source.request import TableWork, request
from tailrace.eventstore.errors import UsageError
from tailrace.terminal import size, when

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tailrace.cli.progress import Reporter
    from tailrace.eventstore.catalog.requests import Request
    from tailrace.eventstore.model.kafka import ParkedRecord
    from tailrace.eventstore.model.topic import TopicId
    from tailrace.eventstore.store import Store

_SHOWN = 50


def parked(
    context: typer.Context,
    source: Annotated[str | None, typer.Argument(help="Default: the only one.", show_default=False)] = None,
    retry: Annotated[bool, typer.Option("--retry", help="Read them again, once the cause is fixed.")] = False,
    discard: Annotated[bool, typer.Option("--discard", help="Give them up.")] = False,
    wait: Annotated[bool, typer.Option(help="Wait until the capture has done it.")] = True,
) -> int:
    """Show records of Kafka that could not be read, read them again, or give them up.

    The running capture does it, or the next one that is started. A record that later records of its key are in the
    log behind of stays parked. With --show-values what it holds is shown.
    """
    invocation = invocation_of(context)
    name = _kafka_source(invocation, source)
    if retry and discard:
        raise UsageError("--retry reads records again, --discard gives them up", hint="name one of the two")
    with invocation.store() as store:
        from tailrace.eventstore.metadata.kafka_progress import parked as parked_in

        records = parked_in(store.catalog, name)
        if not records:
            invocation.output.line("nothing is parked", style="green")
        elif retry or discard:
            if discard:
                invocation.confirm(f"give up {len(records):,} records of {name}")
            topics = _topics_of(invocation, name, records)
            request(invocation, store, RETRY, topics, wait=wait, **({"discard": True} if discard else {}))
        else:
            _print(invocation, records)
    return 0


def _print(invocation: Invocation, records: Sequence[ParkedRecord]) -> None:
    from tailrace.eventstore.disclosure import values_are_shown
    from tailrace.eventstore.model.time import moment_of

    rows = []
    for each in records if invocation.output.json else records[:_SHOWN]:
        held = len(each.key or b"") + len(each.value or b"")
        shown = repr(each.value) if values_are_shown() else size(held)
        if not each.is_kept:
            shown = "its place alone: columns are protected, or it is too large"
        rows.append((each.place, moment_of(each.parked_at), each.reason, shown))
    if invocation.output.json:
        for place, moment, reason, shown in rows:
            invocation.output.document(
                {"topic": place.topic, "partition": place.partition, "offset": place.offset, "parked_at": moment}
                | {"reason": reason, "holds": shown}
            )  # fmt: skip
        return
    table = [
        (p.topic, p.partition, p.offset, when(moment), reason, shown) for p, moment, reason, shown in rows
    ]
    invocation.output.table(("topic of Kafka", "partition", "offset", "parked", "because", "holds"), table)
    if len(records) > _SHOWN:
        invocation.output.line(f"and {len(records) - _SHOWN:,} more")


def reread(
    context: typer.Context,
    topics: Annotated[list[str], typer.Argument(help="Topics of the log.", show_default=False)],
    wait: Annotated[bool, typer.Option(help="Wait until the capture has taken it up.")] = True,
) -> int:
    """Read topics again from the first record of their Kafka topics, after those were made anew or lost records.

    The running capture does it, or the next one that is started. Their earlier history stays. Their state is not known
    until a snapshot by Debezium was read there.
    """
    invocation = invocation_of(context)
    with invocation.store() as store:
        found = [store.topic(name).id for name in topics]
        for topic in found:
            _kafka_source(invocation, topic.source)
        invocation.confirm("read topics again from the beginning")
        request(invocation, store, REREAD, found, wait=wait)
    return 0


def _kafka_source(invocation: Invocation, name: str | None) -> str:
    name, settings = invocation.source(name)
    if settings.kind != "kafka":
        raise UsageError(
            f"source {name!r} is of the kind {settings.kind}, and this is for those of the kind kafka",
            hint="tailrace source retry and tailrace source snapshot are for tables of Postgres",
        )
    return name


def _topics_of(invocation: Invocation, source: str, records: Sequence[ParkedRecord]) -> list[TopicId]:
    from tailrace.cdc.kafka.topics.routes import Routes

    _, settings = invocation.source(source)
    assert settings.kind == "kafka"
    found = (Routes(source, settings).topic(record.place.topic) for record in records)
    return list(dict.fromkeys(topic for topic in found if topic is not None))


def _report(store: Store, reporter: Reporter, each: Request) -> None:
    reporter(f"{each.topic.text} waits for the capture", 0, None, "", topic=each.topic.text)


RETRY = TableWork("parked", "works on", "worked on", _report, lambda _: "tailrace source parked shows them")
REREAD = TableWork(
    "reread", "reads", "set back", _report, lambda _: "tailrace source list says what the source captures"
)
