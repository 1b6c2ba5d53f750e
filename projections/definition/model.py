"""What a projection is, as values: its inputs, its function, its place."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol

from tailrace.eventstore.errors import OperatorError
from tailrace.eventstore.model.retention import seconds_of
from tailrace.eventstore.model.topic import TopicId
from tailrace.projections.definition.computed import Computed
from tailrace.projections.definition.findings import DefinitionFinding

if TYPE_CHECKING:
    import pyarrow as pa

    from tailrace.projections.sinks.specs import SinkSpec

OnUnreadable = Literal["error", "null", "text"]
PROJECTION_NAME = re.compile(r"[a-z][a-z0-9_]{0,40}")
"""It becomes part of the names of tables, keys and folders."""
STAGE_NAME = re.compile(rf"({PROJECTION_NAME.pattern})\.\d+")
"""That of the partial results of a generation: the projection's name and the generation's number."""
NOW = "now"
"""A function with a parameter of this name gets the commit time of the position it is computed at (UTC): the clock of
a projection. The wall clock would give another result each time."""


@dataclass(frozen=True, slots=True)
class Through:
    """Affected keys by way of another input: a row takes part wherever the row of that input does that it belongs to.

    ``Through("orders", {"order_id": "id"})``: an order's line goes where its order goes.
    """

    input: str
    """Name of the other input. It may itself go through a further one."""
    on: Mapping[str, str]
    """Columns by which the rows belong together: this input's as keys, the other input's as values."""


KeyColumn = str | Computed
"""What holds a column of the key in an input's row: one of its columns, or an expression over them."""
Affects = KeyColumn | tuple[KeyColumn, ...] | Mapping[str, KeyColumn] | Through | None


class ProjectionFailed(OperatorError):
    """The projection's own code or its output is at fault. Nothing reached the sink. Mend the function at the file and
    line of the message. ``unknown``: columns that its output should have and does not. ``place``: ``file:line:column``
    where the message begins with it. ``others``: what else is wrong, whatever becomes of this."""

    def __init__(self, message: str, *, hint: str = "", unknown: Sequence[str] = (), place: str = "") -> None:
        super().__init__(f"{place}: {message}" if place else message, hint=hint)
        self.unknown, self.place = tuple(unknown), place
        self.others: tuple[ProjectionFailed, ...] = ()


@dataclass(frozen=True, slots=True)
class State:
    """The rows of a table at the position of the refresh: the latest one of each key."""

    topic: str
    """Name of the topic: ``SOURCE.SCHEMA.TABLE``."""
    affects: Affects = None
    """Keys of the result that a row takes part in: a column of this table for each column of the key (``"customer_id"``
    where both have that name, ``{"customer_id": "id"}`` where not), or what it is ``Computed`` of, or ``Through``
    another input. Without it every change of this input leads to a full refresh."""
    columns: tuple[str, ...] | None = None
    """Columns that the function needs. The others are neither read nor checked. Default: all."""
    cast: Mapping[str, str] = field(default_factory=dict)
    """Spark types of columns that the log holds as text: ``{"total": "decimal(20,4)"}``."""
    on_unreadable: OnUnreadable | Mapping[str, OnUnreadable] = "error"
    """What becomes of a cell that its typed column cannot hold: ``error`` fails the refresh, ``null`` is NULL, ``text``
    gives the whole column as Postgres' text. One policy, or one for each column."""
    erased: bool = False
    """Whether a column ``_erased`` names the columns that a redaction erased in a row (NULL: none). Erased cells are
    NULL."""

    @property
    def topic_id(self) -> TopicId:
        return TopicId.parse(self.topic)


@dataclass(frozen=True, slots=True)
class Changes:
    """Every change of a table up to the position of the refresh, as the log holds it (``change_schema`` in
    ``tailrace.eventstore.model.schema``), with the columns ``_partition``, ``_offset`` and ``_epoch``."""

    topic: str
    """Name of the topic: ``SOURCE.SCHEMA.TABLE``."""
    affects: Affects = None
    """As in ``State``."""

    @property
    def topic_id(self) -> TopicId:
        return TopicId.parse(self.topic)


@dataclass(frozen=True, slots=True)
class Events:
    """The domain events of a category up to the position of the refresh. Columns: stream, version, type,
    schema_version, data and metadata (JSON as text), event_id, recorded_at; ``_partition``, ``_offset`` and
    ``_epoch``."""

    topic: str
    """Name of the topic: ``SOURCE.CATEGORY``."""
    affects: Affects = None
    """As in ``State``."""
    types: Sequence[type[Any]] | None = None
    """Models of events: those alone, as today's code has them, each with a column of its stored name in place of data:
    a struct of the model's fields. NULL where the event is of another model, or was erased."""

    @property
    def topic_id(self) -> TopicId:
        return TopicId.parse(self.topic)


@dataclass(frozen=True, slots=True)
class Result:
    """The result of another projection at the position of the refresh: the rows of its live generation."""

    projection: str
    """Name of the other projection."""
    affects: Affects = None
    """As in ``State``."""


Input = State | Changes | Events | Result


KnownColumns = Mapping[str, Sequence[str]]
"""The columns of inputs, as far as they are known."""


class QueryNames(Protocol):
    """What the names in a query in SQL mean, which the columns of its inputs decide."""

    def followed(self, defined: Projection, known: KnownColumns) -> Projection:
        """The projection with the ``affects`` that follow."""
        ...

    def changed_names(
        self, defined: Projection, before: KnownColumns, now: KnownColumns
    ) -> Iterator[DefinitionFinding]:
        """The names that mean something else now."""
        ...


@dataclass(frozen=True, slots=True)
class InputFacts:
    """What the catalog knows of inputs, by their names: the columns as the function sees them, the columns that a
    table's rows are told apart by, and about how many rows there are."""

    schemas: Mapping[str, pa.Schema]
    keys: Mapping[str, Sequence[str]]
    rows: Mapping[str, int]

    @property
    def names(self) -> KnownColumns:
        """The names of the columns."""
        return {name: schema.names for name, schema in self.schemas.items()}


class NoStage(Exception):
    """Why a definition has no partial results."""


@dataclass(frozen=True, slots=True)
class Additive:
    """What adds up: each row of the result is of one key's rows of one ``input``, and its values besides the key are
    sums over these rows. So the definition over the rows that changed, as they were and as they are, says by how much
    its values differ (the counting algorithm: Gupta, Mumick, Subrahmanian, "Maintaining Views Incrementally", 1993).

    ``rows`` is the column that counts a key's rows: with none, there is no such key. ``counted`` names, for a column
    of sums, the one that counts what it sums: the sum of no values is NULL.

    Where rows are grouped and summed as they are, ``columns`` names the input's column that each one of the key is, or
    is the sum of, and ``counts`` that whose values are counted (None: rows). Empty where anything is computed of a
    row, or rows are left out."""

    input: str
    rows: str
    counted: Mapping[str, str]
    columns: Mapping[str, str] = field(default_factory=dict)
    counts: Mapping[str, str | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Stage:
    """A definition in two: ``partial`` gives results that changes are followed into; ``over`` reads them as its
    ``input``, and gives the rows of the definition. ``by_key``: those of a key are of the partial results of the same
    key. ``picks``: they are these rows, with the columns that it names; empty where anything is computed of them."""

    partial: Projection
    over: Projection
    input: str
    by_key: bool = False
    picks: Mapping[str, str] = field(default_factory=dict)


Call = Callable[["Projection"], object]
"""Calls a definition's function over its inputs, of which no row is read."""


class Stages(Protocol):
    """Where partial results follow from the definition. ``may_add``: they may be such as add up."""

    may_add: ClassVar[bool]

    def stage(self, defined: Projection, facts: InputFacts, call: Call) -> Stage:
        """Raises NoStage, and ProjectionFailed for a function at fault."""
        ...


@dataclass(frozen=True, slots=True)
class Projection:
    """A function from DataFrames to one DataFrame, keyed, and the sink that its rows go to. Calling it calls the
    function, so that it can be tested on DataFrames made by hand."""

    name: str
    """Name of the projection: the function's."""
    key: tuple[str, ...]
    """Columns of the result that tell its rows apart."""
    sink: SinkSpec
    """Where the rows go."""
    inputs: Mapping[str, Input]
    """What the function gets, by the names of its parameters. A further parameter ``now`` gets the commit time of the
    position."""
    function: Callable[..., Any]
    """The function."""
    version: str = ""
    """A text of the author's. Another one says that the result changed in a way that the code does not show."""
    trust: bool = False
    """Whether the author's word takes the place of the proof that the function keeps rows of different keys apart."""
    tolerance: Mapping[str, float] = field(default_factory=dict)
    """Absolute difference up to which two values of a floating-point column count as equal, by column."""
    freshness: str | float | None = None
    """How old the result may be: seconds, or a text as ``10min``. ``tailrace run`` schedules by it."""
    collation: str = ""
    """``C``: texts are meant to be ordered by their bytes, whatever the collation of their columns. Without it
    ``check`` warns where that order matters and is not the source's."""
    wants_now: bool = False
    """Whether the function has a parameter ``now``."""
    module: str = ""
    """Module that defines it."""
    file: str = ""
    """File that defines it."""
    line: int = 0
    """Line of the file."""
    names: QueryNames | None = field(default=None, repr=False, compare=False)
    """Those of a query in SQL. Its ``affects`` are what follows from the text alone."""
    stages: Stages | None = field(default=None, repr=False, compare=False)
    """Partial results that refreshes may go by. The result is the function's."""
    additive: Additive | None = field(default=None, repr=False, compare=False)
    """How partial results add up, where they do."""
    unfollowed: tuple[DefinitionFinding, ...] = ()
    """Warnings of a query in SQL, from which it does not follow which keys the rows of its inputs affect."""

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
        """The topics that it reads itself, each once, in declared order."""
        sources = self.inputs.values()
        return tuple(dict.fromkeys(source.topic_id for source in sources if not isinstance(source, Result)))

    @property
    def reads(self) -> tuple[str, ...]:
        """The projections whose results it reads, each once."""
        sources = self.inputs.values()
        return tuple(dict.fromkeys(source.projection for source in sources if isinstance(source, Result)))
