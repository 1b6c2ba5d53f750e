"""One result of ``tailrace doctor``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from tailrace.eventstore.errors import TailraceError

Verdict = Literal["ok", "warn", "fail"]


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was checked. ``remedy`` says what to do; it is empty only when the verdict is ok."""

    subject: str
    verdict: Verdict
    found: str
    remedy: str = ""


def failed_check(subject: str, error: TailraceError) -> Check:
    return Check(subject, "fail", error.message, error.hint or "see the message")
