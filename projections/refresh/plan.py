"""What a refresh has to do: nothing, an incremental step, or a full one, and why. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

Cause = Literal["first", "erased", "definition", "input", "proof", "size", "cost"]
"""Why everything is computed, in one word of a few, to be counted by: it is the first result; rows were erased; the
definition cannot be followed by key; something else than rows changed, or rows that do not say whom they affect; the
proof by samples failed or is still to come; there are more rows than may be held; by earlier ones it is quicker."""


@dataclass(frozen=True, slots=True)
class Nothing:
    """The generation stands where it should."""

    kind: ClassVar[str] = "nothing"
    reason: str


@dataclass(frozen=True, slots=True)
class Incremental:
    """Compute the keys again that changes between two epochs affect. That they are too many, or that a table was
    truncated, shows only while their rows are read: then everything is computed after all."""

    kind: ClassVar[str] = "incremental"
    from_epoch: int
    to_epoch: int
    reason: str


@dataclass(frozen=True, slots=True)
class Full:
    """Recompute everything at ``to_epoch``. ``from_epoch`` is where the generation stands, 0 before its first step.
    ``cause`` is the reason's kind. ``afresh``: no file of the result may keep a value of before."""

    kind: ClassVar[str] = "full"
    from_epoch: int
    to_epoch: int
    reason: str
    cause: Cause = "first"
    afresh: bool = False


Plan = Nothing | Incremental | Full


def plan(
    standing: int | None,
    epoch: int,
    changed: Sequence[str],
    erased: Sequence[str] = (),
    against: tuple[Cause, str] | None = None,
) -> Plan:
    """``standing`` is the epoch a generation's result is of (None: it has none yet), ``epoch`` the one wanted,
    ``changed`` the topics with rows in between, ``erased`` those of them of which rows were erased in between,
    ``against`` what else speaks against an incremental step, with its kind."""
    if standing is None:
        return Full(0, epoch, "it has no result yet")
    if epoch <= standing:
        return Nothing(f"it stands at epoch {standing}, the end of the log")
    if not changed:
        return Nothing(f"none of its inputs changed since epoch {standing}")
    if erased:
        return Full(standing, epoch, f"rows of {', '.join(erased)} were erased", "erased", afresh=True)
    what = f"{', '.join(changed)} changed"
    if against is not None:
        cause, why = against
        return Full(standing, epoch, why if why.startswith(what) else f"{what}; {why}", cause)
    return Incremental(standing, epoch, what)
