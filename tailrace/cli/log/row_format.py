"""Rows of the log as documents: what ``log`` and ``replay`` print."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from tailrace.eventstore.model.position import format_lsn, parse_lsn
from tailrace.eventstore.model.redacted import ERASED, Erased
from tailrace.eventstore.model.topic import TopicId

if TYPE_CHECKING:
    from tailrace.eventstore.subscriptions.tail import FollowedRows

_FIELD_ID = b"PARQUET:field_id"
Document = dict[str, Any]
ROW_OPS: Mapping[str, str] = {
    "r": "read", "c": "create", "u": "update", "d": "delete", "t": "truncate", "m": "message",
}  # fmt: skip
SORTED_ROWS_MAX = 200_000  # of one epoch; of a larger one (a load) rows stay as they are stored


def sort_by_commit(followed: Iterable[FollowedRows]) -> Iterator[Document]:
    """Documents of rows that come epoch by epoch, within an epoch by commit. A truncate, which is in every
    partition, comes once."""
    seen: set[tuple[Any, ...]] = set()
    held: list[Document] = []
    for piece in followed:
        for document in documents(piece.topic, piece.rows):
            mark = (document["topic"], document["lsn"], document["ordinal"])
            if document["op"] == "t" and mark in seen:
                continue
            if document["op"] == "t":
                seen.add(mark)
            held.append(document)
        if piece.ends_epoch or len(held) >= SORTED_ROWS_MAX:
            yield from sorted(held, key=lambda row: (parse_lsn(row["lsn"]), row["ordinal"]))
            held = []
        if piece.ends_epoch:
            seen.clear()


def documents(topic: TopicId, batch: pa.RecordBatch | pa.Table) -> Iterator[Document]:
    """One JSON-ready document per row. Cells that the typed column cannot hold appear as the source's text; columns
    whose value was not sent (unchanged TOAST) are left out of ``after`` and named in ``unchanged``, those whose value
    was erased are ``ERASED`` and named in ``erased``."""
    names = _column_names(batch.schema)
    for row in batch.to_pylist():
        yield _document(topic, row, names)


def _column_names(schema: pa.Schema) -> Mapping[int, str]:
    struct = schema.field("after").type
    fields = [struct.field(index) for index in range(struct.num_fields)]
    return {int((field.metadata or {})[_FIELD_ID]): field.name for field in fields}


def _document(topic: TopicId, row: Mapping[str, Any], names: Mapping[int, str]) -> Document:
    raw = {
        int(column): ERASED if text is None else text.decode(errors="replace")
        for column, text in row["_raw"] or ()
    }
    erased = sorted({names[abs(column)] for column, text in raw.items() if text is ERASED})
    unchanged = [names[column] for column in row["_unchanged"] or ()]
    document: Document = {
        "topic": topic.text,
        "partition": row["_partition"],
        "offset": row["_offset"],
        "epoch": row["_epoch"],
        "lsn": format_lsn(row["_lsn"]),
        "txn": row["_txn"],
        "ordinal": row["_ordinal"],
        "commit_ts": row["_commit_ts"],
        "op": row["_op"],
        "key": _cells(row["key"], raw, names, 1),
        "after": _cells(row["after"], raw, names, 1, without=unchanged),
    }
    if row["_before"] in ("key", "full"):
        document["before"] = _cells(row["before"], raw, names, -1)
    if unchanged:
        document["unchanged"] = unchanged
    if erased:
        document["erased"] = erased
    if row["_moved_from"] is not None:
        document["moved_from"] = row["_moved_from"]
    return document


def _cells(
    cells: Mapping[str, Any] | None,
    raw: Mapping[int, str | Erased],
    names: Mapping[int, str],
    sign: int,
    without: list[str] | None = None,
) -> Document | None:
    """A struct's cells with the texts of ``_raw`` in place (``sign`` -1: those of the old row)."""
    if cells is None:
        return None
    result = {name: value for name, value in cells.items() if name not in (without or ())}
    for column, text in raw.items():
        name = names.get(column * sign)
        if name in result:
            result[name] = text
    return result


def one_line(document: Mapping[str, Any]) -> str:
    """The change in words: the new row, or the key of the row that went."""
    if document["op"] == "t":
        return "all rows"
    cells = document["after"] if document["after"] is not None else document["key"]
    text = ", ".join(f"{name}={cell_line(value)}" for name, value in (cells or {}).items())
    moved = document.get("moved_from")
    return f"{text} (key was {', '.join(cell_line(value) for value in moved.values())})" if moved else text


def difference(old: Mapping[str, Any] | None, new: Mapping[str, Any] | None) -> str:
    """What changed between two rows of one key, cell by cell; the whole row when there is only one."""
    if new is None:
        return "row deleted"
    if old is None:
        return ", ".join(f"{name}={cell_line(value)}" for name, value in new.items())
    changed = [
        f"{name}: {cell_line(old.get(name))} → {cell_line(value)}"
        for name, value in new.items()
        if value is ERASED or old.get(name) != value  # nobody knows whether an erased one changed
    ]
    return ", ".join(changed) or "nothing changed"


CELL_LENGTH_MAX = 60  # characters of one cell on a line for people; --json has it whole


def cell_line(value: object) -> str:
    """A cell on one short line."""
    text = "NULL" if value is None else str(value).replace("\n", "⏎")
    return text if len(text) <= CELL_LENGTH_MAX else text[: CELL_LENGTH_MAX - 1] + "…"
