"""Where the demo plays: embedded servers, a folder with configuration and projections.

Everything lives in temporary folders of the guard (``tailrace.embedded``), which outlives us and removes them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import psycopg

from tailrace.demo.commands import CommandFolder, shop_file
from tailrace.embedded import PostgresServer, RedisServer
from tailrace.embedded.process import GuardProcess
from tailrace.embedded.server import write_secret

SHOP_FILES = ("__init__.py", "schema.sql", "projections.py")

_CONFIG = """\
[store]
name = "demo"

[sources.shop]
dsn = "{source}"

[sinks.mart]
kind = "postgres"
dsn = "{mart}"

[sinks.cache]
kind = "redis"
url = "{redis}"

[sinks.search]
kind = "search"
path = ".tailrace/search"

[projections]
modules = ["shop.projections"]

[spark]
shuffle_partitions = 4
"""


@dataclass(kw_only=True)
class Workspace(CommandFolder):
    """The demo's servers and folder. ``source`` and ``mart`` are DSNs of two databases of one server."""

    postgres: PostgresServer
    redis: RedisServer

    @property
    def source(self) -> str:
        return self.postgres.dsn("shop")

    @property
    def mart(self) -> str:
        return self.postgres.dsn("mart")

    @property
    def passfile(self) -> Path:
        """libpq's, for clients of the server."""
        return self.folder / "pgpass"


@contextmanager
def workspace() -> Iterator[Workspace]:
    """Servers started, databases and files made; all gone afterwards, however it ends."""
    with ExitStack() as stack:
        folder = GuardProcess.current().folder()
        stack.callback(lambda: GuardProcess.current().remove(folder))
        # fsync stays on: the demo kills processes and says that nothing is lost.
        postgres = stack.enter_context(PostgresServer())
        redis = stack.enter_context(RedisServer())
        made = Workspace(folder, postgres=postgres, redis=redis)
        with psycopg.connect(postgres.dsn(), autocommit=True) as connection:
            connection.execute("CREATE DATABASE shop")
            connection.execute("CREATE DATABASE mart")
        _write_files(made)
        with psycopg.connect(made.source) as connection:
            connection.execute(shop_file("schema.sql").encode())
        stack.callback(made.stop)
        yield made


def _write_files(made: Workspace) -> None:
    text = _CONFIG.format(source=made.source, mart=made.mart, redis=made.redis.url)
    made.config.write_text(text, encoding="utf-8")
    # The command line that the demo shows for psql is seen by other users; it names this file.
    server = made.postgres
    write_secret(made.passfile, f"127.0.0.1:{server.port}:*:postgres:{server.password}\n")
    package = made.folder / "shop"
    package.mkdir()
    for name in SHOP_FILES:
        (package / name).write_text(shop_file(name), encoding="utf-8")
