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

from tailrace.eventstore.model.event_schema import use_schema
from tailrace.eventstore.streams import aio
from tailrace.eventstore.streams.boundaries.boundary import Boundary, load_boundary
from tailrace.eventstore.streams.boundaries.query import Query
from tailrace.eventstore.streams.context import context
from tailrace.eventstore.streams.deciding.aggregate import Aggregate, on
from tailrace.eventstore.streams.deciding.decider import Decider, Rejected
from tailrace.eventstore.streams.deciding.handle import Committed, Handled, handle, state_of
from tailrace.eventstore.streams.deciding.keep import keep_snapshot
from tailrace.eventstore.streams.deciding.snapshots import Every
from tailrace.eventstore.streams.deciding.transactions import position
from tailrace.eventstore.streams.forget import Forgotten, forget, rotate_key
from tailrace.eventstore.streams.inline_rows.projection import InlineProjection, inline
from tailrace.eventstore.streams.load import load, load_all
from tailrace.eventstore.streams.models.event_types import event, event_type_of, model_of
from tailrace.eventstore.streams.models.reshape import Json
from tailrace.eventstore.streams.models.tags import Tag
from tailrace.eventstore.streams.models.upcasters import RawEvent, upcast, upcaster
from tailrace.eventstore.streams.outcomes import (
    ANY,
    NO_STREAM,
    STREAM_EXISTS,
    Appended,
    Conflict,
    Expected,
)
from tailrace.eventstore.streams.personal.fields import Personal
from tailrace.eventstore.streams.personal.file_keys import FileKeys
from tailrace.eventstore.streams.personal.keys import KeyStore, use_keys
from tailrace.eventstore.streams.reacting.manager import (
    Cancel,
    Do,
    Due,
    End,
    ProcessManager,
    Refused,
    Timer,
)
from tailrace.eventstore.streams.reacting.react import react
from tailrace.eventstore.streams.recorded import Recorded
from tailrace.eventstore.streams.rows import EventType
from tailrace.eventstore.streams.stream import Stream
from tailrace.eventstore.streams.writing.append import append
from tailrace.eventstore.streams.writing.emit import emit
from tailrace.eventstore.streams.writing.several import AppendTo, append_all

__all__ = [
    "ANY",
    "NO_STREAM",
    "STREAM_EXISTS",
    "Aggregate",
    "AppendTo",
    "Appended",
    "Boundary",
    "Cancel",
    "Committed",
    "Conflict",
    "Decider",
    "Do",
    "Due",
    "End",
    "EventType",
    "Every",
    "Expected",
    "FileKeys",
    "Forgotten",
    "Handled",
    "InlineProjection",
    "Json",
    "KeyStore",
    "Personal",
    "ProcessManager",
    "Query",
    "RawEvent",
    "Recorded",
    "Refused",
    "Rejected",
    "Stream",
    "Tag",
    "Timer",
    "aio",
    "append",
    "append_all",
    "context",
    "emit",
    "event",
    "event_type_of",
    "forget",
    "handle",
    "inline",
    "keep_snapshot",
    "load",
    "load_all",
    "load_boundary",
    "model_of",
    "on",
    "position",
    "react",
    "rotate_key",
    "state_of",
    "upcast",
    "upcaster",
    "use_keys",
    "use_schema",
]
