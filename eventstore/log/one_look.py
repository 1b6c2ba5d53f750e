"""Asking the catalog once for what a piece of work asks many times: topics, their schemas, their segments.

A refresh of one projection looks up the same few topics a hundred times, and twenty projections of a round the same
again. Inside ``OneLook.taken`` a thread gets the first answer again, for a few seconds: as if it had done all of it in
that moment. What is written, and whatever decides about a commit, is never remembered.
"""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar, cast

from tailrace.eventstore.model.position import Cut
from tailrace.eventstore.model.topic import TopicId

BELIEVED_SECONDS = 5.0
"""Files that were replaced meanwhile stay longer than that, by far (``upkeep.keep_seconds``)."""


class OneLook(threading.local):
    """The answers that this thread was given; None outside. ``kept`` are those of the last look, which was for work at
    the position ``at`` (None: at any)."""

    answers: dict[Hashable, Any] | None = None
    kept: dict[Hashable, Any]
    at: Cut | None = None
    begun: float = 0.0

    @contextmanager
    def taken(self, at: Cut | None = None) -> Iterator[None]:
        """Inside, also where it is taken again, answers are believed for ``BELIEVED_SECONDS``. So are those of the look
        before, when both are for work ``at`` one position."""
        if self.answers is not None:
            yield
            return
        if at is None or at != self.at:
            self.kept, self.begun = {}, time.monotonic()
        self.answers, self.at = self.kept, at
        try:
            yield
        finally:
            self.answers = None

    @property
    def is_taken(self) -> bool:
        """Whether answers are remembered on this thread."""
        return self.answers is not None

    def answer(self, question: Hashable, ask: Callable[[], Any]) -> Any:
        """What was answered before, or what ``ask`` gives."""
        if self.answers is None:
            return ask()
        if time.monotonic() - self.begun > BELIEVED_SECONDS:
            self.answers = self.kept = {}
            self.begun = time.monotonic()
        if question not in self.answers:
            self.answers[question] = ask()
        return self.answers[question]

    def forget(self, question: Hashable) -> None:
        """Ask again: this thread has changed it."""
        if self.answers is not None:
            self.answers.pop(question, None)


_Method = TypeVar("_Method", bound=Callable[..., Any])


def asked_once(method: _Method) -> _Method:
    """A method that reads the catalog, of what has a ``look``. Its answer may be remembered, so nobody may change
    it."""

    @functools.wraps(method)
    def asked(self: Any, *args: Any, **kwargs: Any) -> Any:
        look: OneLook = self.look
        if look.answers is None:
            return method(self, *args, **kwargs)
        asking = (*map(named, args), *((name, named(kwargs[name])) for name in sorted(kwargs)))
        return look.answer((method.__name__, *asking), lambda: method(self, *args, **kwargs))

    return cast("_Method", asked)


def named(argument: object) -> Hashable:
    """What stands for an argument in a question."""
    if isinstance(argument, Cut):
        return argument.epoch, *sorted(argument.below_lsn.items())
    return argument.text if isinstance(argument, TopicId) else argument
