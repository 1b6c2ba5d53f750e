"""Topic schemas: what columns a topic has, since when, and how their values are held in Arrow.

A column's identity is ``id`` (Postgres: attnum), not its name; it is the Parquet ``field_id`` too. Types with an exact
Arrow twin are typed; every other type is text with the Postgres type in the field's metadata.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache

import pyarrow as pa

from tailrace.eventstore.model.topic import TopicKind

# Postgres type oids (pg_type.dat, stable across versions) with an exact Arrow type.
_SCALARS: dict[int, pa.DataType] = {
    16: pa.bool_(),
    17: pa.binary(),  # bytea
    18: pa.string(),  # "char"
    19: pa.string(),  # name
    20: pa.int64(),
    21: pa.int16(),
    23: pa.int32(),
    25: pa.string(),
    700: pa.float32(),
    701: pa.float64(),
    1042: pa.string(),  # character(n)
    1043: pa.string(),  # character varying
    1082: pa.date32(),
    1083: pa.time64("us"),
    1114: pa.timestamp("us"),
    1184: pa.timestamp("us", "UTC"),
}
_ARRAYS: dict[int, int] = {  # array type oid -> element type oid
    1000: 16,
    1001: 17,
    1002: 18,
    1003: 19,
    1005: 21,
    1007: 23,
    1009: 25,
    1014: 1042,
    1015: 1043,
    1016: 20,
    1021: 700,
    1022: 701,
    1115: 1114,
    1182: 1082,
    1183: 1083,
    1185: 1184,
    1231: 1700,
}
NUMERIC = 1700
_TYPMOD_HEADER = 4  # VARHDRSZ, numeric.c


def numeric_shape(typmod: int) -> tuple[int, int] | None:
    """(precision, scale) of a numeric's typmod when a decimal128 holds every finite value of it, else None."""
    if typmod < _TYPMOD_HEADER:
        return None
    packed = typmod - _TYPMOD_HEADER
    precision, scale = packed >> 16 & 0xFFFF, packed & 0x7FF
    if scale >= 1024:  # negative scale, 11-bit two's complement (Postgres 15+)
        scale -= 2048
    return (precision, scale) if 0 <= scale <= precision <= 38 else None


def arrow_type(type_oid: int, typmod: int = -1) -> pa.DataType:
    """The Arrow type that holds values of a Postgres type: an exact twin, or string (the output text)."""
    element = _ARRAYS.get(type_oid)
    if element is not None:
        inner = arrow_type(element, typmod)
        return pa.list_(inner) if _is_typed(element, typmod) else pa.string()
    if type_oid == NUMERIC:
        shape = numeric_shape(typmod)
        return pa.decimal128(*shape) if shape else pa.string()
    return _SCALARS.get(type_oid, pa.string())


def _is_typed(type_oid: int, typmod: int) -> bool:
    return type_oid in _SCALARS or (type_oid == NUMERIC and numeric_shape(typmod) is not None)


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a topic version.

    ``type_name`` is Postgres' format_type text; ``key`` marks the topic's key; ``fill`` is the text that rows written
    before the column existed have in it (Postgres ``attmissingval``), None = NULL. ``policy`` says what capture makes
    of every value before it is written (``tailrace.cdc.policy.policies``); "" = nothing.

    ``base_oid`` and ``base_typmod``: the type under a domain, 0 for other types. What follows says more of a column's
    meaning and does not make it another one; "" is not known: ``type_kind`` is pg_type.typtype, of a domain that of the
    type under it; ``collation`` is ``C`` where texts are ordered by their bytes, otherwise a name, with
    "(nondeterministic)" behind it where texts that differ may be equal.
    """

    id: int
    name: str
    type_oid: int
    typmod: int = -1
    type_name: str = ""
    key: bool = False
    fill: str | None = None
    policy: str = ""
    base_oid: int = 0
    base_typmod: int = -1
    type_kind: str = field(default="", compare=False)
    collation: str = field(default="", compare=False)

    @property
    def meant_oid(self) -> int:
        """The type whose meaning the values have."""
        return self.base_oid or self.type_oid

    @property
    def meant_typmod(self) -> int:
        return self.base_typmod if self.base_oid else self.typmod

    @property
    def arrow(self) -> pa.DataType:
        return pa.string() if self.policy else arrow_type(self.meant_oid, self.meant_typmod)

    @property
    def field(self) -> pa.Field:
        metadata = {
            b"PARQUET:field_id": str(self.id).encode(),
            b"tailrace:type": (self.type_name or str(self.type_oid)).encode(),
        }
        if self.policy:
            metadata[b"tailrace:policy"] = self.policy.encode()
        return pa.field(self.name, self.arrow, nullable=True, metadata=metadata)


_LEFT_OUT = {"base_oid": 0, "base_typmod": -1, "type_kind": "", "collation": ""}
"""What is not written where it says nothing."""


@dataclass(frozen=True, slots=True)
class TopicSchema:
    """One version of a topic's columns, in the source's column order. ``from_lsn``: holds from this commit on.
    ``relid`` is the table's oid (0 for topics that are no table).

    ``bag``: the table has no key. All columns are the topic's key then, and its state may hold a row several times.
    ``left_out`` are columns of the table that are not captured: only their identity is known here."""

    version: int
    columns: tuple[Column, ...]
    kind: TopicKind = TopicKind.TABLE
    from_lsn: int = 0
    relid: int = 0
    bag: bool = False
    left_out: tuple[Column, ...] = ()

    @property
    def key(self) -> tuple[Column, ...]:
        return tuple(column for column in self.columns if column.key)

    @property
    def sent(self) -> tuple[Column, ...]:
        """The table's columns as the source sends them: also those that are left out."""
        if not self.left_out:
            return self.columns
        return tuple(sorted(self.columns + self.left_out, key=lambda column: column.id))

    @property
    def whole(self) -> TopicSchema:
        """This version as if nothing was left out."""
        return replace(self, columns=self.sent, left_out=()) if self.left_out else self

    @property
    def places(self) -> tuple[int, ...]:
        """Where ``columns`` stand in ``sent``."""
        return tuple(at for at, column in enumerate(self.sent) if column in self.columns)

    def column(self, name: str) -> Column | None:
        return next((column for column in self.columns if column.name == name), None)

    def to_json(self) -> str:
        data = asdict(self)
        for column in (*data["columns"], *data["left_out"]):
            for name, nothing in _LEFT_OUT.items():
                if column[name] == nothing:
                    del column[name]
        return json.dumps(data, ensure_ascii=False, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> TopicSchema:
        data = json.loads(text)
        columns = tuple(Column(**column) for column in data.pop("columns"))
        left_out = tuple(Column(**column) for column in data.pop("left_out", ()))
        return cls(columns=columns, left_out=left_out, kind=TopicKind(data.pop("kind")), **data)


def row_type(columns: Iterable[Column]) -> pa.StructType:
    return pa.struct([column.field for column in columns])


@lru_cache(maxsize=4096)
def change_schema(schema: TopicSchema) -> pa.Schema:
    """The Arrow schema of a topic version's rows, as appended and as stored (one row per change).

    _hash       int64      key hash (``tailrace.eventstore.model.keys``); a truncate row has the hash 0 and goes to
    every partition
    _op         string     r c u d t m
    _lsn        int64      commit LSN of the transaction (first load: consistent point - 1)
    _txn        int64      transaction id (0 for a first load)
    _ordinal    int64      position of the row among the appended rows of its transaction (all topics)
    _commit_ts  timestamp  µs UTC
    key         struct     key columns; null for a truncate
    after       struct     the row after the change; null for d and t
    before      struct     what the server sent of the old row; null when nothing
    _before     string     none | key | full: which cells of ``before`` are known
    _unchanged  list<i32>  ids of columns whose (TOASTed) value was not sent; null there means unknown, not NULL
    _moved_from struct     the old key, on the create half of a key change
    _raw        map<i32, binary>  source text of cells the typed column cannot hold; id for ``after`` (and ``key``),
                           -id for ``before`` (and ``_moved_from``, which is on no row that has a ``before``).
                           A null text: the cell was erased (``tailrace.eventstore.model.redacted``)

    Readers add ``_partition`` int32, ``_offset`` int64 and ``_epoch`` int64 (see ``SegmentRef``).
    """
    row = row_type(schema.columns)
    key = row_type(schema.key)
    return pa.schema(
        [
            pa.field("_hash", pa.int64(), nullable=False),
            pa.field("_op", pa.string(), nullable=False),
            pa.field("_lsn", pa.int64(), nullable=False),
            pa.field("_txn", pa.int64(), nullable=False),
            pa.field("_ordinal", pa.int64(), nullable=False),
            pa.field("_commit_ts", pa.timestamp("us", "UTC")),
            pa.field("key", key),
            pa.field("after", row),
            pa.field("before", row),
            pa.field("_before", pa.string()),
            pa.field("_unchanged", pa.list_(pa.int32())),
            pa.field("_moved_from", key),
            pa.field("_raw", pa.map_(pa.int32(), pa.binary())),
        ]
    )


def text_column(id: int, name: str, *, key: bool = False) -> Column:
    return Column(id=id, name=name, type_oid=25, type_name="text", key=key)


# Rows of logical messages: key = prefix; content as the application sent it.
MESSAGE_SCHEMA = TopicSchema(
    version=1,
    kind=TopicKind.MESSAGES,
    columns=(text_column(1, "prefix", key=True), Column(2, "content", 17, type_name="bytea")),
)

# Domain events: one topic per category, ordered per stream; ``data`` and ``metadata`` are JSON text.
EVENT_SCHEMA = TopicSchema(
    version=1,
    kind=TopicKind.EVENTS,
    columns=(
        text_column(1, "stream", key=True),
        Column(2, "version", 20, type_name="bigint"),
        text_column(3, "type"),
        Column(4, "schema_version", 23, type_name="integer"),
        text_column(5, "data"),
        text_column(6, "metadata"),
        text_column(7, "event_id"),
        Column(8, "recorded_at", 1184, type_name="timestamp with time zone"),
    ),
)


def unify(versions: Sequence[TopicSchema]) -> TopicSchema:
    """The latest version. State is given in it: older rows are matched by column id, missing cells take ``fill``.

    Raises ValueError on an empty sequence.
    """
    if not versions:
        raise ValueError("a topic has at least one schema version")
    return max(versions, key=lambda schema: schema.version)
