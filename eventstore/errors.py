"""One tree of errors. Each says what went wrong, where, and what to do; its class says who acts and the exit code."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum
from typing import ClassVar

DOCS_URL_VARIABLE = "TAILRACE_DOCS_URL"
"""Environment variable with the address of the folder ``docs`` of this version, where a team serves it."""


def manual_page(page: str, heading: str = "") -> str:
    """How a hint names a page of the documentation and a heading of it: as an address where ``TAILRACE_DOCS_URL`` is
    set, else by their names."""
    base = os.environ.get(DOCS_URL_VARIABLE)
    if base:
        return f"{base.rstrip('/')}/{page}" + (f"#{heading_anchor(heading)}" if heading else "")
    return f"the documentation's page {page}" + (f" ({heading})" if heading else "")


def heading_anchor(heading: str) -> str:
    """The part of an address that leads to a heading of a Markdown page."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


class Reaction(Enum):
    """Who can make the operation succeed."""

    RETRY = "retry"  # the same call may succeed later without anybody doing anything
    OPERATOR = "operator"  # somebody has to change something first; the hint says what
    NEVER = "never"  # the call itself is wrong, or this process has lost its right to act


class TailraceError(Exception):
    """Base of every error that Tailrace raises on purpose. Catch a class below it that says who has to act.

    ``message`` says what is wrong and where, ``hint`` what to do. ``exit_code`` is that of the command line: 1 a bug,
    2 wrong usage, 4 a difference was found, 5 fenced, 6 may be tried again, 7 somebody has to act.
    """

    reaction: ClassVar[Reaction] = Reaction.OPERATOR
    exit_code: ClassVar[int] = 7

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message}\n  hint: {self.hint}" if self.hint else self.message


@contextmanager
def optional_part(what: str, extra: str) -> Iterator[None]:
    """Import inside what only an extra installs. Raises OperatorError when a package of it is missing: ``what`` needs
    it."""
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] == "tailrace":
            raise
        raise OperatorError(
            f"{what} needs {error.name}, which is not installed", hint=f"pip install 'tailrace[{extra}]'"
        ) from None


class UsageError(TailraceError):
    """A name, an argument or a configuration value is wrong. Correct it: the message says where, the hint what is
    allowed."""

    reaction = Reaction.NEVER
    exit_code = 2


class BeyondLog(UsageError):
    """A position lies beyond the end of the log. Wait until the log has come there, or name an earlier position."""


class OperatorError(TailraceError):
    """Something outside has to change first: a privilege, a server setting, a missing package. Do what the hint says,
    then try again."""


class NotOwner(OperatorError):
    """What would be replaced or dropped belongs to another log: another store has this name, or this one is a copy.
    Nothing was changed. Give one of the two another name, or take it over (``--take-over``)."""

    def __init__(self, what: str, owner: str | None, log_id: str, *, hint: str) -> None:
        whose = f"belongs to log {owner}" if owner else "is there, and nothing says which log it belongs to"
        super().__init__(f"{what} {whose}; this store is log {log_id}", hint=hint)
        self.owner = owner


class TransientError(TailraceError):
    """A server or a file was out of reach. Nothing was half written. Try again later."""

    reaction = Reaction.RETRY
    exit_code = 6


class NotYet(TransientError):
    """``wait_for`` ran out of time before the log, or the sink of a projection, held the position. The message says
    what is behind. Wait again, or go on with what was before."""


class Fenced(TailraceError):
    """Another process took over, and this one has written nothing since. End it: the other one goes on."""

    reaction = Reaction.NEVER
    exit_code = 5


class DifferenceFound(TailraceError):
    """A verification found a difference between two things that must be equal. See what differs
    (``--show-values``), then rebuild the projection or repair the topic."""

    exit_code = 4


class IntegrityError(TailraceError):
    """Stored data is not what was written, or breaks an invariant of the log. Find what is damaged with ``tailrace
    log verify``, and restore it from a backup."""


class MissingFile(IntegrityError):
    """A file that the catalog names is not there: it was lost, or merged away since the reader began. Read again from
    the start; if that fails, too, restore the file from a backup."""


class ProtocolError(TailraceError):
    """Bytes are not what the protocol allows: too few, unknown or too many. Report it, with a recording (``tailrace
    capture --record``)."""


class UnreadableCell(TailraceError):
    """The typed column of a cell cannot hold the value of the source, which is kept as text, and the reader asked for
    errors. Ask for ``null`` or ``text`` instead (``on_unreadable``)."""


class UnknownCell(TailraceError):
    """The log does not know the value of a cell: the server does not send long values that did not change. Read the
    table again with ``tailrace source snapshot``."""


class HistoryGone(TailraceError):
    """The position lies before the start of the topic's log, because retention removed the rows. Name a later
    position."""


class IncompleteTopic(TailraceError):
    """The state of the topic is not known at this position, because a load or a repair is under way. Wait until it is
    done, or name another position."""

    reaction = Reaction.RETRY
    exit_code = 6


class TopicGone(OperatorError):
    """The state of the topic is not known at this position, and will not be: its table was dropped, or the topic was
    retired. Take it out of what reads it, or name an earlier position."""


def damaged_row(row: str, detail: str) -> IntegrityError:
    """The error for a row of the catalog that cannot be what was written. ``row``: its table and primary key."""
    return IntegrityError(
        f"the catalog is damaged: {row}: {detail}",
        hint="`tailrace log verify` says what else is wrong; restore the catalog from a backup",
    )
