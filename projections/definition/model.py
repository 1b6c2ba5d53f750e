"""What a projection is, as values: its inputs, its function, its place."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from tailrace.eventstore.errors import OperatorError
from tailrace.eventstore.model.model import TopicId
from tailrace.eventstore.model.retention import seconds_of

if TYPE_CHECKING:
    from tailrace.projections.sinks.specs import SinkSpec

OnUnreadable = Literal["error", "null", "text"]
NOW = "now"
"""A function with a parameter of this name gets the commit time of the position it is computed at (UTC): the clock of
a projection. The wall clock would give another result each time."""


@dataclass(frozen=True, slots=True)
class Through:
    """A row takes part wherever the rows of another input do that it belongs to: those of ``input`` in which each
    column of ``on``'s values equals this input's column of ``on``'s keys. ``Through("orders", {"order_id": "id"})``:
    an order's line goes where its order goes. The other input may itself go through a further one."""

    input: str
    on: Mapping[str, str]


Affects = str | tuple[str, ...] | Mapping[str, str] | Through | None


class ProjectionFailed(OperatorError):
    """The projection's own code or its output is at fault. Nothing reached the sink."""


@dataclass(frozen=True, slots=True)
class State:
    """The rows of a table at the refresh's position: the latest one per key.

    ``affects`` says which output keys a row takes part in: a column of this table for each column of the
    projection's key (``"customer_id"`` when both have that name, ``{"customer_id": "id"}`` when not), or ``Through``
    another input. Without it nobody knows, so that a change of this input has everything computed again.
    ``columns`` are those the function needs, all unless given: the others are neither read nor checked.
    ``cast`` types columns that the log holds as text (a Spark type's DDL: ``{"total": "decimal(20,4)"}``).
    ``on_unreadable`` says what to do with a cell that its typed column cannot hold: ``error``, ``null``, or ``text``
    (the whole column as Postgres' text); one policy, or one per column.
    A cell that a redaction erased is NULL. ``erased`` adds the column ``_erased``: the names of a row's erased columns,
    NULL for a row that has none.
    """

    topic: str
    affects: Affects = None
    columns: tuple[str, ...] | None = None
    cast: Mapping[str, str] = field(default_factory=dict)
    on_unreadable: OnUnreadable | Mapping[str, OnUnreadable] = "error"
    erased: bool = False

    @property
    def topic_id(self) -> TopicId:
        return TopicId.parse(self.topic)


@dataclass(frozen=True, slots=True)
class Changes:
    """Every change of a topic up to the refresh's position, as the log holds it (``schema.change_schema``), with
    ``_partition``, ``_offset`` and ``_epoch``."""

    topic: str
    affects: Affects = None

    @property
    def topic_id(self) -> TopicId:
        return TopicId.parse(self.topic)


@dataclass(frozen=True, slots=True)
class Events:
    """The domain events of a category up to the refresh's position: stream, version, type, schema_version, data and
    metadata as JSON text, event_id, recorded_at; with ``_partition``, ``_offset`` and ``_epoch``."""

    topic: str
    affects: Affects = None

    @property
    def topic_id(self) -> TopicId:
        return TopicId.parse(self.topic)


@dataclass(frozen=True, slots=True)
class Result:
    """The rows of another projection's result at the refresh's position: those of the generation that readers see."""

    projection: str
    affects: Affects = None


Input = State | Changes | Events | Result


@dataclass(frozen=True, slots=True)
class Projection:
    """A function from DataFrames to one DataFrame, keyed, and the sink its rows go to.

    Calling it calls the function, so that it can be tested on hand-made DataFrames. ``version`` is the author's
    own: raising it says that the result changed in a way the code does not show. ``tolerance`` is the absolute
    difference up to which two values of a floating-point column count as equal. ``freshness`` is how old its result
    may be, in seconds or as text ("10min"). ``file`` and ``line`` are where the function is written.
    """

    name: str
    key: tuple[str, ...]
    sink: SinkSpec
    inputs: Mapping[str, Input]
    function: Callable[..., Any]
    version: str = ""
    trust: bool = False
    tolerance: Mapping[str, float] = field(default_factory=dict)
    freshness: str | float | None = None
    wants_now: bool = False
    module: str = ""
    file: str = ""
    line: int = 0

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)

    @property
    def place(self) -> str:
        """Where it is written, for messages: ``shop/projections.py:12``."""
        return f"{self.file}:{self.line}"

    @property
    def freshness_seconds(self) -> float | None:
        """None when none is declared. Raises ValueError."""
        seconds = seconds_of(self.freshness) if isinstance(self.freshness, str) else self.freshness
        if seconds is not None and not seconds > 0:
            raise ValueError("must be more than 0")
        return seconds

    @property
    def topics(self) -> tuple[TopicId, ...]:
        """The topics it reads itself, each once, in declared order."""
        sources = self.inputs.values()
        return tuple(dict.fromkeys(source.topic_id for source in sources if not isinstance(source, Result)))

    @property
    def reads(self) -> tuple[str, ...]:
        """The projections whose results it reads, each once."""
        sources = self.inputs.values()
        return tuple(dict.fromkeys(source.projection for source in sources if isinstance(source, Result)))
