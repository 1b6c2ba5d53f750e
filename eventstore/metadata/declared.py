"""What the log declared of its topics, as one number that its chain of hashes covers.

A topic's description, its schema versions and the intervals in which its state is unknown decide how its rows are read.
Each of these rows has a digest. ``topics.declared`` is the sum over a topic's rows, ``log_head.declared`` that over all
topics. An epoch keeps what the head said as of itself, under its hash. New topics come between two epochs and are
numbered in the order in which they come, so an epoch's sum is that of the topics up to its number.

To the head's sum also belong the rows that say how far topics of Kafka are (``metadata.kafka_progress``).

A sum, because a change of one row subtracts a digest and adds one, however many topics there are.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, Connection, Row, RowMapping, Table, select, update

from tailrace.eventstore.catalog import tables
from tailrace.eventstore.errors import damaged_row

AnyRow = Row[*tuple[Any, ...]]
_Values = Mapping[str, Any] | RowMapping
Change = tuple[Table, _Values | None, _Values | None]
# What of a row is covered. Not how the source publishes a table: capture compares that with the server.
_COVERED: Mapping[Table, Sequence[str]] = {
    tables.topics: ("id", "name", "source", "kind", "partitioning", "complete_since", "reason"),
    tables.topic_schemas: ("topic_id", "version", "epoch", "definition"),
    tables.incomplete: ("topic_id", "from_epoch", "to_epoch", "reason"),
    tables.kafka_partitions: (
        "source", "topic", "partition", "topic_id", "next_offset", "commit_lsn", "row_lsn", "snapshot",
    ),
    tables.parked_records: (
        "source", "topic", "partition", "record_offset", "reason", "key", "value", "parked_at",
    ),
}  # fmt: skip
_MODULUS = 1 << 256
_SUM = re.compile(r"[0-9a-f]{64}")
_TEXT = re.compile(rf"(0|[1-9]\d{{0,18}}):({_SUM.pattern})")
CHANGED = "its row, those in topic_schemas or those in incomplete are not what the log declared"


@dataclass(frozen=True, slots=True)
class Declared:
    """``log_head.declared`` and ``epochs.declared``: the highest id of a topic, and the sum over all topics and
    rows of ``kafka_progress``."""

    highest: int = 0
    total: int = 0

    @classmethod
    def parse(cls, text: object) -> Declared | None:
        """None for what is not as ``text`` writes it."""
        found = _TEXT.fullmatch(text) if isinstance(text, str) else None
        return None if found is None else cls(int(found[1]), int(found[2], 16))

    @property
    def text(self) -> str:
        return f"{self.highest}:{sum_text(self.total)}"

    def plus(self, difference: int, topics: int = 0) -> Declared:
        """With so many new topics, after a change of the sum."""
        return Declared(self.highest + topics, (self.total + difference) % _MODULUS)


def digest(table: Table, values: _Values) -> int:
    """Of one row. A value that no row of ours has (bytes in a text) has a digest as well."""
    covered = [table.name, *(values[name] for name in _COVERED[table])]
    return int.from_bytes(hashlib.sha256(json.dumps(covered, default=repr).encode()).digest())


def sum_text(total: int) -> str:
    """``topics.declared``."""
    return f"{total % _MODULUS:064x}"


def is_sum(text: object) -> bool:
    """Whether it can be ``topics.declared``."""
    return isinstance(text, str) and _SUM.fullmatch(text) is not None


def of_sums(sums: Mapping[int, int], highest: int) -> Declared:
    """Over topics up to a number; by id the sum of each."""
    return Declared(highest, sum(total for number, total in sums.items() if number <= highest) % _MODULUS)


def of_head(text: str) -> Declared:
    """Raises IntegrityError when it is none."""
    found = Declared.parse(text)
    if found is None:
        raise damaged_row("log_head: id 1", "its sum over the topics cannot be read")
    return found


def lock(connection: Connection) -> Declared:
    """The head's, locked: the transactions that add topics or epochs come one after the other from here on."""
    head = tables.log_head
    return of_head(connection.execute(select(head.c.declared).with_for_update()).scalar_one())


def amend(connection: Connection, topic_id: int, rows: Iterable[Change] = (), **values: Any) -> int:
    """Write ``values`` to a topic's row, with its sum moved by that and by ``rows``: each its table, what it was (None:
    it is new) and what it is. Gives how the sum changed; the caller has the head's lock and adds it there."""
    table = tables.topics
    before = connection.execute(select(table).where(table.c.id == topic_id)).mappings().one()
    if not is_sum(before["declared"]):
        raise damaged_row(f"topics: id {topic_id}", CHANGED)
    difference = digest(table, {**before, **values}) - digest(table, before)
    for changed, was, now in rows:
        difference += digest(changed, now) if now is not None else 0
        difference -= digest(changed, was) if was is not None else 0
    total = sum_text(int(before["declared"], 16) + difference)
    connection.execute(update(table).where(table.c.id == topic_id).values(**values, declared=total))
    return difference


@dataclass(frozen=True, slots=True)
class DeclaredTopic:
    """The rows that say what a topic is: ``schemas`` by version, ``incomplete`` by their begin."""

    row: AnyRow
    schemas: Sequence[AnyRow]
    incomplete: Sequence[AnyRow]

    @property
    def total(self) -> int:
        rows = (
            (tables.topics, [self.row]),
            (tables.topic_schemas, self.schemas),
            (tables.incomplete, self.incomplete),
        )
        return sum(digest(table, row._mapping) for table, found in rows for row in found)

    @property
    def holds(self) -> bool:
        """Whether the rows are those that were declared."""
        return bool(self.schemas) and bool(self.row.declared == sum_text(self.total))

    @property
    def place(self) -> str:
        return f"topics: id {self.row.id}"


def read(connection: Connection, *which: ColumnElement[bool]) -> list[DeclaredTopic]:
    """Topics by their id, of those that meet conditions on ``topics``. Raises IntegrityError for one whose rows are not
    what was declared."""
    topics, schemas, incomplete = tables.topics, tables.topic_schemas, tables.incomplete
    chosen = select(topics.c.id).where(*which)
    versions = select(schemas).order_by(schemas.c.topic_id, schemas.c.version)
    intervals = select(incomplete).order_by(incomplete.c.topic_id, incomplete.c.from_epoch)
    if which:
        versions = versions.where(schemas.c.topic_id.in_(chosen))
        intervals = intervals.where(incomplete.c.topic_id.in_(chosen))
    rows = connection.execute(select(topics).where(*which).order_by(topics.c.id)).all()
    found = of_rows(rows, connection.execute(versions).all(), connection.execute(intervals).all())
    for topic in found:
        if not topic.holds:
            raise damaged_row(topic.place, CHANGED)
    return found


def of_rows(
    topics: Sequence[AnyRow], schemas: Sequence[AnyRow], incomplete: Sequence[AnyRow]
) -> list[DeclaredTopic]:
    """Topics put together from the rows of three tables."""
    versions: dict[int, list[AnyRow]] = {}
    for row in schemas:
        versions.setdefault(row.topic_id, []).append(row)
    intervals: dict[int, list[AnyRow]] = {}
    for row in incomplete:
        intervals.setdefault(row.topic_id, []).append(row)
    return [DeclaredTopic(row, versions.get(row.id, ()), intervals.get(row.id, ())) for row in topics]
