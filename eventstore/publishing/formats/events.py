"""Domain events: plain JSON, and CloudEvents 1.0 in both forms of its Kafka binding. The key is the stream.

Sources: CloudEvents, "Core specification", "Kafka protocol binding", and the extensions "Partitioning" and "Sequence".
"""

from __future__ import annotations

import json

import pyarrow as pa
import pyarrow.compute as pc

from tailrace.eventstore.model.schema import EVENT_SCHEMA, TopicSchema
from tailrace.eventstore.model.topic import Op, TopicId
from tailrace.eventstore.publishing.formats.assembly import ERASED, header_column, one_each, same_headers
from tailrace.eventstore.publishing.formats.cells import Cells
from tailrace.eventstore.publishing.formats.json_cells import TEXT, join, objects, or_null, strings, text
from tailrace.eventstore.publishing.records import EpochRows
from tailrace.eventstore.segment.row_order import sort_by_commit

_CONTENT_TYPE = b"content-type"
_ARE_EVENTS = pa.array([Op.CREATE.value, Op.READ.value])


class _Events:
    """Columns of events, as texts. ``data`` and ``metadata`` are JSON; null where they were erased."""

    def __init__(self, rows: pa.Table, schema: TopicSchema) -> None:
        kept = rows.filter(pc.is_in(rows["_op"], _ARE_EVENTS))
        self.cells = Cells(sort_by_commit(kept), schema)
        self.count = self.cells.count
        names = [column.name for column in EVENT_SCHEMA.columns]
        self._columns = dict(zip(names, self.cells.column("after").flatten(), strict=True))
        times = [each for each in self.cells.members("after") if each.column.name == "recorded_at"]
        self.recorded_at = times[0].texts  # in JSON

    def __getitem__(self, name: str) -> pa.Array:
        return self._columns[name].cast(TEXT)

    def records(self, values: pa.Array, headers: pa.Array | None = None) -> pa.Table:
        erased = {row: [(ERASED, json.dumps(names).encode())] for row, names in self.cells.erased().items()}
        if headers is None or erased:
            headers = _with(headers, header_column(self.count, erased))
        return one_each(self.cells, self["stream"], values, headers)


def _with(headers: pa.Array | None, more: pa.Array) -> pa.Array:
    if headers is None:
        return more
    both = [[*one, *other] for one, other in zip(headers.to_pylist(), more.to_pylist(), strict=True)]
    return pa.array(both, headers.type)


def json_events(rows: EpochRows, schema: TopicSchema) -> pa.Table:
    """The event's columns as one JSON object."""
    found = _Events(rows.rows, schema)
    told = {name: strings(found[name]) for name in ("event_id", "stream", "type")}
    told |= {name: found[name] for name in ("version", "schema_version", "data", "metadata")}
    told["recorded_at"] = found.recorded_at
    order = ("event_id", "stream", "version", "type", "schema_version", "recorded_at", "data", "metadata")
    return found.records(objects([(name, told[name], None) for name in order], found.count))


def structured_cloud_events(rows: EpochRows, schema: TopicSchema) -> pa.Table:
    """Attributes and data in the value."""
    found = _Events(rows.rows, schema)
    members = [(name, values, None) for name, values in _attributes(rows.topic, found)]
    values = objects([*members, ("data", found["data"], None)], found.count)
    kind = pa.array(["application/cloudevents+json; charset=UTF-8"] * found.count)
    return found.records(values, same_headers([(_CONTENT_TYPE, kind)], found.count))


def binary_cloud_events(rows: EpochRows, schema: TopicSchema) -> pa.Table:
    """Attributes in headers, data in the value."""
    found = _Events(rows.rows, schema)
    plain = [
        (f"ce_{name}".encode(), _unquoted(values))
        for name, values in _attributes(rows.topic, found)
        if name != "datacontenttype"
    ]
    kind = pa.array(["application/json"] * found.count)
    headers = same_headers([(_CONTENT_TYPE, kind), *plain], found.count)
    return found.records(or_null(found["data"]), headers)


def _attributes(topic: TopicId, found: _Events) -> list[tuple[str, pa.Array]]:
    """In JSON, but ``metadata``, which is JSON in a string: an attribute is no object."""

    def same(value: str) -> pa.Array:
        return pa.array([json.dumps(value, ensure_ascii=False)] * found.count, TEXT)

    return [
        ("specversion", same("1.0")),
        ("id", strings(found["event_id"])),
        ("source", same("/" + "/".join(topic.parts))),
        ("type", strings(found["type"])),
        ("subject", strings(found["stream"])),
        ("time", found.recorded_at),
        ("datacontenttype", same("application/json")),
        ("partitionkey", strings(found["stream"])),
        ("sequence", join(text('"'), found["version"], text('"'))),
        ("schemaversion", found["schema_version"]),
        ("metadata", strings(or_null(found["metadata"]))),
    ]


def _unquoted(values: pa.Array) -> pa.Array:
    """Texts of JSON strings and numbers."""
    return pa.array(
        [each if isinstance(each, str) else str(each) for each in map(json.loads, values.to_pylist())]
    )
