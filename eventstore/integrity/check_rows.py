"""Does each row of the catalog mean something, and agree with what other rows say of the same? Pure: rows to findings.

Run before anything is made of the rows: what cannot be read, or refers to nothing, is a finding that names table and
row, and the rest of a verification is left out then.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, Row, Select, Table, select

from tailrace.eventstore.catalog import tables
from tailrace.eventstore.errors import UsageError
from tailrace.eventstore.integrity import check_declared
from tailrace.eventstore.integrity.findings import Finding, LogProblem
from tailrace.eventstore.metadata import segment_index
from tailrace.eventstore.metadata.epochs import spans_from_json
from tailrace.eventstore.metadata.generations import CHANGED, GenerationState, digest_of, inputs_of
from tailrace.eventstore.metadata.kafka_progress import place_of
from tailrace.eventstore.metadata.state_runs import OTHER_RUN, is_named
from tailrace.eventstore.model.kafka import SnapshotPhase
from tailrace.eventstore.model.partitioning import Partitioning
from tailrace.eventstore.model.schema import TopicSchema
from tailrace.eventstore.model.segment_ref import PartitionRange
from tailrace.eventstore.model.topic import TopicId, TopicKind
from tailrace.eventstore.segment import hash_chain
from tailrace.eventstore.segment.content_hash import Content

AnyRow = Row[*tuple[Any, ...]]
UNREADABLE = (ValueError, KeyError, TypeError, IndexError, AttributeError, UsageError)


class _Wrong(ValueError):
    """What is wrong with a row."""


def findings(connection: Connection) -> Iterator[Finding]:
    """What is wrong with rows of one snapshot."""
    rows = {table.name: connection.execute(_query(table)).all() for table in _CHECKS}
    known = _Known(rows)
    for table, check in _CHECKS.items():
        for row in rows[table.name]:
            try:
                check(row, known)
            except _Wrong as error:
                yield Finding(LogProblem.CHANGED, place_of(table, row), str(error))
            except UNREADABLE:
                detail = "it cannot be read: a value is not one that Tailrace writes"
                yield Finding(LogProblem.CHANGED, place_of(table, row), detail)
    yield from _missing(known)
    yield from check_declared.findings(rows)


def _query(table: Table) -> Select[*tuple[Any, ...]]:
    """All columns but the bytes of blobs."""
    return select(*(column for column in table.c if column is not tables.blobs.c.data))


class _Known:
    """What rows refer to."""

    def __init__(self, rows: Mapping[str, Sequence[AnyRow]]) -> None:
        self.rows = rows
        self.topics = {row.id: row for row in rows["topics"]}
        self.sources = {row.name for row in rows["sources"]}
        self.offsets = {row.topic_id: row for row in rows["topic_offsets"]}
        self.versions: dict[int, list[AnyRow]] = {}
        for row in sorted(rows["topic_schemas"], key=lambda row: row.version):
            self.versions.setdefault(row.topic_id, []).append(row)
        self.incomplete: dict[int, list[AnyRow]] = {}
        for row in sorted(rows["incomplete"], key=lambda row: row.from_epoch):
            self.incomplete.setdefault(row.topic_id, []).append(row)
        self.epochs = {row.epoch: row for row in rows["epochs"]}
        self.generations = {(row.projection, row.generation): row for row in rows["generations"]}
        self.live = {row.projection: row.generation for row in rows["live"]}
        self.head = max((row.epoch for row in rows["log_head"]), default=0)

    def topic(self, topic_id: int) -> AnyRow:
        _require(topic_id in self.topics, f"there is no topic {topic_id}")
        return self.topics[topic_id]

    def partitions(self, topic_id: int) -> int:
        return Partitioning.from_json(self.topic(topic_id).partitioning).total

    def version(self, topic_id: int, version: int, last_epoch: int) -> None:
        self.topic(topic_id)
        found = [row for row in self.versions.get(topic_id, ()) if row.version == version]
        _require(bool(found), f"version {version} of topic {topic_id} is not in topic_schemas")
        _require(
            found[0].epoch <= last_epoch, f"version {version} of topic {topic_id} is younger than its rows"
        )


def _require(holds: bool, otherwise: str) -> None:
    if not holds:
        raise _Wrong(otherwise)


def _missing(known: _Known) -> Iterator[Finding]:
    """Rows of which others tell."""
    for row in known.topics.values():
        for table, there in (
            (tables.topic_offsets, known.offsets),
            (tables.topic_schemas, known.versions),
            (tables.lineage, {each.topic_id for each in known.rows["lineage"]}),
        ):
            if row.id not in there:
                place = f"{table.name}: topic_id {row.id}"
                yield Finding(LogProblem.MISSING, place, f"the topic {row.name} has no row there")
    for table in (tables.log, tables.log_head):
        if len(known.rows[table.name]) != 1:
            yield Finding(LogProblem.MISSING, f"{table.name}: id 1", "there is no such row")
    for (projection, number), row in known.generations.items():
        if row.state == GenerationState.LIVE.value and known.live.get(projection) != number:
            detail = f"generation {number} is in the state live, and is not named there"
            yield Finding(LogProblem.CHANGED, f"live: projection {projection}", detail)


def _topic(row: AnyRow, known: _Known) -> None:
    topic = TopicId.parse(row.name)
    _require(topic.text == row.name and topic.source == row.source, "its name is not one of its source")
    _require(row.source in known.sources, f"there is no source {row.source}")
    kind = TopicKind(row.kind)
    partitioning = Partitioning.from_json(row.partitioning)
    _require(partitioning.to_json() == row.partitioning, "its partitioning is not as Tailrace writes it")
    first, behind = 0, -1
    for each in partitioning.incarnations:
        _require(
            each.first == first and each.count > 0 and behind < each.behind, "its partitions do not follow"
        )
        first, behind = each.first + each.count, each.behind
    _require(partitioning.incarnations[0].behind == 0, "its first partitions do not begin with the log")
    latest = known.versions.get(row.id, [])[-1:]
    _require(
        all(TopicSchema.from_json(each.definition).kind is kind for each in latest),
        "its schema is of another kind",
    )
    intervals = known.incomplete.get(row.id, [])
    open_ones = [each for each in intervals if each.to_epoch is None]
    if open_ones:
        _require(row.complete_since is None, "it is complete, and incomplete has an open interval of it")
        _require(row.reason == open_ones[0].reason, "its reason is not that of its interval in incomplete")
    else:
        # A topic that was complete may be read again: it is complete since then, and nothing was unknown before.
        since = max((each.to_epoch for each in intervals), default=0)
        known_since = row.complete_since is not None and since <= row.complete_since <= known.head
        _require(
            known_since and row.reason == "", "it is complete since an epoch in an interval of incomplete"
        )


def _offsets(row: AnyRow, known: _Known) -> None:
    count = known.partitions(row.topic_id)
    begin, whole, following = (
        [int(each) for each in json.loads(text)]
        for text in (row.log_starts, row.whole_from, row.next_offsets)
    )
    for text in (row.log_starts, row.whole_from, row.next_offsets):
        _require(json.dumps(json.loads(text)) == text, "its offsets are not as Tailrace writes them")
    _require(len(begin) == len(whole) == len(following) == count, f"it does not have {count} partitions")
    ordered = all(0 <= a <= b <= c for a, b, c in zip(begin, whole, following, strict=True))
    _require(ordered, "its offsets do not follow one another")
    _require(0 <= row.start_epoch <= known.head, "its start is not an epoch of the log")
    _require(bool(row.start_epoch) == any(whole), "it has a start, or offsets that are gone, and not both")
    looks = json.loads(row.looks)
    _require(json.dumps(looks) == row.looks, "its looks are not as Tailrace writes them")
    _require(
        looks == sorted(looks) and all(0 < each <= known.head for each in looks), "its looks are no epochs"
    )


def _schema(row: AnyRow, known: _Known) -> None:
    known.topic(row.topic_id)
    schema = TopicSchema.from_json(row.definition)
    _require(schema.version == row.version, "its definition is of another version")
    versions = known.versions[row.topic_id]
    at = versions.index(row)
    _require(row.version == versions[0].version + at, "the versions before it are not all there")
    _require(at > 0 or row.epoch == 0, "the first version does not hold from the beginning")
    _require(
        at == 0 or versions[at - 1].epoch <= row.epoch <= known.head,
        "its epoch is not behind the version before",
    )


def _incomplete(row: AnyRow, known: _Known) -> None:
    known.topic(row.topic_id)
    _require(0 <= row.from_epoch <= known.head, "it does not begin at an epoch of the log")
    _require(
        row.to_epoch is None or row.from_epoch <= row.to_epoch <= known.head,
        "it does not end at an epoch of the log",
    )
    intervals = known.incomplete[row.topic_id]
    at = intervals.index(row)
    followed = at + 1 < len(intervals)
    ends = intervals[at + 1].from_epoch if followed else None
    _require(not followed or (row.to_epoch is not None and row.to_epoch <= ends), "it overlaps the next one")


def _ranges(text: str, partitions: int) -> tuple[PartitionRange, ...]:
    ranges = segment_index.ranges_from_json(text)
    _require(segment_index.ranges_to_json(ranges) == text, "its ranges are not as Tailrace writes them")
    _require(
        all(0 <= each.partition < partitions for each in ranges), "its partitions are not those of its topic"
    )
    _require(all(each.first_offset >= 0 and each.rows >= 0 for each in ranges), "its ranges are none")
    return ranges


def _place(row: AnyRow, known: _Known) -> None:
    """A file of a topic's rows: ``segments``, ``state_runs`` or ``archived``."""
    folder = row.path.rpartition("/")[0].split("/")
    ours = (
        folder[-1] == str(row.topic_id)
        if folder[0] == "log"
        else folder[-1] in (known.topic(row.topic_id).name, f"topic-{row.topic_id}")
    )
    _require(ours, "its path is not one of its topic")
    known.version(row.topic_id, row.version, row.last_epoch)
    ranges = _ranges(row.ranges, known.partitions(row.topic_id))
    _require(row.rows == sum(each.rows for each in ranges), "its rows are not those of its ranges")
    _require(0 < row.first_epoch <= row.last_epoch <= known.head, "its epochs are not those of the log")
    _require(row.bytes > 0, "its size is none")


def _segment(row: AnyRow, known: _Known) -> None:
    _place(row, known)
    _require((row.first_lsn is None) == (row.last_lsn is None), "one of its LSNs is missing")
    _require(row.first_lsn is None or 0 <= row.first_lsn <= row.last_lsn, "its LSNs do not follow")
    _require(row.content == "" or Content.parse(row.content).text == row.content, "its content is no hash")
    if row.origin:
        origin = hash_chain.RewriteOrigin.from_json(row.origin)
        _require(origin.to_json() == row.origin, "its origin is not as Tailrace writes it")
    _require(bool(row.origin) == row.sealed, "it is said to be sealed, or made of others, and not both")
    _require(row.sealed or row.first_epoch == row.last_epoch, "capture wrote it, and it has several epochs")
    epoch = None if row.sealed else known.epochs.get(row.first_epoch)
    if epoch is not None and epoch.first_lsn is not None and row.first_lsn is not None:
        inside = epoch.first_lsn <= row.first_lsn <= row.last_lsn <= epoch.last_lsn
        _require(inside, f"its LSNs are not those of epoch {epoch.epoch}")


def _state_run(row: AnyRow, known: _Known) -> None:
    _place(row, known)
    _require(
        row.after_epoch < row.first_epoch and row.last_epoch <= row.epoch,
        "its epochs are not those of its run",
    )
    _require(is_named(row), OTHER_RUN)
    run = [
        each.number
        for each in known.rows["state_runs"]
        if (each.topic_id, each.after_epoch, each.epoch) == (row.topic_id, row.after_epoch, row.epoch)
    ]
    _require(sorted(run) == list(range(len(run))), "the files of its run are not all there")


def _archived(row: AnyRow, known: _Known) -> None:
    _place(row, known)


def _epoch(row: AnyRow, known: _Known) -> None:
    parts = segment_index.parts_from_json(row.parts)
    _require(segment_index.parts_to_json(parts) == row.parts, "its parts are not as Tailrace writes them")
    ids = [int(text) for text in row.topics.split(",") if text]
    _require(segment_index.topics_text(ids) == row.topics, "its topics are not as Tailrace writes them")
    _require(all(each in known.topics for each in ids), "it names a topic that there is not")
    _require({part.topic_id for part in parts} <= set(ids), "its parts are of topics that it does not name")
    _require(row.source in known.sources, f"there is no source {row.source}")
    _require((row.blob_bytes is not None) == bool(parts), "it has a blob, or parts, and not both")
    start = 0
    for part in parts:
        known.version(part.topic_id, part.version, row.epoch)
        ranges = _ranges(segment_index.ranges_to_json(part.ranges), known.partitions(part.topic_id))
        _require(part.rows == sum(each.rows for each in ranges), "rows of a part are not those of its ranges")
        _require(part.start == start and part.length > 0, "its parts do not follow one another")
        start += part.length
        lsns = part.lsns or (row.first_lsn, row.last_lsn)
        _require(
            row.first_lsn is None or row.first_lsn <= lsns[0] <= lsns[1] <= row.last_lsn,
            "LSNs of a part are not its own",
        )
    _require(row.blob_bytes is None or row.blob_bytes == start, "its blob has another size than its parts")


def _blob(row: AnyRow, known: _Known) -> None:
    _require(row.plain_bytes > 0, "its size is none")


def _epoch_file(row: AnyRow, known: _Known) -> None:
    _require(bool(spans_from_json(row.spans)), "it has no spans")
    _require(0 < row.first_epoch <= row.last_epoch <= known.head, "its epochs are not those of the log")


def _source(row: AnyRow, known: _Known) -> None:
    """The position of a source is behind that of its last epoch, which the chain covers."""
    mine = [each for each in known.rows["epochs"] if each.source == row.name]
    _require(row.loaded or not row.commit_lsn, "it has a position, and nothing was loaded")
    if not mine:
        return
    last = max(mine, key=lambda each: each.epoch)
    _require(row.incarnation == last.incarnation, f"its incarnation is not that of epoch {last.epoch}")
    for column in ("commit_lsn", "end_lsn"):
        before = last._mapping[column]
        _require(row._mapping[column] >= before, f"its {column} is before that of epoch {last.epoch}")
    _require(
        row.through_lsn >= last.commit_lsn, f"its through_lsn is before the commit of epoch {last.epoch}"
    )


def _redaction(row: AnyRow, known: _Known) -> None:
    known.topic(row.topic_id)
    json.loads(row.receipt)  # whether it is the one that its epoch tells of is looked at with the chain
    _require(0 < row.epoch <= known.head, "its epoch is not one of the log")


def _lineage(row: AnyRow, known: _Known) -> None:
    known.topic(row.topic_id)
    _require(Content.parse(row.content).text == row.content, "its content is no hash")
    _require(
        row.entries >= 0 and bool(row.entries) == bool(row.hash), "it has entries, or a hash, and not both"
    )


def _generation(row: AnyRow, known: _Known) -> None:
    state = GenerationState(row.state)
    _require(all(isinstance(name, str) for name in json.loads(row.key)), "its key is not one of columns")
    for need in inputs_of(row.inputs):
        _require(
            need.kind in ("state", "changes") and need.start >= 0, "its inputs are not those of a generation"
        )
    _require(
        row.generation > 0 and row.partitions > 0 and row.split >= 0,
        "its numbers are not those of a generation",
    )
    _require(digest_of(row._mapping) == row.digest, CHANGED)
    is_live = known.live.get(row.projection) == row.generation
    _require(is_live == (state is GenerationState.LIVE), "its state is not what the table live says")


def _live(row: AnyRow, known: _Known) -> None:
    named = (row.projection, row.generation) in known.generations
    _require(named, f"there is no generation {row.generation} of {row.projection}")


def _step(row: AnyRow, known: _Known) -> None:
    named = (row.projection, row.generation) in known.generations
    _require(named, f"there is no generation {row.generation} of {row.projection}")
    _require(isinstance(json.loads(row.files), list), "its files are no list")
    _require(0 <= row.from_epoch < row.to_epoch and row.rows >= 0, "its numbers are not those of a step")


def _log(row: AnyRow, known: _Known) -> None:
    _require(row.log_id.isalnum(), "it is no log's identity")


def _head(row: AnyRow, known: _Known) -> None:
    _require(row.epoch >= 0, "it is no epoch")


def _kafka_partition(row: AnyRow, known: _Known) -> None:
    _require(row.source in known.sources, f"there is no source {row.source}")
    _require(row.next_offset >= 0 and row.partition >= 0, "its offset is none")
    SnapshotPhase(row.snapshot)


def _parked(row: AnyRow, known: _Known) -> None:
    _require(row.source in known.sources, f"there is no source {row.source}")


_CHECKS: Mapping[Table, Callable[[AnyRow, _Known], None]] = {
    tables.log: _log,
    tables.log_head: _head,
    tables.sources: _source,
    tables.topics: _topic,
    tables.topic_schemas: _schema,
    tables.topic_offsets: _offsets,
    tables.incomplete: _incomplete,
    tables.epochs: _epoch,
    tables.blobs: _blob,
    tables.segments: _segment,
    tables.lineage: _lineage,
    tables.state_runs: _state_run,
    tables.redactions: _redaction,
    tables.archived: _archived,
    tables.epoch_files: _epoch_file,
    tables.kafka_partitions: _kafka_partition,
    tables.parked_records: _parked,
    tables.generations: _generation,
    tables.live: _live,
    tables.derived: _step,
}
