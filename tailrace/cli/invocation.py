"""One run of the command line: its global options, and the settings and the store they lead to."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from tailrace.eventstore.errors import TailraceError, UsageError, manual_page
from tailrace.terminal import Output

if TYPE_CHECKING:
    import typer

    from tailrace.config.load import Configuration
    from tailrace.eventstore.settings import PostgresSourceSettings, Settings, SourceSettings
    from tailrace.eventstore.store import Store

NOTHING_TO_DO = 3
# Global options may stand anywhere on the line: `tailrace status --json` is what people type.
_GLOBAL_FLAGS = {"--json", "--show-values", "--verbose", "--yes"}
_GLOBAL_VALUES = {"--config", "--env"}


@dataclass
class Invocation:
    """Global options. Settings are read at the first use, so ``--help`` and ``init --example`` need no file."""

    output: Output
    config: Path | None = None
    env: str | None = None
    verbose: bool = False
    yes: bool = False

    @cached_property
    def configuration(self) -> Configuration:
        from tailrace.config.load import load_configuration

        return load_configuration(self.config, self.env)

    @property
    def settings(self) -> Settings:
        return self.configuration.settings

    @property
    def catalog_label(self) -> str:
        """The catalog's address without its password."""
        from sqlalchemy.engine import make_url

        return make_url(self.settings.store.catalog).render_as_string(hide_password=True)

    @contextmanager
    def store(self, *, create: bool = False) -> Iterator[Store]:
        """The open store. Raises OperatorError when there is none yet (the hint names ``tailrace init``)."""
        from tailrace.eventstore.store import Store

        with Store.open(self.settings.store, create=create, root=self.configuration.folder) as store:
            yield store

    def source(self, name: str | None) -> tuple[str, SourceSettings]:
        """The source called ``name``, or the only one."""
        sources = self.settings.sources
        if not sources:
            raise UsageError(
                f"{self.configuration.path} names no source", hint="add a table [sources.NAME] with its dsn"
            )
        if name is None:
            if len(sources) > 1:
                raise UsageError(
                    f"{len(sources)} sources are configured: {', '.join(sorted(sources))}",
                    hint="name one of them",
                )
            name = next(iter(sources))
        if name not in sources:
            raise unknown_name(
                "source", name, sources, f"it must be a table [sources.{name}] in {self.configuration.path}"
            )
        return name, sources[name]

    def sources(self, names: list[str] | None) -> list[tuple[str, SourceSettings]]:
        """The named sources, or all."""
        chosen: list[str | None] = [*(names or sorted(self.settings.sources))] or [None]
        return [self.source(name) for name in dict.fromkeys(chosen)]

    def postgres_source(self, name: str | None, what: str) -> tuple[str, PostgresSourceSettings]:
        """The source called ``name``, or the only one, for ``what`` only a database can be asked. Raises UsageError."""
        from tailrace.eventstore.settings import PostgresSourceSettings

        name, settings = self.source(name)
        if not isinstance(settings, PostgresSourceSettings):
            raise UsageError(
                f"source {name!r} is of the kind {settings.kind}: {what} is for sources of the kind postgres",
                hint="for topics of Kafka there are `tailrace log verify`, which proves the log, and `tailrace source"
                " reread`, which reads them again: see " + manual_page("capture/kafka.md"),
            )
        return name, settings

    def postgres_sources(self, names: Sequence[str], what: str) -> list[tuple[str, PostgresSourceSettings]]:
        """The named sources, or all of the kind postgres. Raises as ``postgres_source`` does."""
        mine = [
            name for name, settings in sorted(self.settings.sources.items()) if settings.kind == "postgres"
        ]
        chosen: list[str | None] = [*(names or mine or sorted(self.settings.sources))] or [None]
        return [self.postgres_source(name, what) for name in dict.fromkeys(chosen)]

    def confirm(self, action: str) -> None:
        """In a protected environment: ask before something that cannot be undone lightly. Raises UsageError on no."""
        if self.yes or not self.settings.protected:
            return
        where = (
            f"environment {self.configuration.env!r}"
            if self.configuration.env
            else str(self.configuration.path)
        )
        if not sys.stdin.isatty():
            raise UsageError(f"{where} is protected: {action} needs a confirmation", hint="run it with --yes")
        self.output.note(f"{where} is protected. About to {action}. Type yes to go on:")
        if sys.stdin.readline().strip() != "yes":
            raise UsageError("not confirmed, nothing was done", hint="type yes, or use --yes")


def invocation_of(context: typer.Context) -> Invocation:
    """The invocation a command belongs to."""
    invocation = context.find_root().obj
    assert isinstance(invocation, Invocation)
    return invocation


def unknown_name(kind: str, name: str, known: Iterable[str], otherwise: str) -> UsageError:
    """An error for a name that does not exist, with the nearest that does."""
    import difflib

    names = sorted(known)
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    listed = f"known: {', '.join(names)}" if names else f"there is no {kind} yet"
    hint = f"did you mean {close[0]}? ({listed})" if close else f"{listed}; {otherwise}"
    return UsageError(f"there is no {kind} {name!r}", hint=hint)


def is_missing_store(error: TailraceError) -> bool:
    """Whether opening the store failed because ``tailrace init`` has not made it yet."""
    return "tailrace init" in error.hint


@contextmanager
def stop_on_signals(stop: threading.Event) -> Iterator[threading.Event]:
    """SIGTERM and the first Ctrl-C end the work at the next commit; the event inside says that it was Ctrl-C."""
    interrupted = threading.Event()

    def handle(number: int, frame: FrameType | None) -> None:
        if number == signal.SIGINT:
            interrupted.set()
            signal.signal(signal.SIGINT, signal.default_int_handler)  # a second one does not wait
        stop.set()

    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield interrupted
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def hoist_global_options(arguments: Sequence[str]) -> list[str]:
    """``arguments`` with the global options moved to the front. Nothing behind ``--`` is touched."""
    front: list[str] = []
    rest: list[str] = []
    at = 0
    while at < len(arguments):
        word = arguments[at]
        if word == "--":
            rest += arguments[at:]
            break
        if word in _GLOBAL_FLAGS or (word.partition("=")[0] in _GLOBAL_VALUES and "=" in word):
            front.append(word)
        elif word in _GLOBAL_VALUES:
            front += arguments[at : at + 2]
            at += 1
        else:
            rest.append(word)
        at += 1
    return front + rest
