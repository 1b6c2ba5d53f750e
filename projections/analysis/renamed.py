"""Columns that a definition names and that its topic had before: the source renamed or dropped them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tailrace.eventstore.metadata.topics import schema_epochs
from tailrace.eventstore.model.topic import TopicId
from tailrace.projections.analysis.empty_inputs import unknown_column
from tailrace.projections.definition.model import Projection, ProjectionFailed

if TYPE_CHECKING:
    from tailrace.eventstore.store import Store


def rename_of(store: Store, topic: TopicId, column: str) -> str:
    """What became of a column that a topic had, in words; "" when it has it, never had it, or its table is another."""
    versions = store.schemas(topic)
    latest, held = versions[-1], [schema for schema in versions if schema.column(column) is not None]
    if not held or held[-1] is latest or held[-1].relid != latest.relid:
        return ""
    before = held[-1].column(column)
    now = next((each.name for each in latest.columns if before is not None and each.id == before.id), None)
    following = versions[versions.index(held[-1]) + 1].version
    with store.catalog.read() as connection:
        epoch = schema_epochs(connection, topic)[following]
    what = "was dropped" if now is None else f"was renamed to {now}"
    return f"{column} of {topic} {what} at epoch {epoch}"


def say_renames(store: Store, projection: Projection, error: Exception) -> None:
    """Say in the message of an error about an unknown column what became of it."""
    if not isinstance(error, ProjectionFailed):
        return
    for column in dict.fromkeys((*error.unknown, unknown_column(error)[0])):
        for topic in projection.topics if column else ():
            said = rename_of(store, topic, column)
            if said and said not in error.message:
                error.message = f"{error.message}; {said}"
