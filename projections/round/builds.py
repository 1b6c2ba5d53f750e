"""Projections that a process builds one after another, and the tables that several of them read.

The first of them to be built reads such a table's log, and leaves its rows in files for the others (``RoundFiles``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from tailrace.projections.definition.model import Projection, State


class Builds:
    """What is built before long. ``shared`` has the topics of the tables that more than one of them reads."""

    def __init__(self) -> None:
        self._ahead: set[str] = set()
        self.shared: frozenset[str] = frozenset()

    def plan(self, projections: Iterable[Projection]) -> None:
        """These are built next."""
        ahead = list(projections)
        read = Counter(
            topic
            for each in ahead
            for topic in {source.topic for source in each.inputs.values() if isinstance(source, State)}
        )
        self._ahead = {each.name for each in ahead}
        self.shared = frozenset(topic for topic, count in read.items() if count > 1)

    def end(self, name: str) -> bool:
        """A projection was built, or could not be. True where it was the last one."""
        was_ahead = name in self._ahead
        self._ahead.discard(name)
        if self._ahead:
            return False
        self.shared = frozenset()
        return was_ahead
