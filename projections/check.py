"""What can be wrong with a projection where it is to run: unknown topics, columns and sinks. Starts no Spark."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from eventstore.errors import TailraceError, UsageError
from eventstore.model import TopicKind
from eventstore.schema import TopicSchema, unify
from projections.model import Changes, Events, Input, Projection, State, Through
from projections.sinks.base import Sink, open_sink

if TYPE_CHECKING:
    from eventstore.log import Store
    from eventstore.settings import Settings


def check(store: Store, settings: Settings, projection: Projection) -> Sink:
    """Check names against the log and the settings; return the opened sink.

    Raises UsageError naming the projection and its place. Incomplete topics are no mistake: reading them raises
    IncompleteTopic, which ``run`` waits out.
    """
    for name, source in projection.inputs.items():
        _check_input(store, projection, name, source)
    try:
        return open_sink(projection.sink, settings)
    except UsageError as error:
        raise _at(projection, error) from None


def _check_input(store: Store, projection: Projection, name: str, source: Input) -> None:
    try:
        info = store.topic(source.topic_id)
    except UsageError as error:
        raise _at(projection, error, f"input {name!r}: ") from None
    wrong = {
        State: info.kind is not TopicKind.TABLE,
        Events: info.kind is not TopicKind.EVENTS,
        Changes: False,
    }
    if wrong[type(source)]:
        raise UsageError(
            f"projection {projection.name!r} ({projection.place}): input {name!r}: {info.id} is a topic of"
            f" {info.kind.value}, read as {type(source).__name__}",
            hint="read tables as State or Changes, categories of domain events as Events",
        )
    schema = unify(store.schemas(info.id))
    if isinstance(source, State):
        _check_columns(projection, name, schema, source.columns or (), "columns")
        _check_columns(projection, name, schema, source.cast, "cast")
        if not isinstance(source.on_unreadable, str):
            _check_columns(projection, name, schema, source.on_unreadable, "on_unreadable")
    _check_columns(projection, name, schema, affected(source), "affects")
    for other in projection.inputs.values():
        if isinstance(other.affects, Through) and other.affects.input == name:
            _check_columns(projection, name, schema, other.affects.on.values(), "Through")


def affected(source: Input) -> tuple[str, ...]:
    """The input's columns that ``affects`` names."""
    match source.affects:
        case None:
            return ()
        case str() as column:
            return (column,)
        case Mapping() as paths:
            return tuple(paths.values())
        case Through() as through:
            return tuple(through.on)
        case columns:
            return tuple(columns)


def _check_columns(
    projection: Projection, name: str, schema: TopicSchema, columns: Iterable[str], option: str
) -> None:
    unknown = [column for column in columns if schema.column(column) is None]
    if unknown:
        known = ", ".join(column.name for column in schema.columns)
        raise UsageError(
            f"projection {projection.name!r} ({projection.place}): input {name!r}: {option} names"
            f" {', '.join(unknown)}, which {projection.inputs[name].topic} does not have",
            hint=f"its columns are {known}",
        )


def _at(projection: Projection, error: TailraceError, where: str = "") -> UsageError:
    return UsageError(
        f"projection {projection.name!r} ({projection.place}): {where}{error.message}", hint=error.hint
    )
