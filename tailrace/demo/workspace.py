"""Where the demo plays: embedded servers, a folder with configuration and projections, and commands run in it.

Everything lives in temporary folders of the guard (``tailrace.embedded``), which outlives us and removes them.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any

import psycopg

from tailrace.config.load import load_settings
from tailrace.embedded import PostgresServer, RedisServer
from tailrace.embedded.process import GuardProcess, ServerProcess, tail_of, wait_until
from tailrace.embedded.server import write_secret
from tailrace.eventstore.errors import OperatorError
from tailrace.eventstore.settings import Settings

COMMAND_SECONDS = 120
STOP_SECONDS = 20
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


@dataclass
class Workspace:
    """The demo's servers and folder. ``source`` and ``mart`` are DSNs of two databases of one server."""

    folder: Path
    postgres: PostgresServer
    redis: RedisServer
    captures: list[ServerProcess] = field(default_factory=list)

    @property
    def source(self) -> str:
        return self.postgres.dsn("shop")

    @property
    def mart(self) -> str:
        return self.postgres.dsn("mart")

    @property
    def config(self) -> Path:
        return self.folder / "tailrace.toml"

    @property
    def passfile(self) -> Path:
        """libpq's, for clients of the server."""
        return self.folder / "pgpass"

    @property
    def capture_log(self) -> Path:
        return self.folder / "capture.log"

    def settings(self) -> Settings:
        return load_settings(self.config)

    def run(self, *arguments: str) -> list[Any]:
        """Run a command as a user would, and return its JSON documents. Raises OperatorError when it fails."""
        argv = [sys.executable, "-m", "tailrace", "--config", str(self.config), "--json", *arguments]
        done = subprocess.run(
            argv, capture_output=True, text=True, timeout=COMMAND_SECONDS, check=False,
            env=_environment(),
        )  # fmt: skip
        if done.returncode:
            raise OperatorError(
                f"tailrace {' '.join(arguments)} ended with {done.returncode}: {done.stderr.strip()[-2000:]}",
                hint="run the demo with --keep, then the command by hand",
            )
        return [json.loads(line) for line in done.stdout.splitlines()]

    def start_capture(self) -> ServerProcess:
        """``tailrace capture`` as a process of its own. The guard starts it: it ends with us, however we end."""
        argv = [sys.executable, "-m", "tailrace", "--config", str(self.config), "capture"]
        process = ServerProcess(argv, log=self.capture_log, environment=_environment())
        self.captures.append(process)
        return process

    def require_alive(self, capture: ServerProcess) -> None:
        """Raises OperatorError, with the end of its log, when the capture has ended by itself."""
        code = capture.poll()
        if code is not None:
            raise OperatorError(
                f"the demo's capture ended with {code}; its log ends:\n{tail_of(self.capture_log)}",
                hint="this is what the demo is to show, so it is a bug: please report it",
            )

    def stop_captures(self) -> None:
        for process in self.captures:
            if process.poll() is None:
                process.signal(signal.SIGTERM)
        for process in self.captures:
            if not wait_until(lambda process=process: process.poll() is not None, STOP_SECONDS):  # type: ignore[misc]
                process.kill()


@contextmanager
def workspace() -> Iterator[Workspace]:
    """Servers started, databases and files made; all gone afterwards, however it ends."""
    with ExitStack() as stack:
        folder = GuardProcess.current().folder()
        stack.callback(lambda: GuardProcess.current().remove(folder))
        # fsync stays on: the demo kills processes and says that nothing is lost.
        postgres = stack.enter_context(PostgresServer())
        redis = stack.enter_context(RedisServer())
        made = Workspace(folder, postgres, redis)
        with psycopg.connect(postgres.dsn(), autocommit=True) as connection:
            connection.execute("CREATE DATABASE shop")
            connection.execute("CREATE DATABASE mart")
        _write_files(made)
        with psycopg.connect(made.source) as connection:
            connection.execute(shop_file("schema.sql").encode())
        stack.callback(made.stop_captures)
        yield made


def _environment() -> dict[str, str]:
    """Ours, without what would choose another project's configuration."""
    return {name: value for name, value in os.environ.items() if not name.startswith("TAILRACE_")}


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


def shop_file(name: str) -> str:
    """The text of a file of the shop, as shipped."""
    return resources.files("tailrace.demo").joinpath("shop", name).read_text(encoding="utf-8")
