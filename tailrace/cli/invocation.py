"""One run of the command line: its global options, and the settings and the store they lead to."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from tailrace.eventstore.errors import TailraceError, UsageError
from tailrace.terminal import Output

if TYPE_CHECKING:
    import typer

    from tailrace.config.load import Configuration
    from tailrace.eventstore.settings import Settings, SourceSettings
    from tailrace.eventstore.store import Store

NOTHING_TO_DO = 3


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
            raise unknown(
                "source", name, sources, f"it must be a table [sources.{name}] in {self.configuration.path}"
            )
        return name, sources[name]

    def sources(self, names: list[str] | None) -> list[tuple[str, SourceSettings]]:
        """The named sources, or all."""
        chosen: list[str | None] = [*(names or sorted(self.settings.sources))] or [None]
        return [self.source(name) for name in dict.fromkeys(chosen)]

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


def of(context: typer.Context) -> Invocation:
    """The invocation a command belongs to."""
    invocation = context.find_root().obj
    assert isinstance(invocation, Invocation)
    return invocation


def unknown(kind: str, name: str, known: Iterable[str], otherwise: str) -> UsageError:
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
