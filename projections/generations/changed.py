"""Which topics got rows between two epochs: whether a result of the first is that of the second, too."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from tailrace.eventstore.model.topic import TopicId

if TYPE_CHECKING:
    from tailrace.eventstore.store import Store


def changed_topics(store: Store, topics: Iterable[TopicId], after: int, up_to: int) -> list[str]:
    """The topics with rows in epochs after ``after`` and up to ``up_to``."""
    if up_to <= after:
        return []
    changed = []
    for topic in topics:
        found = store.epochs(after=after, limit=1, topics=[topic])
        if found and found[0].epoch <= up_to:
            changed.append(str(topic))
    return changed
