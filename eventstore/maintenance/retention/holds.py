"""Who still needs rows of a topic: groups and publications by their positions and what they parked, projections by
their fences.

Leases do not count here: the files that their readers refer to stay until they end.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from sqlalchemy import func, select

from tailrace.eventstore.catalog import tables
from tailrace.eventstore.log.log import Log
from tailrace.eventstore.metadata import declared
from tailrace.eventstore.metadata.generations import GenerationState, inputs_of, is_partial
from tailrace.eventstore.metadata.publications import publication_needs
from tailrace.eventstore.model.topic import TopicId
from tailrace.eventstore.subscriptions.filter import matches
from tailrace.eventstore.subscriptions.group import all_groups

_FOLLOWING = (GenerationState.BUILDING, GenerationState.READY, GenerationState.LIVE)


@dataclass(frozen=True, slots=True)
class RegisteredReader:
    """It needs no row up to ``epoch``. ``kind`` is group, publication or projection, or load, which is no reader
    but holds rows as well. ``why`` is for people."""

    kind: str
    name: str
    epoch: int
    why: str

    @property
    def forceable(self) -> bool:
        return self.kind in ("group", "publication", "projection")

    @property
    def label(self) -> str:
        return f"{self.kind} {self.name}" if self.name else self.kind

    def is_called(self, name: str) -> bool:
        return self.forceable and name in (self.name, f"{self.kind}:{self.name}")


def registered_readers(log: Log, topic: TopicId) -> list[RegisteredReader]:
    """All who need rows of the topic."""
    return [*_groups(log, topic), *_publications(log, topic), *_projections(log, topic)]


def _groups(log: Log, topic: TopicId) -> Iterator[RegisteredReader]:
    for group in all_groups(log):
        need = group.need(topic)
        if need is not None:
            yield RegisteredReader("group", group.name, need.epoch, need.why)


def _publications(log: Log, topic: TopicId) -> Iterator[RegisteredReader]:
    for each in publication_needs(log.groups_database):
        if not each.holds:
            continue
        if matches(topic, each.topics):
            why = f"it is published up to epoch {each.epoch}"
            yield RegisteredReader("publication", each.name, each.epoch, why)
        parked = each.parked.get(topic.text)
        if parked is not None:
            yield RegisteredReader("publication", each.name, parked, f"a key waits behind epoch {parked}")


def _projections(log: Log, topic: TopicId) -> Iterator[RegisteredReader]:
    generations, derived = tables.generations, tables.derived
    latest_step = (
        select(func.max(derived.c.to_epoch))
        .where(
            derived.c.projection == generations.c.projection,
            derived.c.generation == generations.c.generation,
        )
        .scalar_subquery()
    )
    query = select(
        generations.c.projection, generations.c.generation, generations.c.inputs, latest_step
    ).where(generations.c.state.in_([state.value for state in _FOLLOWING]), generations.c.frozen_at.is_(None))
    with log.catalog.read() as connection:
        rows = connection.execute(query).all()
    for projection, generation, inputs, fence in rows:
        if is_partial(projection):  # they are computed anew where what they need is gone
            continue
        for need in inputs_of(inputs):
            if need.topic != topic.text:
                continue
            label = f"generation {generation}"
            if need.kind == "changes":
                yield RegisteredReader(
                    "projection", projection, need.start, f"{label} is computed from all changes"
                )
            elif fence is not None:
                yield RegisteredReader("projection", projection, fence, f"{label} is at epoch {fence}")


def load_hold(log: Log, topic_id: int) -> RegisteredReader | None:
    """A load, or any other time in which the topic's state is not known: what came since is put together of rows."""
    with log.catalog.read() as connection:
        (topic,) = declared.read(connection, tables.topics.c.id == topic_id)
    row = next((each for each in topic.incomplete if each.to_epoch is None), None)
    return None if row is None else RegisteredReader("load", "", max(row.from_epoch - 1, 0), row.reason)
