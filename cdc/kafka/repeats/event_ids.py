"""Which events came before? A connector that is restarted sends events again, under their ids.

Nothing else tells it: the router leaves out where an event stood in Postgres. So the ids of a topic's latest events are
remembered, up to a number; they are read from the log when a session first needs them. One that comes again from
further back is not noticed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from uuid import UUID

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tailrace.eventstore.model.topic import TopicId
from tailrace.eventstore.store import Store

Ids = NDArray[np.bytes_]
_SIZE = 16
_CHUNK = 65_536  # ids that are sorted together
_SPANS = (64, 1024, 16_384, 1 << 62)  # epochs that are looked at, one after the other


class EventIds:
    """``latest`` gives the ids of a topic's events in the log, the latest at the end, at least so many if there are."""

    def __init__(self, most: int, latest: Callable[[TopicId, int], Sequence[bytes]]) -> None:
        self._most, self._latest = most, latest
        self._topics: dict[TopicId, _Remembered] = {}

    def fresh(self, topic: TopicId, rows: pa.Table) -> NDArray[np.bool_]:
        """Which of these events are new; from now on none of them is."""
        known = self._topics.get(topic)
        if known is None:
            known = self._topics[topic] = _Remembered(self._most)
            known.add(self._latest(topic, self._most))
        return known.take(_ids_in(rows))


class _Remembered:
    """The latest ids: those that came last as a set, all before them in sorted chunks."""

    def __init__(self, most: int) -> None:
        self._chunks: deque[Ids] = deque(maxlen=max(1, -(-most // _CHUNK)))
        self._young: dict[bytes, None] = {}

    def add(self, ids: Sequence[bytes]) -> None:
        self._young |= dict.fromkeys(ids)
        while len(self._young) >= _CHUNK:
            known = list(self._young)
            self._chunks.append(np.sort(_array(known[:_CHUNK])))
            self._young = dict.fromkeys(known[_CHUNK:])

    def take(self, ids: Sequence[bytes]) -> NDArray[np.bool_]:
        found, wanted = np.zeros(len(ids), bool), _array(ids)
        for chunk in self._chunks:
            at = np.minimum(np.searchsorted(chunk, wanted), len(chunk) - 1)
            found |= chunk[at] == wanted
        new = dict[bytes, None]()
        for place, each in enumerate(ids):
            if not found[place]:
                found[place] = each in self._young or each in new
                new[each] = None
        self.add([each for each in new if each not in self._young])
        return ~found


def _array(ids: Sequence[bytes]) -> Ids:
    return np.array(ids, f"S{_SIZE}")


def _ids_in(rows: pa.Table) -> list[bytes]:
    texts = pc.struct_field(rows["after"], "event_id").to_pylist()
    return [UUID(text).bytes for text in texts if text is not None]


def latest_ids(store: Store, topic: TopicId, most: int) -> list[bytes]:
    """The ids of a topic's events in the log, the latest at the end, at least so many if there are."""
    if topic not in {info.id for info in store.topics(topic.source)}:
        return []
    head, parts, count = store.head(), list[list[bytes]](), 0
    upto = head.epoch if head is not None else 0
    for span in _SPANS:
        after = max(0, upto - span)
        found = [each for ids in _read(store, topic, after, upto) for each in ids]
        parts.insert(0, found)
        count += len(found)
        if count >= most or not after:
            break
        upto = after
    return [each for ids in parts for each in ids]


def _read(store: Store, topic: TopicId, after: int, upto: int) -> Iterator[list[bytes]]:
    """Of these epochs; retention may have removed the first of them."""
    start = store.log_start(topic).epoch
    if upto > start:
        first = after if after >= start else 0
        for batch in store.read(topic, after_epoch=first, cut=store.cut(upto), columns=["after"]):
            yield _ids_in(pa.Table.from_batches([batch]))
