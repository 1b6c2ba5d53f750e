"""A computed state as plain columns: what becomes of cells that the typed column cannot hold, and of unknown ones."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from tailrace.eventstore import disclosure
from tailrace.eventstore.errors import UnknownCell, UnreadableCell
from tailrace.eventstore.model.postgres_text import postgres_texts
from tailrace.eventstore.model.schema import Column
from tailrace.eventstore.state.assembly import ERASED, STATE_FIELDS
from tailrace.eventstore.state.input import StateInput


def to_readable(table: pa.Table, wanted: StateInput) -> pa.Table:
    """A computed state (``assembly.state_schema``) as plain columns (``StateInput.schema``), after its policies. Erased
    cells are NULL under every policy, and ``_erased`` names them. Raises UnreadableCell and UnknownCell."""
    refuse_unknown(table, wanted)
    raw = raw_cells(table)
    arrays = [*(table[field.name] for field in STATE_FIELDS), erased_names(table.num_rows, wanted, raw)]
    for column in wanted.selected_columns:
        cells, entries = table[column.name], raw.get(column.id, {})
        texts = {row: text for row, text in entries.items() if text is not None}
        policy = wanted.on_unreadable.get(column.name, "error")
        if policy == "text":
            cells = as_texts(table, wanted, column, texts)
        elif texts and policy == "error":
            raise _unreadable(table, wanted, column, *next(iter(texts.items())))
        elif texts:
            # not replace_with_mask, which has no kernel for lists
            cells = pc.if_else(_mask_of(len(cells), texts), pa.scalar(None, cells.type), cells)
        arrays.append(cells)
    return pa.Table.from_arrays(arrays, schema=wanted.schema)


def raw_cells(table: pa.Table) -> dict[int, dict[int, bytes | None]]:
    """Column id -> row -> source text, None where it was erased."""
    cells: dict[int, dict[int, bytes | None]] = {}
    for row, entries in _marked_rows(table["_raw"]):
        for column_id, text in entries:
            cells.setdefault(column_id, {})[row] = text
    return cells


def erased_names(rows: int, wanted: StateInput, raw: Mapping[int, Mapping[int, bytes | None]]) -> pa.Array:
    names: dict[int, list[str]] = {}
    for column in wanted.selected_columns:
        for row, text in raw.get(column.id, {}).items():
            if text is None:
                names.setdefault(row, []).append(column.name)
    if not names:
        return pa.nulls(rows, ERASED.type)
    return pa.array([names.get(row) for row in range(rows)], ERASED.type)


def _marked_rows(marks: pa.ChunkedArray) -> Iterator[tuple[int, list[Any]]]:
    """The rows that have marks, and these: few of many, so the others do not become Python values."""
    if marks.null_count < len(marks):
        rows = pc.indices_nonzero(marks.is_valid())
        yield from zip(rows.to_pylist(), marks.take(rows).to_pylist(), strict=True)


def as_texts(
    table: pa.Table, wanted: StateInput, column: Column, texts: Mapping[int, bytes | None]
) -> pa.ChunkedArray:
    try:
        return source_cells(table[column.name], texts).cast(pa.string())
    except pa.ArrowInvalid:
        wrong = (
            (row, text) for row, text in sorted(texts.items()) if text is not None and not _is_text(text)
        )
        raise _unreadable(table, wanted, column, *next(wrong)) from None


def _is_text(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def source_cells(cells: pa.ChunkedArray, texts: Mapping[int, bytes | None]) -> pa.ChunkedArray:
    """The cells as their source printed them, binary: those of the typed column, and ``texts`` of those it lacks."""
    rendered = pa.chunked_array([postgres_texts(chunk) for chunk in cells.chunks], pa.string()).cast(
        pa.binary()
    )
    values = pa.array([texts[row] for row in sorted(texts)], pa.binary())
    return pc.replace_with_mask(rendered, _mask_of(len(rendered), texts), values) if texts else rendered


def _mask_of(length: int, rows: Iterable[int]) -> pa.BooleanArray:
    """A mask that is true at ``rows``."""
    return pc.is_in(pa.array(range(length), pa.int64()), value_set=pa.array(rows, pa.int64()))


def refuse_unknown(table: pa.Table, wanted: StateInput) -> None:
    chosen = {column.id: column for column in wanted.selected_columns}
    for row, ids in _marked_rows(table["_unknown"]):
        for column_id in ids:
            if column_id in chosen:
                raise UnknownCell(
                    f"{wanted.topic}: the value of column {chosen[column_id].name!r} of the row"
                    f" {_key_of(table, wanted, row)} was never sent (an unchanged TOASTed value)",
                    hint="read the topic again from its source, or leave the column out",
                )


def _unreadable(table: pa.Table, wanted: StateInput, column: Column, row: int, text: bytes) -> UnreadableCell:
    where = f"{wanted.topic}: column {column.name!r} of the row {_key_of(table, wanted, row)} holds"
    if not _is_text(text):
        return UnreadableCell(
            f"{where} {disclosure.value(text[:80])}, which is not UTF-8",
            hint="read the column with on_unreadable 'null', or mend the text in the source",
        )
    shown = disclosure.value(text[:80].decode(errors="replace"))
    return UnreadableCell(
        f"{where} {shown}, which {column.arrow} cannot{_former_type(wanted, column)}",
        hint="read the column with on_unreadable 'text' (its source text) or 'null', leave it out (columns), or mend"
        " the row in the source",
    )


def _former_type(wanted: StateInput, column: Column) -> str:
    """The words for a column whose type changed: both types, and the versions that have them."""
    for version in sorted(wanted.versions.values(), key=lambda schema: -schema.version):
        former = next((other for other in version.columns if other.id == column.id), None)
        if version.version < wanted.target.version and former is not None and former.arrow != column.arrow:
            return (
                f" (it was {former.type_name or former.arrow} in version {version.version} of the topic, and is "
                f"{column.type_name or column.arrow} in version {wanted.target.version})"
            )
    return ""


def _key_of(table: pa.Table, wanted: StateInput, row: int) -> str:
    return ", ".join(
        f"{column.name}={disclosure.value(table[column.name][row].as_py())}" for column in wanted.target.key
    )
