"""A document that goes to tantivy as JSON text is the one that is made field by field."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, get_args

import pyarrow as pa
import tantivy
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.projections.sinks.search.documents import documents, json_documents
from tailrace.projections.sinks.search.folder import KEY, KIND, ROW
from tailrace.projections.sinks.specs import FieldKind

TEXT = st.text(st.characters(codec="utf-8"))
FLOATS = st.floats() | st.integers(-(10**6), 10**6).map(lambda n: n / 100)
VALUES: list[tuple[FieldKind, pa.DataType, st.SearchStrategy[Any]]] = [
    ("text", pa.string(), TEXT),
    ("string", pa.large_string(), TEXT),
    ("i64", pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    ("f64", pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    ("f64", pa.float64(), FLOATS),
    ("f64", pa.float32(), st.floats(width=32)),
    ("f64", pa.decimal128(38, 10), st.decimals(-(10**27), 10**27, places=10)),
    ("f64", pa.decimal128(12, 2), st.decimals(-(10**9), 10**9, places=2)),
    ("bool", pa.bool_(), st.booleans()),
    ("date", pa.date32(), st.dates()),
    ("date", pa.timestamp("us"), st.datetimes()),
    ("date", pa.timestamp("us", "Asia/Kolkata"), st.integers(-(10**16), 10**17)),
    ("date", pa.timestamp("s", "UTC"), st.integers(-(10**10), 10**11)),
]
COLUMNS = VALUES + [
    (kind, pa.list_(inner), st.lists(st.none() | each, max_size=3)) for kind, inner, each in VALUES
]


def kept(kind: FieldKind) -> tantivy.Schema:
    """A schema whose documents can be read again as a whole."""
    builder = tantivy.SchemaBuilder()
    builder.add_text_field(KEY, stored=True).add_text_field(KIND, stored=True).add_bytes_field(
        ROW, stored=True
    )
    match kind:
        case "text" | "string":
            builder.add_text_field("a field", stored=True)
        case "i64":
            builder.add_integer_field("a field", stored=True)
        case "f64":
            builder.add_float_field("a field", stored=True)
        case "bool":
            builder.add_boolean_field("a field", stored=True)
        case "date":
            builder.add_date_field("a field", stored=True)
    return builder.build()


SCHEMAS = {kind: kept(kind) for kind in get_args(FieldKind)}


def read_back(schema: tantivy.Schema, made: Sequence[str | tantivy.Document]) -> list[str]:
    """What an index holds, in order, with rows unpacked; a float's sign shows."""
    index = tantivy.Index(schema)
    writer = index.writer(15_000_000, 1)
    for each in made:
        if isinstance(each, str):
            writer.add_json(each)
        else:
            writer.add_document(each)
    writer.commit()
    index.reload()
    searcher = index.searcher()
    hits = searcher.search(tantivy.Query.all_query(), limit=len(made) + 1).hits
    held = [
        searcher.doc(address).to_dict()
        for address in sorted((address for _, address in hits), key=lambda at: (at.segment_ord, at.doc))
    ]
    return [repr({**each, ROW: json.loads(bytes(each[ROW][0]))}) for each in held]


@st.composite
def fields(draw: st.DrawFn) -> tuple[FieldKind, pa.Table]:
    kind, column, values = draw(st.sampled_from(COLUMNS))
    cells = draw(st.lists(st.none() | values, min_size=1, max_size=20))
    keys = draw(st.lists(TEXT, min_size=len(cells), max_size=len(cells)))
    schema = pa.schema([("key", pa.string()), ("a field", column)])
    return kind, pa.table({"key": keys, "a field": pa.array(cells, column)}, schema)


@settings(max_examples=60)
@given(fields())
def test_as_text_it_is_the_document_made_field_by_field(given: tuple[FieldKind, pa.Table]) -> None:
    kind, rows = given
    keys = rows["key"].combine_chunks()
    texts = json_documents({"a field": kind}, keys, rows)
    told = texts.is_valid()
    made = documents({"a field": kind}, keys.filter(told), rows.filter(told))
    held = read_back(SCHEMAS[kind], [*texts.drop_null().to_pylist(), *made])
    assert len(held) == 2 * len(made)
    assert held[: len(made)] == held[len(made) :]


def test_only_what_json_cannot_tell_exactly_is_made_field_by_field() -> None:
    plain = [8231.12, -0.0, 1e9, None, math.nan, 0.1]
    awkward = [math.inf, 1e300, 1 / 3, 2.0**63]
    rows = pa.table({"a field": [*plain, *awkward]})
    keys = pa.array([str(n) for n in range(rows.num_rows)])
    told = json_documents({"a field": "f64"}, keys, rows).is_valid().to_pylist()
    assert told == [True] * len(plain) + [False] * len(awkward)
    for column in (
        pa.array([Decimal("12.50"), None], pa.decimal128(38, 2)),
        pa.array(
            [datetime(1, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, tzinfo=UTC)], pa.timestamp("us", "UTC")
        ),
    ):
        kind: FieldKind = "date" if pa.types.is_timestamp(column.type) else "f64"
        assert json_documents({"a field": kind}, keys[:2], pa.table({"a field": column})).null_count == 0
