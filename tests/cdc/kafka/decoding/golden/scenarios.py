"""What is recorded: tables of Postgres, changes of them, and how Debezium is configured."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from tailrace.cdc.kafka.topics.declaration import (
    BinaryMode,
    DecimalMode,
    Form,
    HstoreMode,
    IntervalMode,
    Modes,
    TimeMode,
)
from tests.cdc.columnar.values.every_type import EDGES, EDGES_BY_TYPMOD, EDGES_SINCE_15

_LONG = 200  # longer values are left out

TYPES = {
    "boolean": "boolean", "smallint": "smallint", "integer": "integer", "bigint": "bigint", "oid": "oid",
    "real": "real", "double": "double precision", "numeric": "numeric", "n_12_2": "numeric(12,2)",
    "n_38_38": "numeric(38,38)", "n_5_m2": "numeric(5,-2)", "money": "money", "text": "text",
    "varchar": "character varying(3)", "char": "character(10)", "one_char": '"char"', "name": "name",
    "bytea": "bytea", "date": "date", "time": "time without time zone",
    "time_2": "time(2) without time zone", "stamp": "timestamp without time zone",
    "stamp_0": "timestamp(0) without time zone", "stamptz": "timestamp with time zone",
    "stamptz_3": "timestamp(3) with time zone", "timetz": "time with time zone", "interval": "interval",
    "bit": "bit", "bit_3": "bit(3)", "uuid": "uuid", "json": "json", "jsonb": "jsonb", "inet": "inet",
    "cidr": "cidr", "macaddr": "macaddr", "macaddr8": "macaddr8", "point": "point", "tsvector": "tsvector",
    "hstore": "hstore", "citext": "citext", "ltree": "ltree",
}  # fmt: skip
"""Columns, by name, whose values are those of ``every_type``."""
MORE = {
    "int4range": ("int4range", ["empty", "[1,5)", "(,)"]),
    "numrange": ("numrange", ["[1.5,2.50]", "(,0)"]),
    "tstzrange": ("tstzrange", ["[2024-01-01 00:00:00+02,infinity)"]),
    "mood": ("public.mood", ["glad", "so, so", ""]),
    "amount": ("public.amount", ["1.50", "-9999999.99"]),
    "integers": ("integer[]", ["{}", "{1,NULL,-3}"]),
    "texts": ("text[]", ["{}", '{a,NULL,"NULL","","a,b \\"c\\" \\\\"}']),
    "numerics": ("numeric(5,2)[]", ["{1.50,NULL,-999.99}"]),
    "days": ("date[]", ["{2024-02-29,0001-01-01,9999-12-31}"]),
    "times": ("time[]", ["{00:00:00,23:59:59.999999}"]),
    "stamps": ("timestamp[]", ['{"2024-02-29 12:34:56.789012",NULL}']),
    "stamptzs": ("timestamptz[]", ['{"2024-02-29 12:34:56.5+02"}']),
    "booleans": ("boolean[]", ["{t,f,NULL}"]),
    "bytes": ("bytea[]", ['{"\\\\xdead","\\\\x"}']),
    "uuids": ("uuid[]", ["{00000000-0000-0000-0000-000000000000}"]),
    "jsons": ("jsonb[]", ['{"{\\"a\\": [1, \\"b\\"]}"}']),
    "reals": ("real[]", ["{0.1,NaN,-Infinity}"]),
    "doubles": ("double precision[]", ["{1e300,5e-324}"]),
    "moods": ("public.mood[]", ['{glad,"so, so"}']),
    "inets": ("inet[]", ["{10.0.0.1/8}"]),
}
STOPS = {("timetz", "-15:59:59"), ("timetz", "+15:59:59"), ("interval", "2562047788:")}
"""Values, by column and a part of them, at which Debezium itself stops."""
LONG = "(SELECT string_agg(md5(i::text), '') FROM generate_series(1, 90) i)"
TOASTED = {
    "word": ("text", LONG),
    "data": ("bytea", f"decode({LONG} || {LONG}, 'hex')"),
    "words": ("text[]", "(SELECT array_agg(md5(i::text)) FROM generate_series(1, 90) i)"),
    "numbers": ("integer[]", "(SELECT array_agg(i * 7919) FROM generate_series(1, 900) i)"),
    "document": ("jsonb", f"to_jsonb({LONG})"),
    "pairs": ("hstore", f"hstore('a', {LONG})"),
    "ids": ("uuid[]", "(SELECT array_agg(md5(i::text)::uuid) FROM generate_series(1, 200) i)"),
    "needed": ("text NOT NULL", LONG),
}

TABLES = [
    *(f"CREATE EXTENSION {name}" for name in ("hstore", "citext", "ltree")),
    "CREATE TYPE mood AS ENUM ('glad', 'so, so', '')",
    "CREATE DOMAIN amount AS numeric(9,2)",
    "CREATE TABLE every (id integer PRIMARY KEY, "
    + ", ".join(f"{name} {kind}" for name, kind in {**TYPES, **{n: k for n, (k, _) in MORE.items()}}.items())
    + ")",
    "CREATE TABLE toasted (id integer PRIMARY KEY, v integer, "
    + ", ".join(f"{name} {kind}" for name, (kind, _) in TOASTED.items())
    + ")",
    *(f"ALTER TABLE toasted ALTER {name} SET STORAGE EXTERNAL" for name in TOASTED),
    "CREATE TABLE whole (id integer PRIMARY KEY, v integer, word text, needed text NOT NULL)",
    "ALTER TABLE whole REPLICA IDENTITY FULL, ALTER word SET STORAGE EXTERNAL",
    "CREATE TABLE bag (v integer, word text)",
    "ALTER TABLE bag REPLICA IDENTITY FULL",
    "CREATE TABLE pairs (b text, v text, a numeric(6,2), PRIMARY KEY (a, b))",
    "CREATE TABLE altered (id bigint PRIMARY KEY, word text)",
    "INSERT INTO pairs SELECT 'x' || i, 'loaded', i FROM generate_series(1, 5) i",
    "INSERT INTO whole SELECT i, i, 'loaded', 'y' FROM generate_series(11, 13) i",
]


def _inserts() -> Iterator[str]:
    values = {name: [*_edges(name, kind)] for name, kind in TYPES.items()}
    values |= {name: found for name, (_, found) in MORE.items()}
    for row in range(max(map(len, values.values())) + 1):  # the last is all NULL
        cells = [_literal(found[row]) if row < len(found) else "NULL" for found in values.values()]
        yield f"INSERT INTO every VALUES ({row}, {', '.join(cells)})"  # noqa: S608


def _edges(name: str, kind: str) -> Iterator[str]:
    for edges in (EDGES, EDGES_BY_TYPMOD, EDGES_SINCE_15):
        for edge in edges.get(kind, ()):
            if len(edge) <= _LONG and not any(name == column and part in edge for column, part in STOPS):
                yield edge


def _literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


STATEMENTS = [
    *_inserts(),
    f"INSERT INTO toasted VALUES (1, 1, {', '.join(value for _, value in TOASTED.values())})",  # noqa: S608
    "UPDATE toasted SET v = 2",
    "UPDATE toasted SET id = 2",
    "UPDATE toasted SET word = 'short', pairs = NULL",
    "UPDATE toasted SET id = 3, v = 3; UPDATE toasted SET numbers = '{1}'",
    "DELETE FROM toasted",
    f"INSERT INTO whole VALUES (1, 1, {LONG}, 'x')",  # noqa: S608
    "UPDATE whole SET v = 2 WHERE id = 1",
    "UPDATE whole SET id = 2 WHERE id = 1",
    "UPDATE whole SET word = NULL WHERE id = 2; DELETE FROM whole WHERE id = 2",
    "INSERT INTO bag VALUES (1, 'a'), (1, 'a'), (NULL, NULL)",
    "UPDATE bag SET word = 'b' WHERE v = 1; UPDATE bag SET word = word",
    "DELETE FROM bag WHERE v IS NULL",
    "INSERT INTO pairs VALUES ('x', 'v', 1.5); UPDATE pairs SET v = 'w' WHERE b = 'x'",
    "UPDATE pairs SET a = 2.25 WHERE b = 'x'; DELETE FROM pairs WHERE b = 'x2'",
    "BEGIN; INSERT INTO pairs VALUES ('y', 'v', 7); DELETE FROM pairs WHERE b = 'y'; COMMIT",
    "INSERT INTO pairs SELECT 'z' || i, NULL, i FROM generate_series(1, 4) i",
    "TRUNCATE bag, pairs",
    "INSERT INTO pairs VALUES ('after', 'truncate', 0)",
    "INSERT INTO altered VALUES (1, 'a')",
    "ALTER TABLE altered ADD COLUMN n integer; UPDATE altered SET n = 5",
    "ALTER TABLE altered RENAME word TO called; UPDATE altered SET n = 6",
    "ALTER TABLE altered DROP COLUMN n; INSERT INTO altered VALUES (2, 'b')",
    "SELECT pg_logical_emit_message(true, 'mine', 'hello'), pg_logical_emit_message(true, 'mine', '\\x00ff'::bytea)",
    "SELECT pg_logical_emit_message(false, 'mine', 'outside of transactions')",
    "SELECT pg_logical_emit_message(true, '', '')",
]

_UNWRAP = {"transforms": "row", "transforms.row.type": "io.debezium.transforms.ExtractNewRecordState"}


@dataclass(frozen=True)
class Configuration:
    """Settings of the connector, and what is declared of its records. ``told``: records carry their schemas. ``avro``:
    they are in Avro."""

    modes: Modes = field(default_factory=Modes)
    told: bool = False
    avro: bool = False
    form: Form = Form.ENVELOPE
    settings: dict[str, str] = field(default_factory=dict)

    @property
    def connector(self) -> dict[str, str]:
        return {
            "converter.schemas.enable": str(self.told).lower(),
            "decimal.handling.mode": self.modes.decimal,
            "time.precision.mode": self.modes.time,
            "binary.handling.mode": self.modes.binary,
            "interval.handling.mode": self.modes.interval,
            "hstore.handling.mode": self.modes.hstore,
            "column.exclude.list": "public.every.interval"
            if self.modes.interval is IntervalMode.NUMERIC
            else "",
            **self.settings,
        }


CONFIGURATIONS = {
    "defaults": Configuration(),
    "told": Configuration(
        Modes(interval=IntervalMode.STRING), told=True, settings={"provide.transaction.metadata": "true"}
    ),
    "strings": Configuration(
        Modes(DecimalMode.STRING, TimeMode.ISOSTRING, BinaryMode.BASE64, IntervalMode.STRING, HstoreMode.MAP)
    ),
    "doubles": Configuration(
        Modes(DecimalMode.DOUBLE, TimeMode.CONNECT, BinaryMode.HEX, IntervalMode.STRING), told=True
    ),
    "micros": Configuration(
        Modes(time=TimeMode.ADAPTIVE_TIME_MICROSECONDS, binary=BinaryMode.BASE64_URL_SAFE)
    ),
    "nanos": Configuration(Modes(time=TimeMode.NANOSECONDS)),
    "microseconds": Configuration(Modes(time=TimeMode.MICROSECONDS)),
    "rewritten": Configuration(
        form=Form.FLATTENED,
        settings={
            **_UNWRAP,
            "transforms.row.delete.tombstone.handling.mode": "rewrite-with-tombstone",
            "transforms.row.add.fields": "op,table,lsn,source.ts_us,source.txId,source.snapshot",
        },
    ),
    "flattened": Configuration(told=True, form=Form.FLATTENED, settings=_UNWRAP),
    "avro": Configuration(
        Modes(interval=IntervalMode.STRING), avro=True, settings={"provide.transaction.metadata": "true"}
    ),
    "avro_strings": Configuration(
        Modes(DecimalMode.STRING, TimeMode.ISOSTRING, BinaryMode.BASE64, IntervalMode.STRING, HstoreMode.MAP),
        avro=True,
    ),
    "avro_doubles": Configuration(
        Modes(DecimalMode.DOUBLE, TimeMode.CONNECT, BinaryMode.HEX, IntervalMode.STRING), avro=True
    ),
    "avro_flattened": Configuration(avro=True, form=Form.FLATTENED, settings=_UNWRAP),
}
