"""Postgres output text to Arrow, column by column, exactly or not at all.

Texts are those of a session with DateStyle=ISO, TimeZone=UTC, extra_float_digits=3, bytea_output=hex and
client_encoding=UTF8. A value that its typed column cannot hold (infinity, BC, years beyond 9999, 24:00:00, NaN
numerics, several array dimensions, text that is not UTF-8) is reported, never changed: the caller keeps its text in
``_raw``. Casts are vectorised; only when one refuses are its values looked at by pattern.
"""

from __future__ import annotations

import binascii
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tailrace.cdc.columnar import array_literals
from tailrace.cdc.kernels.copy_text import hash_columns
from tailrace.cdc.policy.policies import Policies
from tailrace.eventstore.errors import OperatorError
from tailrace.eventstore.model.schema import Column, TopicSchema, change_schema
from tailrace.eventstore.model.topic import Op

_INTEGER = r"^-?[0-9]+$"
_FLOAT = r"^(-?([0-9]+(\.[0-9]+)?(e[-+][0-9]+)?|Infinity)|NaN)$"
_DECIMAL = r"^-?[0-9]+(\.[0-9]+)?$"
_DATE = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}$"
_TIME = r"^([01][0-9]|2[0-3]):[0-9]{2}:[0-9]{2}(\.[0-9]{1,6})?$"
_TIMESTAMP = r"^[0-9]{4}-[0-9]{2}-[0-9]{2} [0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,6})?$"
_TIMESTAMPTZ = r"^[0-9]{4}-[0-9]{2}-[0-9]{2} [0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,6})?\+00$"
_BYTEA = r"^\\x([0-9a-f]{2})*$"

Unfit = list[int] | None


def convert(texts: pa.Array, column: Column) -> tuple[pa.Array, Unfit]:
    """Type a column. ``texts`` is a string or binary array (large or not) of one cell per row, null for NULL.

    Returns the array in ``column.arrow`` and the rows (ascending) whose value it cannot hold: null there, their text
    belongs into ``_raw``; None when all fit.
    """
    return _convert(texts, column.arrow)


def _convert(texts: pa.Array, kind: pa.DataType) -> tuple[pa.Array, Unfit]:
    if len(texts) == texts.null_count:
        return pa.nulls(len(texts), kind), None
    if not (pa.types.is_string(texts.type) or pa.types.is_large_string(texts.type)):
        texts, broken = _utf8(texts)
        if broken is not None:
            typed, unfit = _convert(texts, kind)
            return typed, sorted({*broken, *(unfit or ())})
    if pa.types.is_list(kind):
        return _list(texts, kind)
    cast, pattern = _caster(kind)
    try:
        return cast(texts, kind), None
    except pa.ArrowInvalid:
        fits = pc.match_substring_regex(texts, pattern)
    good = pc.if_else(fits, texts, pa.scalar(None, texts.type))
    try:
        return cast(good, kind), _rows(pc.invert(fits))
    except pa.ArrowInvalid:  # of the right form but beyond the type's range: look at each
        return _convert_each(texts, kind, cast, fits)


def _convert_each(texts: pa.Array, kind: pa.DataType, cast: Cast, fits: pa.Array) -> tuple[pa.Array, Unfit]:
    unfit: list[int] = []
    good: list[bool] = []
    for row, fit in enumerate(fits.to_pylist()):
        if fit:
            try:
                cast(texts[row : row + 1], kind)
            except pa.ArrowInvalid:
                fit = False
        if fit is False:
            unfit.append(row)
        good.append(bool(fit))
    return cast(pc.if_else(pa.array(good), texts, pa.scalar(None, texts.type)), kind), unfit


def _rows(mask: pa.Array) -> list[int]:
    """The rows where a boolean array is true (null is not)."""
    rows: list[int] = pc.indices_nonzero(mask.fill_null(False)).to_pylist()
    return rows


def _utf8(data: pa.Array) -> tuple[pa.Array, Unfit]:
    """Binary to string; what is not UTF-8 becomes null and is reported."""
    kind = pa.large_string() if pa.types.is_large_binary(data.type) else pa.string()
    try:
        return data.cast(kind), None
    except pa.ArrowInvalid:
        cells = data.to_pylist()
    broken = [row for row, cell in enumerate(cells) if cell is not None and not _is_utf8(cell)]
    for row in broken:
        cells[row] = None
    return pa.array(cells, data.type).cast(kind), broken


def _is_utf8(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


# --- one caster per Arrow type: raises ArrowInvalid when any value does not fit ---

Cast = Callable[[pa.Array, pa.DataType], pa.Array]


def _cast(texts: pa.Array, kind: pa.DataType) -> pa.Array:
    return texts.cast(kind)


def _boolean(texts: pa.Array, kind: pa.DataType) -> pa.Array:
    true = pc.equal(texts, "t")
    if not pc.all(pc.or_(true, pc.equal(texts, "f")), min_count=0).as_py():
        raise pa.ArrowInvalid("neither t nor f")
    return true


def _float(texts: pa.Array, kind: pa.DataType) -> pa.Array:
    typed = texts.cast(kind)
    infinite = pc.is_inf(typed)
    if pc.any(infinite, min_count=0).as_py():  # a text beyond the range would become infinity too
        named = pc.match_substring(texts, "Infinity")
        if not pc.all(pc.equal(infinite, named), min_count=0).as_py():
            raise pa.ArrowInvalid("beyond the range of the type")
    return typed


def _time(texts: pa.Array, kind: pa.DataType) -> pa.Array:
    """Arrow casts no text to time; it does cast a timestamp, and refuses 24:00:00."""
    day, space = pa.scalar("1970-01-01", texts.type), pa.scalar(" ", texts.type)
    stamps = pc.binary_join_element_wise(day, texts, space).cast(pa.timestamp("us"))
    return stamps.cast(pa.int64()).cast(kind)


def _bytea(texts: pa.Array, kind: pa.DataType) -> pa.Array:
    """Hex of all rows at once: drop each row's ``\\x``, decode what is left as one string, halve the offsets."""
    compact = pc.fill_null(texts.cast(pa.large_string()), "\\x")
    size = len(compact)
    offsets: np.ndarray[Any, np.dtype[np.int64]] = np.frombuffer(
        compact.buffers()[1], np.int64, size + 1, compact.offset * 8
    )
    data = np.frombuffer(compact.buffers()[2], np.uint8)[offsets[0] : offsets[-1]]
    starts, lengths = offsets[:-1] - offsets[0], np.diff(offsets)
    if lengths.min() < 2 or (lengths & 1).any():
        raise pa.ArrowInvalid("not bytea in hex")
    if (data[starts] != ord("\\")).any() or (data[starts + 1] != ord("x")).any():
        raise pa.ArrowInvalid("not bytea in hex")
    digits = np.ones(len(data), np.bool_)
    digits[starts] = digits[starts + 1] = False
    try:
        decoded = binascii.unhexlify(data[digits].tobytes())
    except binascii.Error:
        raise pa.ArrowInvalid("not bytea in hex") from None
    ends = np.concatenate(([0], np.cumsum((lengths - 2) // 2)))
    valid = pa.array(pc.is_valid(texts).to_numpy(zero_copy_only=False)) if texts.null_count else None
    mask = valid.buffers()[1] if valid is not None else None
    binary = pa.LargeBinaryArray.from_buffers(
        pa.large_binary(), size, [mask, pa.py_buffer(ends.astype(np.int64)), pa.py_buffer(decoded)]
    )
    return binary.cast(kind)


def _caster(kind: pa.DataType) -> tuple[Cast, str]:
    if pa.types.is_timestamp(kind):
        return _cast, _TIMESTAMPTZ if kind.tz else _TIMESTAMP
    if pa.types.is_decimal(kind):
        return _cast, _DECIMAL
    return _CASTERS[kind.id]


_CASTERS: dict[int, tuple[Cast, str]] = {
    pa.bool_().id: (_boolean, "^[tf]$"),
    pa.int16().id: (_cast, _INTEGER),
    pa.int32().id: (_cast, _INTEGER),
    pa.int64().id: (_cast, _INTEGER),
    pa.float32().id: (_float, _FLOAT),
    pa.float64().id: (_float, _FLOAT),
    pa.string().id: (_cast, "^"),
    pa.binary().id: (_bytea, _BYTEA),
    pa.date32().id: (_cast, _DATE),
    pa.time64("us").id: (_time, _TIME),
}


def _list(texts: pa.Array, kind: pa.DataType) -> tuple[pa.Array, Unfit]:
    """One-dimensional arrays: split the literals, type all elements as one column, rebuild the lists."""
    offsets, elements, valid, unfit = array_literals.split(texts)
    typed, bad_elements = _convert(elements, kind.value_type)
    if bad_elements:  # one element that does not fit makes its whole cell unfit
        owners = np.searchsorted(offsets, np.asarray(bad_elements), side="right") - 1
        unfit = sorted({*unfit, *owners.tolist()})
    if unfit:
        valid[np.asarray(unfit)] = False
    mask = None if valid.all() else pa.array(~valid)
    lists = pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), typed, type=kind, mask=mask)
    return lists, unfit or None


def type_columns(
    texts: Sequence[pa.Array],
    columns: Sequence[Column],
    raw: dict[int, list[tuple[int, bytes]]],
    sign: int = 1,
) -> list[pa.Array]:
    """``convert`` each column; cells that do not fit are added to ``raw``: row -> [(sign * column id, text)]."""
    typed = []
    for cells, column in zip(texts, columns, strict=True):
        array, unfit = convert(cells, column)
        typed.append(array)
        for row in unfit or ():
            text = cells[row].as_py()
            raw.setdefault(row, []).append(
                (sign * column.id, text if isinstance(text, bytes) else text.encode())
            )
    return typed


def raw_column(rows: int, raw: dict[int, list[tuple[int, bytes]]], kind: pa.DataType) -> pa.Array:
    """The ``_raw`` column: null where a row has no such cell."""
    if not raw:
        return pa.nulls(rows, kind)
    return pa.array([raw.get(row) for row in range(rows)], kind)


@dataclass(frozen=True, slots=True)
class LoadStamp:
    """Where loaded rows stand in the log: ``commit_ts`` in µs since 1970-01-01 UTC; ordinals count from
    ``first_ordinal``."""

    lsn: int
    commit_ts: int | None = None
    first_ordinal: int = 0
    txn: int = 0


def loaded_rows(
    texts: Sequence[pa.Array], schema: TopicSchema, policies: Policies, stamp: LoadStamp
) -> pa.Table:
    """Rows of a load in ``change_schema(schema)``: each the state of a row, as if created.

    ``texts``: one string or binary array per column of the schema, in its order, all of one length, as the source has
    them. Raises OperatorError on a schema without key.
    """
    texts = policies.texts(schema.columns, texts)
    target = change_schema(schema)
    rows = len(texts[0])
    raw: dict[int, list[tuple[int, bytes]]] = {}
    typed = type_columns(texts, schema.columns, raw)
    is_key = [column.key for column in schema.columns]
    require_key(schema, f"table oid {schema.relid}")
    key = [array for array, flag in zip(typed, is_key, strict=True) if flag]
    hashes = hash_columns([cells for cells, flag in zip(texts, is_key, strict=True) if flag])
    columns: dict[str, pa.Array] = {
        "_hash": hashes,
        "_op": pa.repeat(pa.scalar(Op.READ.value, pa.string()), rows),
        "_lsn": pa.repeat(pa.scalar(stamp.lsn, pa.int64()), rows),
        "_txn": pa.repeat(pa.scalar(stamp.txn, pa.int64()), rows),
        "_ordinal": pa.array(stamp.first_ordinal + np.arange(rows, dtype=np.int64)),
        "_commit_ts": pa.repeat(pa.scalar(stamp.commit_ts, target.field("_commit_ts").type), rows),
        "key": struct_of(key, target.field("key").type),
        "after": struct_of(typed, target.field("after").type),
        "before": pa.nulls(rows, target.field("before").type),
        "_before": pa.repeat(pa.scalar("none", pa.string()), rows),
        "_unchanged": pa.nulls(rows, target.field("_unchanged").type),
        "_moved_from": pa.nulls(rows, target.field("_moved_from").type),
        "_raw": raw_column(rows, raw, target.field("_raw").type),
    }
    return pa.table(columns, schema=target)


def require_key(schema: TopicSchema, what: str) -> None:
    """Raises OperatorError for a schema without a key: its rows cannot be distinguished."""
    if not schema.key:
        raise OperatorError(
            f"{what} has no key", hint="give the table a primary key, or set REPLICA IDENTITY FULL"
        )


def struct_of(
    columns: Sequence[pa.Array], kind: pa.StructType, mask: pa.Array | None = None
) -> pa.StructArray:
    """Columns as one struct column of exactly ``kind``; null where ``mask`` is true."""
    return pa.StructArray.from_arrays(list(columns), fields=list(kind), mask=mask)
