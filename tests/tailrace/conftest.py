"""Commands as a user runs them: a folder with a ``tailrace.toml``, a process per command, forked unless a test is
about the start of one."""

from __future__ import annotations

import json
import os
import pty
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.support import REPOSITORY, forking
from tests.support.forking import Forked
from tests.support.wheels import build_wheel

SECONDS = 240
PASSWORD = (
    f"S3cret-{secrets.token_hex(8)}"  # in every dsn; the embedded server asks for none, so it does no harm
)
SCHEMA = """
CREATE TABLE customers (id bigint PRIMARY KEY, name text);
CREATE TABLE orders (id bigint PRIMARY KEY, customer_id bigint, amount numeric(12, 2));
INSERT INTO customers SELECT n, 'customer ' || n FROM generate_series(1, 20) n;
INSERT INTO orders SELECT n, 1 + n % 20, n FROM generate_series(1, 100) n;
"""
TOGETHER = """
import json, sys
from tailrace.cli.main import run

for words in json.loads(sys.argv[1]):
    code = run(words)
    print("", code, "", sep="\\0", end="", flush=True)
    print(end="\\0", file=sys.stderr, flush=True)
"""


@dataclass(frozen=True, slots=True)
class Done:
    """A command that has ended."""

    code: int
    out: str
    err: str

    @property
    def documents(self) -> list[Any]:
        return [json.loads(line) for line in self.out.splitlines()]


@dataclass
class Project:
    """A user's folder. ``run`` is the command line in it; whatever is wrong, no traceback and no password is shown."""

    folder: Path
    environment: dict[str, str] = field(default_factory=dict)
    running: list[subprocess.Popen[str]] = field(default_factory=list)
    forked: bool = True
    python: str | Path = sys.executable

    def configure(self, text: str) -> None:
        (self.folder / "tailrace.toml").write_text(text, encoding="utf-8")

    def module(self, name: str, text: str) -> None:
        (self.folder / f"{name}.py").write_text(text, encoding="utf-8")

    def run(self, *arguments: str, environment: Mapping[str, str] | None = None) -> Done:
        return self._done(self._argv(arguments), environment)

    def together(self, *commands: Sequence[str]) -> list[Done]:
        """The same of several in one process, in which Spark starts once."""
        done = self._done([str(self.python), "-c", TOGETHER, json.dumps(commands)], None)
        assert done.code == 0, done.err
        *outs, _ = done.out.split("\0")
        *errs, _ = done.err.split("\0")
        parts = zip(outs[::2], outs[1::2], errs, strict=True)
        return [Done(int(code), out, err) for out, code, err in parts]

    def _done(self, argv: list[str], environment: Mapping[str, str] | None) -> Done:
        done = forking.run(
            argv, cwd=self.folder, env=self._environment(environment), timeout=SECONDS, start=self._start
        )
        assert "Traceback" not in done.stdout + done.stderr, done.stderr
        assert PASSWORD not in done.stdout + done.stderr
        return Done(done.returncode, done.stdout, done.stderr)

    def ok(self, *arguments: str) -> Done:
        done = self.run(*arguments)
        assert done.code == 0, done.err + done.out
        return done

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        process = self._start(
            self._argv(arguments), cwd=self.folder, env=self._environment(None), stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
        )  # fmt: skip
        self.running.append(process)
        return process

    def on_terminal(self, *arguments: str) -> Done:
        """The same with a terminal for standard error."""
        ours, theirs = pty.openpty()
        shown: list[bytes] = []

        def read() -> None:
            with suppress(OSError):  # how Linux says that nobody has the other end any more
                while piece := os.read(ours, 4096):
                    shown.append(piece)

        reader = threading.Thread(target=read)
        process = subprocess.Popen(
            self._argv(arguments), cwd=self.folder, env=self._environment({"TERM": "xterm"}),
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=theirs, text=True,
        )  # fmt: skip
        os.close(theirs)
        reader.start()
        self.running.append(process)
        out, _ = process.communicate(timeout=SECONDS)
        reader.join()
        os.close(ours)
        return Done(process.returncode, out, b"".join(shown).decode())

    @property
    def _start(self) -> type[subprocess.Popen[str]]:
        return Forked if self.forked else subprocess.Popen

    @staticmethod
    def end(process: subprocess.Popen[str], number: signal.Signals) -> Done:
        process.send_signal(number)
        out, err = process.communicate(timeout=SECONDS)
        assert "Traceback" not in out + err, err
        assert PASSWORD not in out + err
        return Done(process.returncode, out, err)

    def _argv(self, arguments: tuple[str, ...]) -> list[str]:
        return [str(self.python), "-m", "tailrace", *arguments]

    def _environment(self, more: Mapping[str, str] | None) -> dict[str, str]:
        ours = {name: value for name, value in os.environ.items() if not name.startswith("TAILRACE_")}
        house = str(REPOSITORY)
        return {**ours, "PYTHONPATH": house, "COLUMNS": "100", **self.environment, **(more or {})}


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file that a user installs."""
    return build_wheel(tmp_path_factory.mktemp("wheel"))


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Project]:
    """An empty folder; processes that were started in it are ended."""
    made = Project(tmp_path)
    yield made
    for process in made.running:
        process.kill()
        process.wait()
        for pipe in (process.stdout, process.stderr):
            if pipe is not None:
                pipe.close()


@pytest.fixture
def shop(project: Project, database: str) -> Iterator[Project]:
    """A project with one source of two tables and one Postgres sink, nothing prepared yet. The password of their dsn
    gets into no file."""
    with psycopg.connect(database) as connection:
        connection.execute(SCHEMA)
    project.environment["SHOP_DSN"] = with_password(database)
    name = database.rpartition("_")[2]  # slots belong to the server: one name per database
    project.configure(
        f"""
        store.name = "t{name}"
        [sources.shop]
        dsn = "${{SHOP_DSN}}"
        [sinks.mart]
        kind = "postgres"
        dsn = "${{SHOP_DSN}}"
        """
    )
    yield project
    assert files_with(project.folder, PASSWORD) == []


def with_password(dsn: str) -> str:
    return dsn.replace("postgres@", f"postgres:{PASSWORD}@", 1)


def files_with(folder: Path, text: str) -> list[Path]:
    """Files below a folder that hold a text."""
    files = (path for path in folder.rglob("*") if path.is_file())
    return [path for path in files if text.encode() in path.read_bytes()]


def streams(project: Project) -> bool:
    """Does a capture use the slot of the project's only source? Between its load and its stream it leaves it free."""
    (source,) = project.ok("status", "--json").documents[0]["sources"]
    return source["ladder"] is not None and source["ladder"]["sent"] is not None


def until(condition: Callable[[], bool], seconds: float = 120.0) -> None:
    """Poll until it holds; fail after ``seconds``."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.1)
