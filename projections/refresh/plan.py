"""What a refresh has to do: nothing, an incremental step, or a full one, and why. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

Cause = Literal["first", "erased", "definition", "input", "proof", "subquery", "size", "cost"]
"""Why everything is computed, as a label of metrics.

``first``: there is no result yet. ``erased``: rows were redacted. ``definition``: it cannot be followed by key.
``input``: something else than rows changed, or rows of an input without ``affects``. ``proof``: samples failed or are
still to come. ``subquery``: the value of a scalar subquery changed. ``size``: more rows than memory may hold. ``cost``:
by earlier steps it is quicker."""


@dataclass(frozen=True, slots=True)
class Nothing:
    """There is nothing to do."""

    kind: ClassVar[str] = "nothing"
    reason: str


@dataclass(frozen=True, slots=True)
class Incremental:
    """Compute the keys again that changes between two epochs affect. Only reading the rows shows that they are too
    many, or that a table was truncated: then everything is computed. So it is when the value of one of these
    ``subqueries`` changed, of which an input did."""

    kind: ClassVar[str] = "incremental"
    from_epoch: int
    to_epoch: int
    reason: str
    subqueries: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Full:
    """Compute everything at ``to_epoch``. ``from_epoch`` is where the generation is, 0 before its first step. ``what``
    there is to do, and ``why`` so (""; what says it). ``cause`` is the kind of the reason. ``afresh``: no file of the
    result may keep an earlier value."""

    kind: ClassVar[str] = "full"
    from_epoch: int
    to_epoch: int
    what: str
    cause: Cause = "first"
    why: str = ""
    afresh: bool = False

    @property
    def reason(self) -> str:
        return self.why if self.why.startswith(self.what) else "; ".join(filter(None, (self.what, self.why)))


Plan = Nothing | Incremental | Full


class NotIncremental(Exception):
    """A step cannot be taken incrementally. ``cause`` is the kind of the reason."""

    def __init__(self, reason: str, cause: Cause) -> None:
        super().__init__(reason)
        self.cause: Cause = cause


def plan(
    from_epoch: int | None,
    to_epoch: int,
    changed: Sequence[str],
    erased: Sequence[str] = (),
    objection: tuple[Cause, str] | None = None,
    subqueries: Sequence[str] = (),
) -> Plan:
    """What leads a result from an epoch (None: there is none yet) to another. ``changed`` are the inputs with rows in
    between, ``erased`` those with redacted rows, ``objection`` is a reason against an incremental step,
    ``subqueries`` are those that read changed inputs."""
    if from_epoch is None:
        return Full(0, to_epoch, "it has no result yet")
    if to_epoch <= from_epoch:
        return Nothing(f"it is at epoch {from_epoch}, the end of the log")
    if not changed:
        return Nothing(f"none of its inputs changed since epoch {from_epoch}")
    if erased:
        return Full(from_epoch, to_epoch, f"rows of {', '.join(erased)} were erased", "erased", afresh=True)
    what = f"{', '.join(changed)} changed"
    if objection is not None:
        cause, why = objection
        return Full(from_epoch, to_epoch, what, cause, why)
    return Incremental(from_epoch, to_epoch, what, subqueries)
