"""The starter also runs the Postgres of the operating system, which has what the packaged one lacks."""

from __future__ import annotations

import psycopg
import pytest

from tests.fixtures.servers import ServerFactory
from tests.support.installed import system_programs


@pytest.mark.servers
def test_the_systems_postgres_runs_with_ssl_and_icu_built_in(postgres_server: ServerFactory) -> None:
    server = postgres_server(bin_dir=system_programs())
    with psycopg.connect(server.dsn(), autocommit=True) as connection:
        assert connection.info.server_version // 10_000 == int(system_programs().parent.name)
        assert connection.execute("SHOW wal_level").fetchone() == ("logical",)
        assert connection.execute("SHOW ssl_library").fetchone() == ("OpenSSL",)
        connection.execute("CREATE COLLATION german (provider = icu, locale = 'de')")
