"""``tailrace adopt``: go over from Debezium's topics to native capture of the same Postgres."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from tailrace.cli.invocation import Invocation, invocation_of
from tailrace.eventstore.errors import UsageError, manual_page
from tailrace.eventstore.model.position import format_lsn
from tailrace.eventstore.model.topic import TopicId
from tailrace.terminal import count

if TYPE_CHECKING:
    from tailrace.cdc.adoption.adopt import AdoptResult
    from tailrace.cdc.adoption.inspection import Inspection, Request
    from tailrace.cdc.postgres.connect import Address
    from tailrace.eventstore.settings import SourceSettings
    from tailrace.eventstore.store import Store

_PAGE = manual_page("capture/adopt.md")


def adopt(
    context: typer.Context,
    source: Annotated[str | None, typer.Argument(help="Default: the only one.", show_default=False)] = None,
    slot: Annotated[str, typer.Option(metavar="NAME", help="The connector's slot.name.")] = "debezium",
    publication: Annotated[
        str, typer.Option(metavar="NAME", help="The connector's publication.name.")
    ] = "dbz_publication",
    dsn: Annotated[
        str | None,
        typer.Option(
            metavar="DSN",
            help="The Postgres that the connector reads. Default: dsn or catalog_dsn of the source.",
            show_default=False,
        ),
    ] = None,
    read_again: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TOPIC",
            help="A topic whose records a transform changed, masked or left out: its table is read again. May be given"
            " several times.",
            show_default=False,
        ),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print every check; change nothing.")] = False,
    confirm: Annotated[
        bool, typer.Option("--confirm", help="Make it final: from then on the slot is native capture's.")
    ] = False,
    undo: Annotated[
        bool, typer.Option("--undo", help="Before it is confirmed: read Kafka on, as if it had not been.")
    ] = False,
) -> int:
    """Go over from Debezium's topics to native capture of the same Postgres, without a new snapshot.

    The connector must be stopped. Kafka is read to its end; of what the slot sends again, what Kafka has is dropped.
    Until it is confirmed, the slot stays where Debezium left it, and keeps its WAL.
    """
    invocation = invocation_of(context)
    name, settings = invocation.source(source)
    address = _address(name, settings, dsn)
    if confirm or undo:
        if (confirm and undo) or dry_run or read_again:
            raise UsageError("--confirm and --undo stand alone", hint="the others are for taking over")
        with invocation.store() as store:
            (_confirm if confirm else _undo)(invocation, store, name, address)
        return 0
    if settings.kind != "kafka":
        raise UsageError(
            f"source {name!r} is of the kind {settings.kind}, and those of the kind kafka are taken over",
            hint=f"after `tailrace adopt` there are --confirm and --undo; see {_PAGE}",
        )
    with invocation.store() as store:
        from tailrace.cdc.adoption.adopt import adopt as take_over
        from tailrace.cdc.adoption.inspection import Request, inspect

        topics = [TopicId.parse(each) for each in read_again or ()]
        request = Request(name, settings, address, slot, publication, topics)
        if dry_run:
            return _print_checks(invocation, inspect(store, request))
        invocation.confirm(f"take source {name} over from its connector")
        _print_result(invocation, request, take_over(store, request, say=invocation.output.note), dsn)
    return 0


def _address(name: str, settings: SourceSettings, dsn: str | None) -> Address:
    from tailrace.cdc.postgres.connect import Address

    if dsn is not None:
        return Address.parse(dsn)
    if settings.kind == "postgres":
        return Address.of(settings)
    if settings.catalog_dsn is None:
        raise UsageError(
            f"nothing says which Postgres the connector of {name} reads",
            hint="give --dsn, or catalog_dsn in its configuration",
        )
    return Address.parse(settings.catalog_dsn.get_secret_value())


def _confirm(invocation: Invocation, store: Store, name: str, address: Address) -> None:
    from tailrace.cdc.adoption.ending import confirm

    invocation.confirm(f"give slot of {name} to native capture for good")
    done = confirm(store, name, address)
    if invocation.output.json:
        invocation.output.document({"source": name, "confirmed": True, "slot": done.slot})
        return
    invocation.output.line(f"{name}: slot {done.slot} is native capture's now", style="green")
    invocation.output.note("delete the connector, so that nobody starts it again")


def _undo(invocation: Invocation, store: Store, name: str, address: Address) -> None:
    from tailrace.cdc.adoption.undo import undo

    invocation.confirm(f"let {name} read Kafka again")
    done = undo(store, name, address)
    if invocation.output.json:
        invocation.output.document({"source": name, "undone": True, "slot": done.slot})
        return
    invocation.output.line(f"{name}: reads Kafka on; slot {done.slot} is the connector's", style="green")
    invocation.output.note(
        f"put [sources.{name}] of the kind kafka back into the configuration, then start the connector"
    )


def _print_checks(invocation: Invocation, seen: Inspection) -> int:
    output = invocation.output
    blocked = bool(seen.blocking)
    if output.json:
        output.document(
            {
                "source": seen.request.source,
                "dry_run": True,
                "possible": not blocked,
                "checked": list(seen.checked),
                "findings": seen.findings,
                "carried": [topic.text for topic in seen.carried],
                "read_again": {topic.text: reason for topic, reason in seen.again.items()},
                "records_behind": seen.behind,
            }
        )
        return 7 if blocked else 0
    output.line(f"source {seen.request.source}", style="bold")
    for text in seen.checked:
        output.line(f"  {text}")
    for topic, reason in seen.again.items():
        output.line(f"  {topic.text}: its table is read again: {reason}", style="yellow")
    if seen.behind:
        output.line(f"  Kafka: up to {count(seen.behind, 'record')} are read first")
    for finding in seen.findings:
        output.line(f"  {finding.level}: {finding.subject}: {finding.what}", style="yellow")
        if finding.hint:
            output.line(f"    → {finding.hint}")
    output.line(
        "  nothing was changed; " + ("it cannot be taken over so" if blocked else "it can be taken over")
    )
    return 7 if blocked else 0


def _print_result(invocation: Invocation, request: Request, done: AdoptResult, dsn: str | None) -> None:
    output = invocation.output
    if output.json:
        output.document(
            {
                "source": done.source, "epoch": done.epoch, "slot_lsn": format_lsn(done.lsn),
                "position": format_lsn(done.position), "transactions": done.transactions, "dropped": done.dropped,
                "added": done.added, "carried": [topic.text for topic in done.carried],
                "read_again": {topic.text: reason for topic, reason in done.again.items()},
            }
        )  # fmt: skip
        return
    output.line(f"{done.source}: taken over in epoch {done.epoch:,}", style="green")
    output.line(
        f"  behind {format_lsn(done.lsn)} the slot has {count(done.transactions, 'transaction')} that Kafka has whole"
        f" or in part: {count(done.dropped, 'row')} were in the log, {done.added:,} were not and are now"
    )
    output.line(f"  native capture goes on at {format_lsn(done.position)}")
    for topic in done.carried:
        output.line(f"  {topic.text} goes on")
    for topic, reason in done.again.items():
        output.line(f"  {topic.text}: its table is read again: {reason}", style="yellow")
    where = "${DSN}" if dsn is not None or request.settings.catalog_dsn is None else "…"
    tables = ", ".join(f'"{".".join(topic.parts[1:])}"' for topic in (*done.carried, *done.again))
    output.line("next:")
    output.line(f"  1. write in the configuration, in place of [sources.{done.source}]:")
    for line in (f"[sources.{done.source}]", 'kind = "postgres"', f'dsn = "{where}"', f"tables = [{tables}]"):
        output.line(f"       {line}")
    output.line("  2. tailrace capture; tailrace verify --source finds what Debezium lost")
    output.line(f"  3. tailrace adopt {done.source} --confirm; until then the slot keeps its WAL")
