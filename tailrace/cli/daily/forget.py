"""``tailrace forget``: erase the personal values of somebody, everywhere, for good."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tailrace.cli.invocation import Invocation, invocation_of
from tailrace.terminal import count

if TYPE_CHECKING:
    from tailrace.eventstore.maintenance.redaction.receipts import Receipt
    from tailrace.eventstore.settings import PostgresSourceSettings
    from tailrace.eventstore.settings.postgres_source import PersonalTable
    from tailrace.eventstore.store import Store
    from tailrace.eventstore.streams.forget import Forgotten


def forget(
    context: typer.Context,
    subject: Annotated[
        str | None,
        typer.Argument(help="As Personal names it: ID, or KIND:ID where it has a kind.", show_default=False),
    ] = None,
    modules: Annotated[
        list[str] | None,
        typer.Option(
            "--module", "-m", metavar="NAME", help="Modules that declare inline projections; several times."
        ),
    ] = None,
    sources: Annotated[
        list[str] | None, typer.Option("--source", metavar="NAME", help="Only these. Default: all.")
    ] = None,
    key: Annotated[
        str | None, typer.Option("--key", metavar="ID", help="Forget a key: one that is lost.")
    ] = None,
    again: Annotated[
        bool,
        typer.Option("--again", help="Forget again all that was forgotten: after a backup was restored."),
    ] = False,
    check: Annotated[
        bool, typer.Option("--verify", help="Look for what is left of all that was forgotten.")
    ] = False,
) -> int:
    """Forget somebody: their personal values read as Erased from then on, in events, snapshots and projections.

    The keys are deleted in the source, and what services made of the values beside events is removed: snapshots, tags,
    rows of the inline projections that --module declares. Projections are computed again by the next `tailrace run`.
    Prints a receipt. What consumers and sinks copied is theirs to remove. With --verify: exits with 4 when something is
    left.
    """
    from tailrace.cli.events import import_modules
    from tailrace.eventstore import failpoints
    from tailrace.eventstore.errors import UsageError

    invocation = invocation_of(context)
    if sum([subject is not None, key is not None, again, check]) != 1:
        raise UsageError(
            "name whom to forget", hint="tailrace forget SUBJECT, or one of --key ID, --again, --verify"
        )
    import_modules(invocation, modules or [])
    chosen = invocation.postgres_sources(sources or [], "forgetting")
    if check:
        return _verify(invocation, chosen)
    if not again:
        invocation.confirm("forget them for good")
    done = [
        each
        for name, settings in chosen
        if (each := _in_source(invocation, name, settings, subject, key, again=again)) is not None
    ]
    tables = _tables_about(chosen, subject) if subject is not None else []
    failpoints.hit("forgotten_in_source")
    with invocation.store() as store, invocation.output.progress("forgetting") as progress:
        told = _tell_readers(store, done, progress.say) + _redact_tables(store, tables, progress.say)
    if not done and not told and not again:
        raise UsageError(
            f"nothing is about this {'subject' if key is None else 'key'}: "
            "it was forgotten already, or there never was a value about it",
            hint="name it as Personal does: KIND:ID where the annotation has a kind, else the id alone",
        )
    _report(invocation, done, told)
    for table in tables:
        _warn_of_rows(invocation, table)
    return 0


@dataclass(frozen=True, slots=True)
class _Done:
    source: str
    receipt: Forgotten
    keys: Sequence[str]  # also those that were deleted before


def _in_source(
    invocation: Invocation,
    name: str,
    settings: PostgresSourceSettings,
    subject: str | None,
    key: str | None,
    *,
    again: bool,
) -> _Done | None:
    """Delete the keys there; None where there are none."""
    from tailrace.cdc.postgres.connect import Address, connect
    from tailrace.eventstore.maintenance.redaction.forgotten import forgotten_keys
    from tailrace.eventstore.model.event_schema import schema_in_use
    from tailrace.eventstore.streams.forget import NobodyKnown, forget, forget_keys, keys_forgotten

    with (
        _keys_in_place(invocation, name),
        schema_in_use(settings.events_schema),
        connect(Address.of(settings)) as connection,
    ):
        if subject is not None:
            try:
                receipt = forget(connection, subject)
                return _Done(name, receipt, receipt.keys)
            except NobodyKnown:
                return None
        ids = {key} if key is not None else set(keys_forgotten(connection))
        if again:
            with invocation.store() as store:
                ids |= forgotten_keys(store, name)
        return _Done(name, forget_keys(connection, sorted(ids)), sorted(ids)) if ids else None


@dataclass(frozen=True, slots=True)
class _Table:
    """A table with rows about the subject: what the column says of them."""

    source: str
    settings: PostgresSourceSettings
    name: str
    personal: PersonalTable
    id: str


def _tables_about(sources: Sequence[tuple[str, PostgresSourceSettings]], subject: str) -> list[_Table]:
    return [
        _Table(source, settings, name, personal, id)
        for source, settings in sources
        for name, personal in settings.personal.items()
        if (id := personal.id_of(subject))
    ]


def _tell_readers(store: Store, done: Sequence[_Done], report: Callable[[str], None]) -> list[Receipt]:
    from tailrace.eventstore.maintenance.redaction.forgotten import note_forgotten

    return [
        receipt for each in done for receipt in note_forgotten(store, each.source, each.keys, report=report)
    ]


def _redact_tables(store: Store, tables: Sequence[_Table], report: Callable[[str], None]) -> list[Receipt]:
    """Erase their columns from the log."""
    from tailrace.eventstore.maintenance.redaction.redact import About, RedactionRequest, redact
    from tailrace.eventstore.model.topic import TopicId

    receipts = [
        redact(
            store,
            RedactionRequest(
                TopicId.parse(f"{each.source}.{each.name}"),
                About(each.personal.subject, each.id),
                each.personal.columns,
            ),
            report=report,
        )
        for each in tables
    ]
    return [each for each in receipts if each.rows]


def _warn_of_rows(invocation: Invocation, table: _Table) -> None:
    """What the source still has comes into the log again with its next change."""
    from psycopg import sql

    from tailrace.cdc.postgres.connect import Address, connect

    query = sql.SQL("SELECT count(*) FROM {} WHERE CAST({} AS text) = %s")
    names = sql.Identifier(*table.name.split(".", 1)), sql.Identifier(table.personal.subject)
    with connect(Address.of(table.settings)) as connection:
        found = connection.execute(query.format(*names), [table.id]).fetchone()
    rows = int(str(found[0])) if found else 0
    if rows:
        invocation.output.note(
            f"{table.source} still has {count(rows, 'row')} of {table.name} about them: "
            "delete or change these there, then forget again"
        )


@contextmanager
def _keys_in_place(invocation: Invocation, source: str) -> Iterator[None]:
    """Use the file that has a source's keys, if they are in one."""
    from tailrace.eventstore.streams.database.key_places import KeyPlace
    from tailrace.eventstore.streams.personal.keys import chosen_keys, use_keys

    place, before = KeyPlace(invocation.settings.store.keys.get(source, "")), chosen_keys()
    use_keys(place.file or before)
    try:
        yield
    finally:
        use_keys(before)


def _verify(invocation: Invocation, sources: Sequence[tuple[str, PostgresSourceSettings]]) -> int:
    from tailrace.cdc.postgres.connect import Address, connect
    from tailrace.eventstore.errors import DifferenceFound
    from tailrace.eventstore.maintenance.redaction.forgotten import Left, forgotten_keys, left_in_log
    from tailrace.eventstore.model.event_schema import schema_in_use
    from tailrace.eventstore.streams.forget import keys_forgotten, left_in_source

    left: list[Left] = []
    keys = 0
    with invocation.store() as store:
        for name, settings in sources:
            with schema_in_use(settings.events_schema), connect(Address.of(settings)) as connection:
                ids = forgotten_keys(store, name) | set(keys_forgotten(connection))
                keys += len(ids)
                left += [Left(f"source {name}", *each) for each in left_in_source(connection, ids)]
            left += left_in_log(store, name, ids)
    output = invocation.output
    for each in left:
        if output.json:
            output.document(asdict(each))
        else:
            output.line(f"{each.place}: {each.what}")
            output.line(f"    → {each.remedy}")
    if not left:
        output.line(f"nothing is left of {count(keys, 'key')} forgotten so far")
        if output.json:
            output.document({"keys": keys, "left": []})
    return DifferenceFound.exit_code if left else 0


def _report(invocation: Invocation, done: Sequence[_Done], told: Sequence[Receipt]) -> None:
    output = invocation.output
    if output.json:
        output.document(
            {"sources": [_document(each) for each in done], "topics": [asdict(each) for each in told]}
        )
        return
    for each in done:
        receipt = each.receipt
        output.line(
            f"{each.source}: {count(len(receipt.keys), 'key')} deleted; "
            f"{count(receipt.events, 'event')} of {count(len(receipt.streams), 'stream')} had values"
        )
        output.line(
            f"    removed: {count(receipt.snapshots, 'snapshot')}, {count(receipt.tags, 'tag')}; "
            f"rows written again in: {', '.join(receipt.tables) or 'no table'}"
        )
    for topic in told:
        since = f" since epoch {topic.epoch:,}" if topic.epoch else ""
        output.line(f"{topic.topic}: {count(topic.rows, 'row')} read as Erased{since}")
    for remnant in dict.fromkeys(remnant for topic in told for remnant in topic.remnants):
        output.line(f"    {remnant.place}: {remnant.detail}")
        output.line(f"        → {remnant.remedy}")
    output.note("copies of the values that consumers and sinks made are theirs to remove")


def _document(each: _Done) -> dict[str, Any]:
    receipt = asdict(each.receipt)
    return {"source": each.source, **receipt, "streams": [str(stream) for stream in each.receipt.streams]}
