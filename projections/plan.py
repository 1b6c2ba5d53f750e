"""What a refresh has to do: nothing, an incremental step, or a full one. Pure.

Every refresh of this version computes the whole result and writes only what differs; ``Incremental`` is the word for
what a later version may decide instead, and callers match on it already.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Nothing:
    """The generation stands where it should."""

    reason: str


@dataclass(frozen=True, slots=True)
class Incremental:
    """Recompute the keys that changed between two epochs."""

    from_epoch: int
    to_epoch: int


@dataclass(frozen=True, slots=True)
class Full:
    """Recompute everything at ``to_epoch``. ``from_epoch`` is where the generation stands, 0 before its first step."""

    from_epoch: int
    to_epoch: int
    reason: str


Plan = Nothing | Incremental | Full


def plan(standing: int | None, epoch: int, changed: Sequence[str], erased: Sequence[str] = ()) -> Plan:
    """``standing`` is the epoch a generation's result is of (None: it has none yet), ``epoch`` the one wanted, and
    ``changed`` the topics with rows in between, ``erased`` those of them of which rows were erased in between."""
    if standing is None:
        return Full(0, epoch, "it has no result yet")
    if epoch <= standing:
        return Nothing(f"it stands at epoch {standing}, the end of the log")
    if not changed:
        return Nothing(f"none of its inputs changed since epoch {standing}")
    if erased:
        return Full(standing, epoch, f"rows of {', '.join(erased)} were erased")
    return Full(standing, epoch, f"{', '.join(changed)} changed; keys are not followed incrementally yet")
