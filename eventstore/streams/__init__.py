"""How is a domain event appended in the caller's own transaction, and how is a stream loaded?

    @event("deposited")
    class Deposited(BaseModel):
        amount: Decimal

    with psycopg.connect(dsn) as connection:  # or a SQLAlchemy Connection or Session
        connection.execute("UPDATE accounts SET …")
        append(connection, Stream("account", "42"), [Deposited(amount=…)], expected=3)

Events reach the log through the write-ahead log like every other change: no second write, no gap, and the row change
and the event of one transaction are in one epoch. May import model, disclosure and errors.
"""

from tailrace.eventstore.streams.append import (
    ANY,
    NO_STREAM,
    STREAM_EXISTS,
    Appended,
    Conflict,
    Expected,
    append,
)
from tailrace.eventstore.streams.event_types import EventType, event, event_type_of, model_of
from tailrace.eventstore.streams.load import Recorded, load
from tailrace.eventstore.streams.stream import Stream

__all__ = [
    "ANY",
    "NO_STREAM",
    "STREAM_EXISTS",
    "Appended",
    "Conflict",
    "EventType",
    "Expected",
    "Recorded",
    "Stream",
    "append",
    "event",
    "event_type_of",
    "load",
    "model_of",
]
