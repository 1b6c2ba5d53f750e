"""``tailrace log``: read the log itself."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

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
    key: Annotated[str, typer.Argument(help="The key's value; of several columns: A,B.", show_default=False)],
) -> None:
    """Show one row's history, with the domain events of the same transactions beside it."""

    invocation = invocation_of(context)
    with invocation.store() as store:
        info = store.topic(topic)
        history = row_history(store, info, key)
        events = events_of(store, info.id.source, history)
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
            invocation.output.document({**document, "events": events.get(document["lsn"], [])})
        return
    invocation.output.table(
        ("epoch", "committed", "txn", "change", "what changed", "event behind it"),
        list(_history_rows(history, events)),
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


def events_of(store: Store, source: str, history: Sequence[Document]) -> dict[str, list[Document]]:
    """Domain events and logical messages of the transactions in ``history``, by commit LSN."""
    from tailrace.cli.log.row_format import sort_by_commit
    from tailrace.eventstore.model.position import Cut
    from tailrace.eventstore.model.topic import TopicKind
    from tailrace.eventstore.subscriptions.filter import Filter
    from tailrace.eventstore.subscriptions.tail import read_between

    epochs = sorted({row["epoch"] for row in history if row["txn"]})
    lsns = {row["lsn"] for row in history if row["txn"]}
    topics = [info for info in store.topics(source) if info.kind is not TopicKind.TABLE]
    found: dict[str, list[Document]] = {}
    for epoch in epochs:
        for row in sort_by_commit(read_between(store, topics, epoch - 1, Cut(epoch), Filter())):
            if row["lsn"] in lsns:
                found.setdefault(row["lsn"], []).append(row)
    return found


def _history_rows(
    history: Sequence[Document], events: Mapping[str, Sequence[Document]]
) -> Iterator[tuple[object, ...]]:
    from tailrace.cli.log.row_format import ROW_OPS, difference

    current: Document | None = None
    for row in history:
        new = row["after"]
        if new is not None and current is not None:
            new = {**current, **new}  # cells that were not sent are as they were
        beside = [event_line(event) for event in events.get(row["lsn"], ())]
        change = "all rows went" if row["op"] == "t" else difference(current, new)
        yield (
            row["epoch"],
            when(row["commit_ts"]),
            row["txn"] or "first load",
            ROW_OPS[row["op"]],
            change,
            beside,
        )
        current = new


def event_line(event: Mapping[str, Any]) -> str:
    """A domain event in a few words: its type, stream and data."""
    after = event["after"] or {}
    if "type" not in after:
        return f"message {after.get('prefix', '')}"
    from tailrace.cli.log.row_format import cell_line

    return f"{after['type']} on {after['stream']} v{after['version']}: {cell_line(after['data'])}"
