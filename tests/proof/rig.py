"""A whole installation in a folder: a source, a store, a configuration file, and the real command as processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import psycopg

from tailrace.eventstore.model.position import parse_lsn
from tailrace.eventstore.settings import StoreSettings
from tailrace.eventstore.store import Store
from tests.support import forking
from tests.support.forking import Forked

STEP_SECONDS = 180  # a bound on waiting, never a measure
KILLED = -signal.SIGKILL


class Rig:
    """``source`` is the DSN of the database that is captured; ``extra`` is TOML put behind the sections made here."""

    def __init__(
        self,
        folder: Path,
        source: str,
        *,
        tables: tuple[str, ...] = ("public.*",),
        catalog: str = "",
        options: str = "",
        extra: str = "",
    ) -> None:
        self.folder = folder
        self.source = source
        folder.mkdir(parents=True, exist_ok=True)
        self.settings = StoreSettings(
            name="proof", catalog=catalog or "sqlite:///catalog.db", segments=Path("segments")
        )
        patterns = ", ".join(f"'{pattern}'" for pattern in tables)
        (folder / "tailrace.toml").write_text(
            f'[store]\nname = "proof"\ncatalog = "{self.settings.catalog}"\nsegments = "segments"\n\n'
            f'[sources.shop]\nkind = "postgres"\ndsn = "{source}"\ntables = [{patterns}]\n{options}\n{extra}\n'
        )

    def command(self, *words: str) -> list[str]:
        return [sys.executable, "-m", "tailrace", "--config", str(self.folder / "tailrace.toml"), *words]

    def run(self, *words: str, code: int = 0, env: Mapping[str, str] | None = None) -> str:
        """Run to the end; the exit code must be ``code``. Gives standard output."""
        return self._run(self.command(*words), code, env or {})

    def python(self, program: str, *arguments: str) -> str:
        """The same of a program's text."""
        return self._run([sys.executable, "-c", program, *arguments], 0, {})

    def _run(self, argv: Sequence[str], code: int, env: Mapping[str, str]) -> str:
        done = forking.run(argv, env={**os.environ, **env}, timeout=4 * STEP_SECONDS)
        words = " ".join(argv[2:])
        assert done.returncode == code, f"{words} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}"
        return done.stdout

    @contextmanager
    def running(self, *words: str, env: Mapping[str, str] | None = None) -> Iterator[subprocess.Popen[str]]:
        """The command as a process that is surely gone afterwards; its output is in ``<first word>.log``."""
        with self.process(words[0], self.command(*words), env=env) as process:
            yield process

    @contextmanager
    def process(
        self, name: str, argv: Sequence[str], env: Mapping[str, str] | None = None
    ) -> Iterator[subprocess.Popen[str]]:
        """The same of any Python; its output is in ``<name>.log``."""
        with (self.folder / f"{name}.log").open("a") as log:
            process = Forked(argv, env={**os.environ, **(env or {})}, stdout=log, stderr=log, text=True)
            try:
                yield process
            finally:
                if process.poll() is None:
                    process.kill()
                process.wait()

    def stop(self, process: subprocess.Popen[str]) -> None:
        """A clean stop, as an operator asks for it."""
        process.send_signal(signal.SIGTERM)
        assert process.wait(STEP_SECONDS) == 0, self.output("capture")

    def output(self, command: str) -> str:
        return (self.folder / f"{command}.log").read_text()

    def store(self) -> Store:
        return Store.open(self.settings, root=self.folder)

    def position(self) -> int:
        with psycopg.connect(self.source, autocommit=True) as connection:
            row = connection.execute("SELECT pg_current_wal_flush_lsn()::text").fetchone()
        assert row is not None
        return parse_lsn(row[0])

    def wait_captured(self, process: subprocess.Popen[str]) -> None:
        """Until all that the source has committed by now is in the log."""
        target = self.position()

        def captured() -> bool:
            assert process.poll() is None, f"capture ended with {process.poll()}: {self.output('capture')}"
            with self.store() as store:
                state = store.source("shop")
            return state is not None and state.loaded and state.through_lsn >= target

        wait_until(captured, "the log reaches the source's position")


def wait_until(condition: Callable[[], bool], what: str, seconds: float = STEP_SECONDS) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds} s: {what}"
        time.sleep(0.1)
