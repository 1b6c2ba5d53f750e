"""What is asked again soon, and takes no more memory than it may: rows that projections of one round look up, small
files that every step reads, parts of the catalog that were just decoded."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from typing import Any, Protocol, TypeVar


class _Sized(Protocol):
    @property
    def nbytes(self) -> int: ...


_Answer = TypeVar("_Answer", bound=_Sized)


class KeptAnswers:
    """The latest answers, ``most_bytes`` of them, and at most so many: the oldest go first."""

    def __init__(self, most_bytes: int, most_answers: int | None = None) -> None:
        self._most_bytes, self._most_answers = most_bytes, most_answers
        self._lock = threading.Lock()
        self._held: dict[Hashable, Any] = {}
        self._bytes = 0

    def get(self, question: Hashable, look_up: Callable[[], _Answer]) -> _Answer:
        """What ``look_up`` gives, or gave before. Nobody may change it: the same question has the same answer."""
        with self._lock:
            if question in self._held:
                found: _Answer = self._held[question]
                return found
        found = look_up()
        with self._lock:
            self._keep(question, found)
        return found

    def _keep(self, question: Hashable, found: _Sized) -> None:
        if question in self._held or found.nbytes > self._most_bytes:
            return
        self._held[question] = found
        self._bytes += found.nbytes
        while self._bytes > self._most_bytes or len(self._held) > (self._most_answers or len(self._held)):
            oldest = next(iter(self._held))
            self._bytes -= self._held.pop(oldest).nbytes
