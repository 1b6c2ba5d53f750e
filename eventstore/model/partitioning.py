"""How a topic's keys are spread over partitions, now and before. Pure.

Each incarnation of a topic has partitions of its own, for the rows of the epochs behind its beginning and up to the
next one's. Numbers go on and are never given again, as those of shards in a stream that is split: a partition's rows
are all spread alike, and (partition, offset) names one row for ever. Of one key, what has the larger partition is
later.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from tailrace.eventstore.model import keys


@dataclass(frozen=True, slots=True)
class TopicIncarnation:
    """``count`` partitions, numbered from ``first`` on, that hold the rows of epochs behind epoch ``behind``."""

    behind: int
    first: int
    count: int

    @property
    def numbers(self) -> range:
        return range(self.first, self.first + self.count)

    def partition_of(self, key_hash: int) -> int:
        return self.first + keys.partition_of(key_hash, self.count)


@dataclass(frozen=True, slots=True)
class Partitioning:
    """The incarnations of a topic, oldest first; at least one."""

    incarnations: tuple[TopicIncarnation, ...]

    @classmethod
    def of(cls, count: int) -> Partitioning:
        """The partitioning of a new topic."""
        return cls((TopicIncarnation(0, 0, count),))

    @classmethod
    def from_json(cls, text: str) -> Partitioning:
        return cls(tuple(TopicIncarnation(*each) for each in json.loads(text)))

    def to_json(self) -> str:
        return json.dumps([[each.behind, each.first, each.count] for each in self.incarnations])

    @property
    def current(self) -> TopicIncarnation:
        return self.incarnations[-1]

    @property
    def total(self) -> int:
        """How many partitions there have been."""
        return self.current.numbers.stop

    @property
    def closed_partitions(self) -> range:
        """Partitions that get no more rows."""
        return range(self.current.first)

    @property
    def mixed(self) -> bool:
        return len(self.incarnations) > 1

    def repartition(self, count: int, behind: int) -> Partitioning:
        """With a new incarnation, of the rows behind an epoch."""
        return Partitioning((*self.incarnations, TopicIncarnation(behind, self.total, count)))

    def incarnation_of(self, number: int) -> TopicIncarnation:
        return next(each for each in reversed(self.incarnations) if each.first <= number)

    def partitions_of_key(self, key_hash: int) -> tuple[int, ...]:
        """The partitions that can hold rows of a key: one of each incarnation."""
        return tuple(each.partition_of(key_hash) for each in self.incarnations)

    def partition_of_row(self, key_hash: int, epoch: int) -> int:
        """The partition of a key's row of an epoch."""
        return next(each for each in reversed(self.incarnations) if each.behind < epoch).partition_of(
            key_hash
        )

    def partitions_of_rows(
        self, hashes: np.ndarray[Any, np.dtype[np.int64]], epochs: np.ndarray[Any, np.dtype[np.int64]]
    ) -> np.ndarray[Any, np.dtype[np.int64]]:
        """``of_row`` of many."""
        found = np.zeros(len(hashes), np.int64)
        for each in self.incarnations:
            spread = each.first + (hashes.view(np.uint64) % np.uint64(each.count)).astype(np.int64)
            found = np.where(epochs > each.behind, spread, found)
        return found

    def last_change_between(self, after: int, epoch: int) -> int:
        """Behind which epoch the last incarnation begins, when rows of epochs behind ``after`` and up to ``epoch`` may
        be of several; 0 when they are of one."""
        return max((each.behind for each in self.incarnations[1:] if after < each.behind < epoch), default=0)

    @property
    def classes(self) -> int:
        """Into how many parts keys can be cut so that each has partitions of its own in every incarnation."""
        return int(np.gcd.reduce([each.count for each in self.incarnations]))

    def partitions_of_class(self, number: int, classes: int) -> tuple[int, ...]:
        """The partitions of one of so many parts, a divisor of ``self.classes`` or fewer."""
        return tuple(
            partition
            for each in self.incarnations
            for partition in each.numbers
            if (partition - each.first) % self.classes % classes == number
        )

    def restrict_to(self, partitions: Iterable[int]) -> Partitioning:
        """The incarnations that these partitions are of; the current one, where there are none."""
        chosen = {self.incarnation_of(number) for number in partitions} or {self.current}
        return Partitioning(tuple(each for each in self.incarnations if each in chosen))

    def restrict_after(self, epoch: int) -> Partitioning:
        """The incarnations that can have rows behind an epoch."""
        following = [*(each.behind for each in self.incarnations[1:]), epoch + 1]
        pairs = zip(self.incarnations, following, strict=True)
        return Partitioning(tuple(each for each, ended in pairs if ended > epoch))

    def partitions_with_keys_of(self, partition: int) -> Collection[int]:
        """The partitions that can hold rows of keys which ``partition``, one of the last incarnation, has."""
        at = partition - self.current.first
        found = []
        for each in self.incarnations:
            common = int(np.gcd(each.count, self.current.count))
            found += [number for number in each.numbers if (number - each.first - at) % common == 0]
        return found
