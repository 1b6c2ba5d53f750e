"""The tables of values in docs/capture/values.md are what the code does."""

from __future__ import annotations

from collections.abc import Sequence

import psycopg
import pyarrow as pa

from tailrace.cdc.columnar.values import convert
from tailrace.cdc.postgres.connect import SESSION, Address, connect
from tailrace.embedded import PostgresServer
from tailrace.eventstore.model.schema import Column, arrow_type
from tests.cdc.columnar.values.every_type import EDGES, EDGES_BY_TYPMOD
from tests.support import REPOSITORY

PAGE = REPOSITORY / "docs" / "capture" / "values.md"
EXAMPLES = 6
ARRAYS = ["{{2026-01-01,NULL},{NULL,NULL}}", "[0:0]={2026-01-01}", "{2026-01-01,infinity}"]


def test_the_table_of_types_is_what_the_code_does(postgres: PostgresServer) -> None:
    with connect(Address.parse(postgres.dsn())) as source:
        lines = ["| Postgres | Arrow | kept in `_raw`, for example |", "|---|---|---|"]
        types = source.execute(
            "SELECT t.oid::bigint, pg_catalog.format_type(t.oid, NULL) FROM pg_catalog.pg_type t"
            " WHERE t.typtype = 'b' AND t.typelem = 0 ORDER BY 2"
        ).fetchall()
        for oid, name in types:
            if arrow_type(int(str(oid))) != pa.string():
                lines.append(documented(source, str(name), int(str(oid)), EDGES[str(name)]))
        lines.append(documented(source, "numeric(12,2)", 1700, EDGES_BY_TYPMOD["numeric(12,2)"]))
        lines.append(documented(source, "date[]", 1182, ARRAYS))
    text = PAGE.read_text()
    missing = [line for line in lines if line not in text.splitlines()]
    assert missing == []


def documented(
    source: psycopg.Connection[tuple[object, ...]], name: str, oid: int, edges: Sequence[str]
) -> str:
    """The type's line: its Arrow type, and the first of the values that it cannot hold."""
    texts = []
    for edge in edges:
        cursor = source.execute(f"SELECT '{edge}'::{name}".encode())
        result = cursor.pgresult
        assert result is not None
        texts.append((result.get_value(0, 0) or b"").decode())
        typmod = result.fmod(0)
    column = Column(1, "x", oid, typmod)
    _, unfit = convert(pa.array(texts, pa.large_string()), column)
    examples = list(dict.fromkeys(texts[row] for row in unfit or ()))[:EXAMPLES]
    return f"| `{name}` | `{column.arrow}` | {', '.join(f'`{text}`' for text in examples)} |"


def test_the_table_of_settings_is_what_sessions_have() -> None:
    documented = {
        line.split("`")[1]: line.split("`")[3] if line.count("`") == 4 else ""
        for line in PAGE.read_text().splitlines()
        if line.startswith("| `") and line.split("`")[1] in SESSION
    }
    others = ("tcp_", "default_transaction_", "row_security")
    no_texts = {name for name in SESSION if name.endswith("_timeout") or name.startswith(others)}
    assert documented == {name: value for name, value in SESSION.items() if name not in no_texts}
