"""The errors that Tailrace raises on purpose; each says who can act, and what to do in its ``hint``."""

from tailrace.eventstore.errors import (
    BeyondLog,
    DifferenceFound,
    Fenced,
    HistoryGone,
    IncompleteTopic,
    IntegrityError,
    MissingFile,
    NotOwner,
    OperatorError,
    ProtocolError,
    Reaction,
    TailraceError,
    TransientError,
    UnknownCell,
    UnreadableCell,
    UsageError,
)

__all__ = [
    "BeyondLog",
    "DifferenceFound",
    "Fenced",
    "HistoryGone",
    "IncompleteTopic",
    "IntegrityError",
    "MissingFile",
    "NotOwner",
    "OperatorError",
    "ProtocolError",
    "Reaction",
    "TailraceError",
    "TransientError",
    "UnknownCell",
    "UnreadableCell",
    "UsageError",
]
