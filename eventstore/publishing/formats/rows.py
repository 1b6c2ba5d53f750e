"""Plain rows in JSON: the row after each change, a tombstone when it is gone. What a compacted topic is for.

A value that the source did not send is left out, and named in a header. A truncate has no such form: it is refused.
"""

from __future__ import annotations

import json
from collections import defaultdict

import pyarrow as pa
import pyarrow.compute as pc

from tailrace.eventstore.errors import OperatorError
from tailrace.eventstore.model.schema import TopicSchema
from tailrace.eventstore.model.topic import Op
from tailrace.eventstore.publishing.formats.assembly import ERASED, Header, header_column, one_each
from tailrace.eventstore.publishing.formats.cells import Cells, Member
from tailrace.eventstore.publishing.formats.json_cells import TEXT, objects
from tailrace.eventstore.publishing.records import EpochRows
from tailrace.eventstore.segment.row_order import sort_by_commit

NOT_SENT = b"tailrace-not-sent"


def row_records(found: EpochRows, schema: TopicSchema) -> pa.Table:
    """``RECORDS`` of rows of one topic, in commit order. Raises OperatorError for a table without a key, and for a
    truncate."""
    if schema.bag:
        raise OperatorError(
            f"{found.topic} has no key, and plain rows are found by it",
            hint=f'leave it out of the publication with "!{found.topic}", or publish it with format = "debezium"',
        )
    cells = Cells(sort_by_commit(found.rows), schema)
    if pc.any(pc.equal(cells.column("_op"), Op.TRUNCATE.value), min_count=0).as_py():
        raise OperatorError(
            f"{found.topic} was truncated, and plain rows cannot say so",
            hint='publish it under another name with format = "debezium"',
        )
    members = cells.members("after")
    values = objects([(each.column.name, each.texts, _sent(each)) for each in members], cells.count)
    told = pc.if_else(pa.array(cells.has("after")), values, pa.scalar(None, TEXT))
    return one_each(cells, cells.objects("key"), told, header_column(cells.count, _headers(cells, members)))


def _sent(member: Member) -> pa.Array | None:
    return None if member.unknown is None else pa.array(~member.unknown)


def _headers(cells: Cells, members: list[Member]) -> dict[int, list[Header]]:
    not_sent: dict[int, list[str]] = defaultdict(list)
    for each in members:
        for row in each.unknown.nonzero()[0].tolist() if each.unknown is not None else ():
            not_sent[row].append(each.column.name)
    found: dict[int, list[Header]] = defaultdict(list)
    for header, named in ((NOT_SENT, not_sent), (ERASED, cells.erased())):
        for row, names in named.items():
            found[row].append((header, json.dumps(names, ensure_ascii=False).encode()))
    return found
