"""A source may have ten thousand tables: what is asked of catalog and server does not grow with their number."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest
from sqlalchemy import Engine, event

from tests.support.capturing import Site, execute


def make_tables(site: Site, prefix: str, count: int) -> None:
    execute(site.dsn, *(f"CREATE TABLE {prefix}{number} (id int PRIMARY KEY)" for number in range(count)))


def count_statements(site: Site) -> int:
    """How many statements ``init`` gives to the catalog and to the source."""
    said: list[object] = []
    run = psycopg.Cursor.execute

    def listen(*_: object) -> None:
        said.append("catalog")

    def execute_counted(cursor: psycopg.Cursor[Any], *arguments: Any, **options: Any) -> Any:
        said.append("source")
        return run(cursor, *arguments, **options)

    event.listen(Engine, "before_cursor_execute", listen)
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(psycopg.Cursor, "execute", execute_counted)
            site.init()
    finally:
        event.remove(Engine, "before_cursor_execute", listen)
    return len(said)


def test_init_takes_up_many_tables_with_as_many_statements_as_a_few(site: Site) -> None:
    make_tables(site, "first", 1)
    site.init()
    make_tables(site, "few", 2)
    few = count_statements(site)
    make_tables(site, "many", 30)
    many = count_statements(site)
    assert few > 0 and many == few
    with site.open() as store:
        assert len(store.topics()) == 33
