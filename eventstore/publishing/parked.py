"""Keys that wait: a record of theirs is one that the destination does not take, and later ones stay behind it.

Only where the first of them is in the log is kept, in the destination and in the same transaction as the position. What
is sent when the destination takes it is read from the log again.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tailrace.eventstore.errors import IntegrityError, OperatorError
from tailrace.eventstore.model.topic import TopicId
from tailrace.eventstore.publishing.records import TopicRecords

PARKED_MAX = 1000  # keys; more than that is no matter of single records


@dataclass(frozen=True, slots=True)
class ParkedKey:
    """Rows of ``topic`` whose key has the hash, from this one on. They are behind ``after_epoch``."""

    topic: str
    hash: int
    partition: int
    offset: int
    after_epoch: int
    reason: str

    @property
    def id(self) -> bytes:
        return json.dumps(["parked", self.topic, self.hash]).encode()

    def to_json(self) -> bytes:
        return json.dumps(asdict(self)).encode()

    @classmethod
    def from_json(cls, text: bytes, place: str) -> ParkedKey:
        """Raises IntegrityError, naming the ``place``, for what Tailrace did not write."""
        try:
            return cls(**json.loads(text))
        except (ValueError, TypeError):
            raise IntegrityError(
                f"{place} holds a record that this Tailrace does not read", hint="a newer Tailrace wrote it"
            ) from None


class NotTaken(OperatorError):
    """The destination does not take a record. Do what the hint says; it is tried again at the next start.

    ``others``: more records that it does not take, each of another key."""

    def __init__(self, found: TopicRecords, row: int, reason: str, *, hint: str) -> None:
        place = {name: found.records[name][row].as_py() for name in ("hash", "partition", "offset")}
        where = f"partition {place['partition']}, offset {place['offset']}"
        super().__init__(f"{found.topic}, {where}: {reason}", hint=hint)
        self.topic, self.place, self.reason = found.topic, place, reason
        self.others: Sequence[NotTaken] = ()

    def parked(self, after_epoch: int) -> ParkedKey:
        return ParkedKey(self.topic.text, **self.place, after_epoch=after_epoch, reason=self.reason)


def without_parked(found: TopicRecords, parked: Collection[ParkedKey]) -> TopicRecords:
    """Without what waits."""
    keep = np.ones(found.records.num_rows, np.bool_)
    for each in parked:
        if each.topic == found.topic.text:
            keep &= ~waiting_mask(found.records, each)
    return found if keep.all() else TopicRecords(found.topic, found.records.filter(pa.array(keep)))


def waiting_records(found: TopicRecords, parked: ParkedKey) -> TopicRecords:
    """Of later records only those that wait with this key. What a truncate removed meanwhile does not come back."""
    records = found.records
    truncates = np.flatnonzero(records["to_all"].to_numpy())
    keep = waiting_mask(records, parked)
    keep[: truncates[-1] + 1 if len(truncates) else 0] = False
    return TopicRecords(found.topic, records.filter(pa.array(keep)))


def waiting_mask(records: pa.Table, parked: ParkedKey) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Which records of its topic wait with this key."""
    mine = pc.and_(pc.equal(records["hash"], parked.hash), pc.invert(records["to_all"]))
    earlier = pc.and_(
        pc.equal(records["partition"], parked.partition), pc.less(records["offset"], parked.offset)
    )
    found: np.ndarray[tuple[int], np.dtype[np.bool_]] = pc.and_(mine, pc.invert(earlier)).to_numpy()
    return found


def behind_rows(parked: ParkedKey, rows: pa.Table) -> ParkedKey:
    """What waits of the key when these rows of it, in the order of the log, do not any more."""
    last = rows.slice(rows.num_rows - 1).select(["_epoch", "_partition", "_offset"]).to_pylist()[0]
    return replace(
        parked, partition=last["_partition"], offset=last["_offset"] + 1, after_epoch=last["_epoch"]
    )


def topic_of(parked: ParkedKey) -> TopicId:
    return TopicId.parse(parked.topic)
