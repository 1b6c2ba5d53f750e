"""Every form of records by its name in settings, and which topics it is for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import pyarrow as pa

from tailrace.eventstore.model.schema import TopicSchema
from tailrace.eventstore.model.topic import TopicKind
from tailrace.eventstore.publishing.formats.debezium import debezium_records
from tailrace.eventstore.publishing.formats.events import (
    binary_cloud_events,
    json_events,
    structured_cloud_events,
)
from tailrace.eventstore.publishing.formats.rows import row_records
from tailrace.eventstore.publishing.records import EpochRows
from tailrace.eventstore.settings.publication import Format


class RecordFormat(NamedTuple):
    """``records`` makes ``RECORDS`` of rows, which are in this version of the columns."""

    kind: TopicKind
    records: Callable[[EpochRows, TopicSchema], pa.Table]


FORMATS: Mapping[Format, RecordFormat] = {
    "debezium": RecordFormat(TopicKind.TABLE, debezium_records),
    "rows": RecordFormat(TopicKind.TABLE, row_records),
    "json": RecordFormat(TopicKind.EVENTS, json_events),
    "cloudevents": RecordFormat(TopicKind.EVENTS, structured_cloud_events),
    "cloudevents-binary": RecordFormat(TopicKind.EVENTS, binary_cloud_events),
}
