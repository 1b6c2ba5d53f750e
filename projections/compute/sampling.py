"""Choices of keys by their hash: a random share, or a list. Every process chooses the same. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

Hashes = np.ndarray[Any, np.dtype[np.int64]]
Mask = np.ndarray[Any, np.dtype[np.bool_]]

_ALL = 1 << 64


class KeySelection(Protocol):
    """A part of all possible keys. Pickles into Spark tasks."""

    def mask(self, hashes: Hashes) -> Mask:
        """Which of the keys with these hashes (``tailrace.eventstore.model.keys``) belong to it."""


@dataclass(frozen=True, slots=True, eq=False)
class ListedKeys:
    """The keys with these hashes, or (``others``) all but those."""

    hashes: Hashes
    others: bool = False

    def mask(self, hashes: Hashes) -> Mask:
        mask: Mask = np.isin(hashes, self.hashes, invert=self.others)
        return mask


@dataclass(frozen=True, slots=True, eq=False)
class CommonKeys:
    """The keys that are in two choices."""

    one: KeySelection
    other: KeySelection

    def mask(self, hashes: Hashes) -> Mask:
        mask: Mask = self.one.mask(hashes) & self.other.mask(hashes)
        return mask


@dataclass(frozen=True, slots=True)
class Sampling:
    """A share (0 < ``share`` < 1) of all possible keys; another one for each ``seed`` (0 to 2^64 - 1). Whether a key
    belongs to it does not depend on other keys, so that the log and a sink choose the same."""

    seed: int
    share: float

    def mask(self, hashes: Hashes) -> Mask:
        mask: Mask = _mix(hashes.view(np.uint64) ^ np.uint64(self.seed)) < np.uint64(int(self.share * _ALL))
        return mask


def sampling_of(keys: int, rows: int, seed: int) -> Sampling | None:
    """A choice of about ``keys`` of ``rows``; None when that is all of them."""
    return Sampling(seed, keys / rows) if keys < rows else None


def _mix(values: np.ndarray[Any, np.dtype[np.uint64]]) -> np.ndarray[Any, np.dtype[np.uint64]]:
    """The finalizer of splitmix64: each bit of the result depends on all bits of the value."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))
