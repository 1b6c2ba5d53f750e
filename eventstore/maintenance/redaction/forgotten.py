"""That somebody was forgotten, as the log's readers learn it: which rows have values that nobody can decrypt any more.

The rows stay as they are. A receipt and a control epoch for each topic tell projections to compute again what follows
from it; what consumers noted of such events goes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow.compute as pc

from tailrace.eventstore.catalog import roles
from tailrace.eventstore.catalog.roles import Role
from tailrace.eventstore.log import control_epochs
from tailrace.eventstore.log.log import Log
from tailrace.eventstore.maintenance.redaction import remaining_copies
from tailrace.eventstore.maintenance.redaction.receipts import Receipt, add_with_epoch, receipts
from tailrace.eventstore.metadata import topics
from tailrace.eventstore.model.info import TopicInfo
from tailrace.eventstore.model.position import Cut
from tailrace.eventstore.model.topic import TopicId, TopicKind
from tailrace.eventstore.streams.forget import FORGOTTEN
from tailrace.eventstore.streams.personal.sealing import QUOTED_MARK, is_key_id, key_ids

_COLUMNS = ["_partition", "_offset", "after"]


def forgotten_keys(log: Log, source: str) -> frozenset[str]:
    """All keys of a source of which the log says that they were forgotten, by their ids."""
    topic = TopicId.events(source, FORGOTTEN)
    if all(info.id != topic for info in log.topics(source)):
        return frozenset()
    found: set[str] = set()
    for batch in log.read(topic, columns=["after"]):
        found.update(batch["after"].field("stream").drop_null().to_pylist())
    return frozenset(id for id in found if is_key_id(id))


def note_forgotten(
    log: Log, source: str, ids: Collection[str], report: Callable[[str], None] = lambda _: None
) -> list[Receipt]:
    """Tell readers of every topic of a source that has values of these keys, unless they were told. Gives the receipts,
    also those from before. Raises OperatorError for a login that may not."""
    if log.catalog.kind == "postgres":
        with log.catalog.read() as connection:
            roles.require(connection, log.catalog.schema, "forget", Role.WRITER, Role.MAINTAINER)
    made = []
    for info, told, new in _told_of(log, source, ids):
        report(f"looking through {info.id}")
        made += told
        rows = _rows_of(log, info, new)
        if rows.offsets:
            made.append(_tell(log, info, sorted(new), rows))
            remaining_copies.forget_errors(log, info.id, rows.offsets)
    return made


def _told_of(
    log: Log, source: str, ids: Collection[str]
) -> Iterator[tuple[TopicInfo, list[Receipt], set[str]]]:
    """The topics of events of a source, each with what its readers were told of these keys, and of which they were
    not."""
    known = receipts(log)
    for info in log.topics(source):
        if info.kind is TopicKind.EVENTS and ids:
            told = [each for each in known if each.topic == info.id.text and set(each.forgotten) & set(ids)]
            yield info, told, set(ids).difference(*(each.forgotten for each in told))


@dataclass(frozen=True, slots=True)
class Left:
    """What is left somewhere of values that were forgotten, and what to do about it."""

    place: str
    what: str
    remedy: str


def left_in_log(log: Log, source: str, ids: Collection[str]) -> list[Left]:
    """Readers that were not told, and results that were computed before."""
    found = []
    for info, told, new in _told_of(log, source, ids):
        if _rows_of(log, info, new).offsets:
            what = "its readers were not told that somebody was forgotten"
            found.append(Left(f"topic {info.id}", what, "tailrace forget --again"))
        if told:
            with log.catalog.read() as connection:
                latest = max(each.epoch for each in told)
                results = list(remaining_copies.projections_of(connection, info.id, latest))
            found += [Left(each.place, each.detail, each.remedy) for each in results]
    return found


@dataclass(frozen=True, slots=True)
class _Rows:
    upto: int
    offsets: Mapping[int, Sequence[int]]


def _rows_of(log: Log, info: TopicInfo, ids: Collection[str]) -> _Rows:
    """Where values of these keys are."""
    head = log.head()
    upto = head.epoch if head else 0
    offsets: dict[int, list[int]] = {}
    if not ids:
        return _Rows(upto, offsets)
    for rows in log.read(info.id, cut=Cut(upto), columns=_COLUMNS):
        data = rows["after"].field("data")
        mine = rows.filter(pc.fill_null(pc.match_substring(data, QUOTED_MARK), False))
        cells = (mine["_partition"], mine["_offset"], mine["after"].field("data"))
        for partition, offset, text in zip(*(each.to_pylist() for each in cells), strict=True):
            if not key_ids([text]).isdisjoint(ids):
                offsets.setdefault(partition, []).append(offset)
    return _Rows(upto, offsets)


def _tell(log: Log, info: TopicInfo, ids: Sequence[str], rows: _Rows) -> Receipt:
    with log.catalog.write() as connection:
        source = control_epochs.locked_source(connection, info.id.source)
        topic_id = topics.topic_ids(connection, [info.id])[info.id]
        receipt = Receipt(
            topic=info.id.text,
            keys=(),
            columns=("data",),
            upto=rows.upto,
            rows=sum(map(len, rows.offsets.values())),
            files=(),
            remnants=tuple(remaining_copies.projections_of(connection, info.id)),
            forgotten=tuple(ids),
        )
        receipt = add_with_epoch(log, connection, source, topic_id, receipt)
    log.waker.notify(receipt.epoch)
    return receipt
