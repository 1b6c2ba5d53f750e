"""Which topics got rows between two epochs: whether a result of the first is that of the second, too."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import closing
from typing import TYPE_CHECKING

from eventstore.model import TopicId

if TYPE_CHECKING:
    from eventstore.log import Store


def changed_topics(store: Store, topics: Iterable[TopicId], after: int, up_to: int) -> list[str]:
    """The topics with rows in epochs after ``after`` and up to ``up_to``."""
    if up_to <= after:
        return []
    changed = []
    for topic in topics:
        with closing(store.follow([topic], after_epoch=after, timeout=0)) as epochs:  # type: ignore[type-var]
            first = next(epochs, None)
        if first is not None and first.epoch <= up_to:
            changed.append(str(topic))
    return changed
