"""One tree of errors. Each says what went wrong, where, and what to do; its class says who acts and the exit code."""

from __future__ import annotations

from enum import Enum
from typing import ClassVar


class Reaction(Enum):
    """Who can make the operation succeed."""

    RETRY = "retry"  # the same call may succeed later without anybody doing anything
    OPERATOR = "operator"  # somebody has to change something first; the hint says what
    NEVER = "never"  # the call itself is wrong, or this process has lost its right to act


class TailraceError(Exception):
    """Base of every error Tailrace raises on purpose.

    ``message`` says what and where, ``hint`` what to do. ``exit_code`` is that of the command line:
    1 bug, 2 usage, 4 difference found, 5 fenced, 6 resumable, 7 operator must act.
    """

    reaction: ClassVar[Reaction] = Reaction.OPERATOR
    exit_code: ClassVar[int] = 7

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message}\n  hint: {self.hint}" if self.hint else self.message


class UsageError(TailraceError):
    """A wrong name, argument or configuration value."""

    reaction = Reaction.NEVER
    exit_code = 2


class BeyondLog(UsageError):
    """A position that the log has not come to yet."""


class OperatorError(TailraceError):
    """Something outside has to change first: a privilege, a server setting, a missing part."""


class TransientError(TailraceError):
    """A server or file was out of reach; trying again later may work. Nothing was half-written."""

    reaction = Reaction.RETRY
    exit_code = 6


class Fenced(TailraceError):
    """Another process took over; this one must stop and has written nothing since."""

    reaction = Reaction.NEVER
    exit_code = 5


class DifferenceFound(TailraceError):
    """A verification found that two things that must be equal are not."""

    exit_code = 4


class IntegrityError(TailraceError):
    """Stored data is not what was written, or breaks an invariant of the log."""


class MissingFile(IntegrityError):
    """A file that was referred to is not there: lost, or merged away since the reference was made."""


class ProtocolError(TailraceError):
    """Bytes that are not what the protocol allows: short, unknown, or trailing."""


class UnreadableCell(TailraceError):
    """A cell's typed column cannot hold the source's value (kept in ``_raw``) and the reader asked for errors."""


class UnknownCell(TailraceError):
    """The log does not know a cell's value (an unchanged TOASTed value that was never sent)."""


class HistoryGone(TailraceError):
    """What is asked for lies before the topic's log start: retention removed it. Ask for a later position."""


class IncompleteTopic(TailraceError):
    """The topic is between positions at which its state is known (first load, repair); wait or ask for another."""

    reaction = Reaction.RETRY
    exit_code = 6
