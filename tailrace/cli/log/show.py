"""``tailrace log``: read the log itself."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from tailrace.cli.invocation import invocation_of
from tailrace.cli.log.archives import archives
from tailrace.cli.log.key import key_of, key_text
from tailrace.cli.log.redact import redact, redactions
from tailrace.cli.log.tail import tail
from tailrace.cli.log.verify import verify
from tailrace.eventstore.errors import UsageError
from tailrace.terminal import when

if TYPE_CHECKING:
    from tailrace.cli.log.beside import Beside
    from tailrace.cli.log.row_format import Document
    from tailrace.eventstore.model.info import TopicInfo
    from tailrace.eventstore.model.schema import TopicSchema
    from tailrace.eventstore.store import Store

log_commands = typer.Typer(help="Read the log itself, check it, and erase from it.")
log_commands.command()(tail)
log_commands.command()(verify)
log_commands.command()(redact)
log_commands.command()(redactions)
log_commands.command()(archives)

TopicArgument = Annotated[
    str, typer.Argument(help="SOURCE.SCHEMA.TABLE or SOURCE.CATEGORY.", show_default=False)
]


@log_commands.command()
def show(
    context: typer.Context,
    topic: TopicArgument,
    key: Annotated[
        str,
        typer.Argument(
            help="The key's value, or the stream's id; of several columns: A,B.", show_default=False
        ),
    ],
    related: Annotated[
        bool, typer.Option(help="All that the same transactions did, in every table and stream.")
    ] = False,
) -> None:
    """Show the history of a row, and why: the domain events of the same transactions, those of the row's own stream
    first. Of a stream, its events and the rows that changed with them."""

    from tailrace.cli.log.beside import beside

    invocation = invocation_of(context)
    with invocation.store() as store:
        info = store.topic(topic)
        history = row_history(store, info, key)
        changes = related or info.id.is_events
        also = beside(store, info, history, key, changes=changes)
        removed = store.removed_until(info.id)
        archived = sorted({each.archive for each in store.archived_files(info.id)})
    if removed is not None:
        kept = f"; they are archived in {', '.join(archived)}" if archived else ""
        invocation.output.note(f"retention removed rows of {info.id.text} up to {when(removed)}{kept}")
    if not history:
        raise UsageError(
            f"{info.id.text} has no row with key {key} in its history",
            hint=f"tailrace log tail {info.id.text} shows rows; a time is written as Postgres prints it",
        )
    if invocation.output.json:
        for document in history:
            found = also.get(document["lsn"])
            shown = {**document, "events": found.events if found else []}
            invocation.output.document(
                {**shown, "changes": found.changes if found else []} if changes else shown
            )
        return
    heading = (
        "changed with it" if info.id.is_events else "all of the transaction" if related else "event behind it"
    )
    invocation.output.table(
        ("epoch", "committed", "txn", "change", "what changed", heading),
        list(_history_rows(history, also, related=related)),
    )


def row_history(store: Store, info: TopicInfo, key: str) -> list[Document]:
    """Every change of one key, oldest first, truncates too. Raises UsageError when the key does not fit."""
    from tailrace.eventstore.model.keys import hash_texts

    schema = next(schema for schema in store.schemas(info.id) if schema.version == info.version)
    key_hash = hash_texts(list(_key_parts(info, schema, key)))
    found = list(_rows_of_key(store, info, key_hash))
    return found if any(row["op"] != "t" for row in found) else []


def _key_parts(info: TopicInfo, schema: TopicSchema, key: str) -> tuple[str, ...]:
    columns = [column.name for column in schema.key]
    if not columns:
        raise UsageError(
            f"{info.id.text} has no key: its rows have no identity", hint="tailrace log tail shows them"
        )
    parts = key_of(key, len(columns))
    if parts is None:
        raise UsageError(
            f"the key of {info.id.text} is ({', '.join(columns)}), and {key!r} is not {len(columns)} values",
            hint=f"write them with commas between: tailrace log show {info.id.text} {key_text(columns).upper()}",
        )
    return parts


def _rows_of_key(store: Store, info: TopicInfo, key_hash: int) -> Iterator[Document]:
    import pyarrow as pa
    import pyarrow.compute as pc

    from tailrace.cli.log.row_format import documents

    for batch in store.read(info.id, partitions=info.partitioning.partitions_of_key(key_hash)):
        wanted = pc.or_(pc.equal(batch["_hash"], pa.scalar(key_hash)), pc.equal(batch["_op"], "t"))
        yield from documents(info.id, batch.filter(wanted))


def _history_rows(
    history: Sequence[Document], also: Mapping[str, Beside], *, related: bool
) -> Iterator[tuple[object, ...]]:
    from tailrace.cli.log.beside import event_line, is_event
    from tailrace.cli.log.row_format import ROW_OPS, difference

    current: Document | None = None
    for row in history:
        new = row["after"]
        if new is not None and current is not None:
            new = {**current, **new}  # cells that were not sent are as they were
        found = also.get(row["lsn"])
        change = "all rows went" if row["op"] == "t" else difference(current, new)
        if is_event(row):
            change = event_line(row)
        yield (
            row["epoch"],
            when(row["commit_ts"]),
            row["txn"] or "first load",
            ROW_OPS[row["op"]],
            change,
            found.lines(all_of_it=related) if found else [],
        )
        current = new
