"""Rows of any schema version in the layout of one target version: what the compaction kernel computes on.

Columns are matched by identity (``Column.id``), never by name. A column the older version does not have takes the
target's ``fill``; a column whose type changed is cast where the cast is exact. Where it is not, its cells are what the
new type cannot hold: null, and their text is raw. So such rows harm nobody once they are truncated or overwritten.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date, datetime, time
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tailrace.eventstore.errors import IntegrityError
from tailrace.eventstore.model.postgres_text import postgres_texts
from tailrace.eventstore.model.schema import Column, TopicSchema

Ints = np.ndarray[Any, np.dtype[np.int64]]
Codes = np.ndarray[Any, np.dtype[np.uint8]]
Mask = np.ndarray[Any, np.dtype[np.bool_]]

READ, CREATE, UPDATE, DELETE, TRUNCATE, MESSAGE = (ord(code) for code in "rcudtm")


@dataclass(frozen=True, slots=True)
class Layout:
    """Which columns of the target are wanted: the key columns first, then the others, in the target's order."""

    target: TopicSchema
    columns: tuple[Column, ...]
    keys: int

    @classmethod
    def of(cls, target: TopicSchema, names: Sequence[str] | None = None) -> Layout:
        """Layout of the named columns (all when None) plus the key. Names are known to be columns."""
        others = [c for c in target.columns if not c.key and (names is None or c.name in names)]
        return cls(target, (*target.key, *others), len(target.key))

    def required_columns(self, version: TopicSchema) -> list[str]:
        """Dotted names of what must be read of a segment of this version (Parquet projects into structs)."""
        held = {column.id: column for column in version.columns}
        return [
            *META,
            *(
                f"{self.place(at, held[column.id])}.{held[column.id].name}"
                for at, column in enumerate(self.columns)
                if column.id in held
            ),
        ]

    def coded_columns(self, version: TopicSchema) -> list[str]:
        """Those of ``needs`` that may come as dictionaries, as they are stored: a code then becomes a text only for
        the rows that stay."""
        held = {column.id: column for column in version.columns}
        texts = [
            held[column.id]
            for column in self.columns[self.keys :]
            if column.id in held
            and pa.types.is_string(column.arrow)
            and held[column.id].arrow == column.arrow
        ]
        # A name with a dot might be the path of another column's part.
        return ["_op", *(f"after.{column.name}" for column in texts if "." not in column.name)]

    def place(self, at: int, held: Column) -> str:
        """The struct in which a version holds column ``at``. One that was no key then has no cell in its ``key``: rows
        from before a re-key, which a truncate follows."""
        return "key" if at < self.keys and held.key else "after"


META = ("_hash", "_op", "_lsn", "_ordinal", "_unchanged", "_moved_from", "_raw")
# Columns that say nothing where no row has a value of another one: a key change matters to cells that were not sent.
SILENT = {"_unchanged": "_unchanged", "_moved_from": "_unchanged", "_ordinal": "_unchanged", "_raw": "_raw"}


@dataclass(frozen=True, slots=True)
class Marks:
    """Sparse marks on rows: ``ids[i]`` (and ``texts[i]``) belongs to row ``rows[i]``; rows ascend. A null text is that
    of an erased cell."""

    rows: Ints
    ids: Ints
    texts: pa.Array | None = None

    @property
    def empty(self) -> bool:
        return len(self.rows) == 0

    def take(self, wanted: Ints) -> Marks:
        """The marks of ``wanted`` (ascending, unique), renumbered to positions in it."""
        if self.empty or not len(wanted):
            return NO_MARKS if self.texts is None else NO_TEXTS
        at = np.minimum(np.searchsorted(wanted, self.rows), len(wanted) - 1)
        keep = np.flatnonzero(wanted[at] == self.rows)
        texts = None if self.texts is None else self.texts.take(pa.array(keep))
        return Marks(at[keep].astype(np.int64), self.ids[keep], texts)


_NONE = np.empty(0, np.int64)
NO_MARKS = Marks(_NONE, _NONE)
NO_TEXTS = Marks(_NONE, _NONE, pa.array([], pa.binary()))


def concat_marks(parts: Sequence[tuple[Marks, int]]) -> Marks:
    """Marks of parts laid one behind the other; each comes with its number of rows."""
    starts = np.cumsum([0, *(rows for _, rows in parts)])
    filled = [(marks, start) for (marks, _), start in zip(parts, starts, strict=False) if not marks.empty]
    if not filled:
        return NO_MARKS if not parts or parts[0][0].texts is None else NO_TEXTS
    texts = [marks.texts for marks, _ in filled if marks.texts is not None]
    return Marks(
        np.concatenate([marks.rows + start for marks, start in filled]),
        np.concatenate([marks.ids for marks, _ in filled]),
        pa.concat_arrays(texts) if texts else None,
    )


@dataclass(frozen=True, slots=True)
class StateRows:
    """Change rows of one bucket in offset order, in a layout. ``cells`` has one array per layout column."""

    hashes: Ints
    ops: Codes
    epochs: Ints
    lsns: Ints
    ordinals: Ints
    offsets: Ints
    cells: tuple[pa.Array, ...]
    unchanged: Marks
    moved: Mask  # the row is the create half of a key change
    raw: Marks

    def __len__(self) -> int:
        return len(self.hashes)

    def take(self, wanted: Ints) -> StateRows:
        """Rows at ``wanted`` (ascending, unique), their texts as texts."""
        if len(wanted) == len(self):
            return replace(self, cells=tuple(map(_decode_dictionary, self.cells)))
        picks = pa.array(wanted)
        return StateRows(
            self.hashes[wanted],
            self.ops[wanted],
            self.epochs[wanted],
            self.lsns[wanted],
            self.ordinals[wanted],
            self.offsets[wanted],
            tuple(_decode_dictionary(cell.take(picks)) for cell in self.cells),
            self.unchanged.take(wanted),
            self.moved[wanted],
            self.raw.take(wanted),
        )

    @property
    def nbytes(self) -> int:
        return 49 * len(self) + sum(int(cell.nbytes) for cell in self.cells)


def _decode_dictionary(cell: pa.Array) -> pa.Array:
    return cell.dictionary_decode() if pa.types.is_dictionary(cell.type) else cell


def concat_rows(parts: Sequence[StateRows]) -> StateRows:
    """Parts laid one behind the other; together below 2 GiB of text in each column."""
    if len(parts) == 1:
        return parts[0]
    return StateRows(
        hashes=np.concatenate([part.hashes for part in parts]),
        ops=np.concatenate([part.ops for part in parts]),
        epochs=np.concatenate([part.epochs for part in parts]),
        lsns=np.concatenate([part.lsns for part in parts]),
        ordinals=np.concatenate([part.ordinals for part in parts]),
        offsets=np.concatenate([part.offsets for part in parts]),
        cells=tuple(pa.concat_arrays(list(column)) for column in zip(*(p.cells for p in parts), strict=True)),
        unchanged=concat_marks([(part.unchanged, len(part)) for part in parts]),
        moved=np.concatenate([part.moved for part in parts]),
        raw=concat_marks([(part.raw, len(part)) for part in parts]),
    )


def conform(table: pa.Table, version: TopicSchema, layout: Layout) -> Iterator[StateRows]:
    """The table's rows in the layout, batch by batch.

    ``table`` has the columns of ``layout.needs(version)`` and ``_offset``, ``_epoch``. Those of ``SILENT`` may be
    absent, those of ``layout.coded(version)`` dictionaries; the latter's cells are plain once rows were taken.
    """
    for batch in table.to_batches():
        if batch.num_rows:
            yield _conform_batch(batch, version, layout)


def _conform_batch(batch: pa.RecordBatch, version: TopicSchema, layout: Layout) -> StateRows:
    held = {column.id: column for column in version.columns}
    raw = _raw_marks(batch)
    cells = []
    for at, column in enumerate(layout.columns):
        old = held.get(column.id)
        if old is None:
            cell, text = fill_cells(column, batch.num_rows)
            raw = raw if text is None else _add_texts(raw, column.id, pa.array([text] * batch.num_rows))
        else:
            cell = batch.column(layout.place(at, old)).field(old.name)
            if old.arrow != column.arrow:
                cast = exact_cast(cell, column.arrow)
                if cast is None:
                    raw = _add_texts(raw, column.id, postgres_texts(cell).cast(pa.binary()))
                    cell = pa.nulls(len(cell), column.arrow)
                else:
                    cell = _texts_in_place(cast, column, raw)
        cells.append(cell)
    return StateRows(
        hashes=_int64(batch, "_hash"),
        ops=op_codes(batch.column("_op")),
        epochs=_int64(batch, "_epoch"),
        lsns=_int64(batch, "_lsn"),
        ordinals=(
            _int64(batch, "_ordinal")
            if "_ordinal" in batch.schema.names
            else np.zeros(batch.num_rows, np.int64)
        ),
        offsets=_int64(batch, "_offset"),
        cells=tuple(cells),
        unchanged=_unchanged_marks(batch),
        moved=_moved_mask(batch),
        raw=raw,
    )


def _int64(batch: pa.RecordBatch, name: str) -> Ints:
    column: Ints = batch.column(name).to_numpy(zero_copy_only=False)
    return column


def op_codes(column: pa.Array) -> Codes:
    """One byte per row: the operation's letter. Raises IntegrityError when a cell is not one letter."""
    if column.null_count:
        raise _no_letter()
    if pa.types.is_dictionary(column.type):
        letters = op_codes(column.dictionary)
        codes: Codes = letters[column.indices.to_numpy()]
        return codes
    _, offsets, data = column.buffers()
    bounds = np.frombuffer(offsets, np.int32)[column.offset : column.offset + len(column) + 1]
    if not np.array_equal(np.diff(bounds), np.ones(len(column), np.int32)):
        raise _no_letter()
    return np.frombuffer(data, np.uint8)[bounds[0] : bounds[-1]]


def _no_letter() -> IntegrityError:
    return IntegrityError(
        "a segment has an operation that is not one letter",
        hint="the file is damaged: run tailrace log verify",
    )


def _unchanged_marks(batch: pa.RecordBatch) -> Marks:
    if "_unchanged" not in batch.schema.names:
        return NO_MARKS
    column = batch.column("_unchanged")
    if column.null_count == len(column):
        return NO_MARKS
    return Marks(_parents(column), pc.list_flatten(column).to_numpy(zero_copy_only=False).astype(np.int64))


def _raw_marks(batch: pa.RecordBatch) -> Marks:
    """Raw texts of the cells after the change (those of ``before`` have negative ids and stay out)."""
    if "_raw" not in batch.schema.names:
        return NO_TEXTS
    column = batch.column("_raw")
    if column.null_count == len(column):
        return NO_TEXTS
    entries = column.cast(pa.list_(pa.struct([("key", pa.int32()), ("value", pa.binary())])))
    flat = pc.list_flatten(entries)
    ids = flat.field("key").to_numpy(zero_copy_only=False).astype(np.int64)
    after = np.flatnonzero(ids > 0)
    return Marks(_parents(entries)[after], ids[after], flat.field("value").take(pa.array(after)))


def _parents(lists: pa.Array) -> Ints:
    parents: Ints = pc.list_parent_indices(lists).to_numpy(zero_copy_only=False).astype(np.int64)
    return parents


def _moved_mask(batch: pa.RecordBatch) -> Mask:
    if "_moved_from" not in batch.schema.names:
        return np.zeros(batch.num_rows, np.bool_)
    mask: Mask = batch.column("_moved_from").is_valid().to_numpy(zero_copy_only=False)
    return mask


def _add_texts(raw: Marks, column_id: int, texts: pa.Array) -> Marks:
    """Raw texts of a column of all rows (null: none) beside those there are: a fill that the typed column cannot hold,
    or values of its former type."""
    rows = np.flatnonzero(texts.is_valid().to_numpy(zero_copy_only=False)).astype(np.int64)
    more = Marks(rows, np.full(len(rows), column_id, np.int64), texts.drop_null())
    both = concat_marks([(raw, 0), (more, len(texts))])
    if both.texts is None:
        return both
    order = np.argsort(both.rows, kind="stable")
    return Marks(both.rows[order], both.ids[order], both.texts.take(pa.array(order)))


def _texts_in_place(cell: pa.Array, column: Column, raw: Marks) -> pa.Array:
    """A column that became text can hold what its former type could not."""
    if raw.texts is None or column.arrow != pa.string():
        return cell
    hits = np.flatnonzero(raw.ids == column.id)
    if not len(hits):
        return cell
    mask = np.zeros(len(cell), np.bool_)
    mask[raw.rows[hits]] = True
    return pc.replace_with_mask(cell, pa.array(mask), raw.texts.take(pa.array(hits)).cast(pa.string()))


def exact_cast(cell: pa.Array, kind: pa.DataType) -> pa.Array | None:
    """The cells in another type; None when a value could change on the way."""
    if not _casts(cell.type, kind):
        return None
    try:
        return pc.cast(cell, kind, safe=True)
    except pa.ArrowInvalid:
        return None


def _casts(old: pa.DataType, new: pa.DataType) -> bool:
    kinds = pa.types
    if kinds.is_integer(old):
        return bool(kinds.is_integer(new) or kinds.is_decimal(new) or kinds.is_string(new))
    if kinds.is_decimal(old):
        return bool(kinds.is_decimal(new) or kinds.is_string(new))
    if kinds.is_floating(old):
        return bool(kinds.is_float64(new))
    if kinds.is_date(old):
        return bool(kinds.is_string(new))
    if kinds.is_list(old) and kinds.is_list(new):
        return _casts(old.value_type, new.value_type)
    return bool(old.equals(new))


def fill_cells(column: Column, rows: int) -> tuple[pa.Array, bytes | None]:
    """``rows`` cells of a column's fill value, or NULLs and the raw text when its type cannot hold it."""
    if column.fill is None:
        return pa.nulls(rows, column.arrow), None
    try:
        value = _parse(column.fill, column.arrow)
        return pa.repeat(pa.scalar(value, column.arrow), rows), None
    except (ValueError, OverflowError, pa.ArrowInvalid):
        return pa.nulls(rows, column.arrow), column.fill.encode()


_BOOLS: Mapping[str, bool] = {"t": True, "f": False, "true": True, "false": False}


def _parse(text: str, kind: pa.DataType) -> object:
    """A value from Postgres' output text. Raises ValueError when the type cannot hold it."""
    kinds = pa.types
    if kinds.is_list(kind):
        return [None if item is None else _parse(item, kind.value_type) for item in _array_items(text)]
    if kinds.is_boolean(kind):
        if text not in _BOOLS:
            raise ValueError(text)
        return _BOOLS[text]
    if kinds.is_binary(kind):
        if not text.startswith("\\x"):
            raise ValueError(text)
        return bytes.fromhex(text[2:])
    if kinds.is_date(kind):
        return date.fromisoformat(text)
    if kinds.is_time(kind):
        return time.fromisoformat(text)
    if kinds.is_timestamp(kind):
        return datetime.fromisoformat(text)
    return pa.scalar(text, pa.string()).cast(kind).as_py()


def _array_items(text: str) -> list[str | None]:
    """Items of a one-dimensional array's text, for example ``{1,NULL,"a b"}``. Raises ValueError otherwise."""
    if not (text.startswith("{") and text.endswith("}")):
        raise ValueError(text)  # another lower bound: [2:3]={…}
    items: list[str | None] = []
    at, end = 1, len(text) - 1
    while at < end:
        item = []
        quoted = text[at] == '"'
        at += quoted
        while at < end and text[at] != ('"' if quoted else ","):
            if text[at] == "{" and not quoted:
                raise ValueError(text)  # more than one dimension
            at += text[at] == "\\"
            item.append(text[at])
            at += 1
        at += 1 + quoted  # past the quote and the comma
        word = "".join(item)
        items.append(None if word == "NULL" and not quoted else word)
    return items
