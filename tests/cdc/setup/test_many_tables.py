"""A source may have ten thousand tables: what is asked of catalog and server does not grow with their number."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import psycopg
import pytest
from sqlalchemy import Engine, event

from tailrace.cdc.postgres.errors import LOCKS_NEEDED, failure
from tailrace.embedded import PostgresServer
from tailrace.eventstore.errors import OperatorError
from tests.fixtures.servers import FAST_SETTINGS
from tests.support.capturing import RunningCapture, Site, execute, query


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


def test_a_full_table_of_locks_says_which_setting_to_raise() -> None:
    said = 'out of shared memory\nHINT:  You might need to increase "max_locks_per_transaction".'
    error = failure("53200", said, "locking tables", "the server")
    assert isinstance(error, OperatorError) and "locks" in error.message
    assert "max_locks_per_transaction" in error.hint and LOCKS_NEEDED in error.hint


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_more_tables_than_the_server_has_locks_are_captured_after_what_the_hint_says(store_dir: Path) -> None:
    few = {"max_connections": "20", "max_wal_senders": "5", "max_worker_processes": "2"}
    few |= {"max_logical_replication_workers": "1", "max_locks_per_transaction": "10"}
    with PostgresServer(settings=FAST_SETTINGS | few, trust=True) as server:
        site = Site.at(store_dir, server.dsn())
        make_tables(site, "many", 1200)
        with pytest.raises(OperatorError, match="no room for more locks") as raised:
            site.init()
        assert raised.value.hint.endswith(LOCKS_NEEDED)
        ((needed,),) = query(server.dsn(), LOCKS_NEEDED)
        server.stop()
        server.settings = {**server.settings, "max_locks_per_transaction": str(needed)}
        server.start()
        site.init()
        with RunningCapture(site) as capture:
            capture.catch_up()
            assert len(capture.store.topics()) == 1200
