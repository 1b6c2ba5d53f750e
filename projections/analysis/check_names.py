"""What can be wrong with a projection where it is to run: unknown topics, columns and sinks. Starts no Spark."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from tailrace.eventstore.errors import UsageError
from tailrace.eventstore.model.info import TopicInfo
from tailrace.eventstore.model.schema import TopicSchema, unify
from tailrace.eventstore.model.topic import TopicKind
from tailrace.projections.analysis.followed import followed
from tailrace.projections.analysis.renamed import rename_of
from tailrace.projections.definition.computed import Computed
from tailrace.projections.definition.findings import DefinitionFinding, did_you_mean
from tailrace.projections.definition.lineage import read_columns
from tailrace.projections.definition.model import Changes, Events, Input, Projection, Result, State, Through
from tailrace.projections.definition.source import SourceLines
from tailrace.projections.generations.result_input import describe_result, live_of
from tailrace.projections.sinks.contract import Sink
from tailrace.projections.sinks.open import open_sink

if TYPE_CHECKING:
    from tailrace.eventstore.settings import Settings
    from tailrace.eventstore.store import Store


def check(store: Store, settings: Settings, projection: Projection) -> Sink:
    """Check names against the log and the settings; return the opened sink.

    Raises UsageError naming the projection, the place and the first thing that is wrong. Incomplete topics are no
    mistake: reading them raises IncompleteTopic, which ``run`` waits out.
    """
    projection = followed(store, projection)
    for found in (*wrong_names(store, projection), *refused_as_unfollowed(settings, projection)):
        raise UsageError(f"projection {projection.name!r} ({found.place}): {found.what}", hint=found.hint)
    try:
        return open_sink(projection.sink, settings)
    except UsageError as error:
        raise UsageError(
            f"projection {projection.name!r} ({projection.place}): {error.message}", hint=error.hint
        ) from None


def refused_as_unfollowed(settings: Settings, projection: Projection) -> tuple[DefinitionFinding, ...]:
    """What does not follow from a query, where that is no warning but a mistake."""
    refused = settings.projections.on_unfollowed == "error"
    return tuple(replace(each, level="fail") for each in projection.unfollowed) if refused else ()


def wrong_names(store: Store, projection: Projection) -> Iterator[DefinitionFinding]:
    """Every topic and column that a projection names and the log does not have, or has as something else."""
    for name, source in projection.inputs.items():
        if isinstance(source, Result):
            if live_of(store, source.projection) is not None:  # one that was never built has to be waited for
                known = describe_result(store, source.projection).schema.names
                yield from wrong_in_result(projection, name, source, known)
            continue
        try:
            info = store.topic(source.topic_id)
        except UsageError as error:
            place, what = _declared(projection, name), f"input {name!r}: {error.message}"
            yield DefinitionFinding("fail", what, error.hint, place, name)
            continue
        if not _is_read_as(source, info):
            what = (
                f"input {name!r}: {info.id} is a topic of {info.kind.value}, read as {type(source).__name__}"
            )
            hint = "read tables as State or Changes, categories of domain events as Events"
            yield DefinitionFinding("fail", what, hint, _declared(projection, name), name)
            continue
        yield from _wrong_columns(store, projection, name, source)


def wrong_in_result(
    projection: Projection, name: str, source: Result, known: Sequence[str]
) -> Iterator[DefinitionFinding]:
    """Columns that an input names and the result, which has those ``known``, does not have."""
    for column in dict.fromkeys((*affected_columns(source), *_through_columns(projection, name))):
        if column not in known:
            what = (
                f"input {name!r}: affects names {column}, which projection {source.projection} does not have"
            )
            place, hint = _declared(projection, name), f"its columns are {', '.join(known)}"
            yield DefinitionFinding("fail", what, hint, place, name, column)


def _declared(projection: Projection, name: str) -> str:
    """The place of an input. Looked for only when something is wrong there."""
    return SourceLines.of(projection).declared_place(name)


def _through_columns(projection: Projection, name: str) -> list[str]:
    """The columns of an input that others go through."""
    return [
        column
        for other in projection.inputs.values()
        if isinstance(other.affects, Through) and other.affects.input == name
        for column in other.affects.on.values()
    ]


def _is_read_as(source: State | Changes | Events, info: TopicInfo) -> bool:
    match source:
        case State():
            return info.kind is TopicKind.TABLE
        case Events():
            return info.kind is TopicKind.EVENTS
        case Changes():
            return True


def _wrong_columns(
    store: Store, projection: Projection, name: str, source: State | Changes | Events
) -> Iterator[DefinitionFinding]:
    schema = unify(store.schemas(source.topic_id))
    named: dict[str, Iterable[str]] = {}
    if isinstance(source, State):
        policies = () if isinstance(source.on_unreadable, str) else source.on_unreadable
        named = {"columns": source.columns or (), "cast": source.cast, "on_unreadable": policies}
    named |= {"affects": affected_columns(source), "Through": _through_columns(projection, name)}
    for option, columns in named.items():
        for column in dict.fromkeys(columns):
            if schema.column(column) is None:
                what = f"input {name!r}: {option} names {column}, which {source.topic} does not have"
                if said := rename_of(store, source.topic_id, column):
                    what = f"{what}: {said}"
                place, hint = _declared(projection, name), _columns_hint(schema, column)
                yield DefinitionFinding("fail", what, hint, place, name, column)


def _columns_hint(schema: TopicSchema, column: str) -> str:
    names = [known.name for known in schema.columns]
    return f"{did_you_mean(column, names)} its columns are {', '.join(names)}".lstrip()


def affected_columns(source: Input) -> tuple[str, ...]:
    """The input's columns that ``affects`` names."""
    match source.affects:
        case None:
            return ()
        case str() | Computed() as column:
            return read_columns((column,))
        case Through() as through:
            return tuple(through.on)
        case Mapping() as paths:
            return read_columns(paths.values())
        case columns:
            return read_columns(columns)
