"""What a verification found, as values."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class LogProblem(StrEnum):
    """What is wrong with a place of the log."""

    DAMAGED = "damaged"  # bytes are not those that were written
    MISSING = "missing"  # the catalog names what is not there
    FOREIGN = "foreign"  # a file that Tailrace did not write
    GAP = "gap"  # rows or epochs that nothing holds
    OVERLAP = "overlap"  # rows that two files hold
    CHANGED = "changed"  # it is whole, but not what the log's hashes and sums say


@dataclass(frozen=True, slots=True)
class Finding:
    """``place``: a file's path, a blob, an epoch or a topic; ``detail``: what of it, and beside what."""

    problem: LogProblem
    place: str
    detail: str


@dataclass(frozen=True, slots=True)
class VerificationResult:
    """A verification's result. ``epoch`` and ``hash``: the log's head when it looked. ``unregistered``: files that no
    epoch names, being written or left by a crash; upkeep removes the latter. ``bytes`` of what was read.
    ``redactions``: how often rows of these topics were erased."""

    log_id: str
    epoch: int
    hash: str
    topics: int
    files: int
    bytes: int
    unregistered: int
    quick: bool
    redactions: int
    findings: tuple[Finding, ...]

    @property
    def clean(self) -> bool:
        return not self.findings
