"""A row of a topic as a change."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

import pyarrow as pa

from tailrace.eventstore.model.redacted import ERASED, erased_ids
from tailrace.eventstore.model.topic import Op, TopicId

COLUMNS_OF_CHANGE: Final = [
    *("_partition", "_offset", "_epoch", "_op", "_lsn", "_commit_ts"),
    *("key", "after", "before", "_unchanged", "_raw"),
]
"""What ``change`` looks at."""


@dataclass(frozen=True, slots=True)
class Change:
    """One row of a topic. ``after`` and ``before`` leave out cells that the source did not send (``unknown``), and
    hold texts in ``raw`` where the typed column cannot hold the value, and ``ERASED`` where it was erased."""

    topic: TopicId
    partition: int
    offset: int
    epoch: int
    op: Op
    lsn: int
    commit_ts: datetime | None
    key: Mapping[str, Any] | None
    after: Mapping[str, Any] | None
    before: Mapping[str, Any] | None
    raw: Mapping[int, bytes]


def column_names(schema: pa.Schema) -> dict[int, str]:
    """Names of a topic's columns by their ids."""
    return {int(field.metadata[b"PARQUET:field_id"]): field.name for field in schema.field("after").type}


def change(topic: TopicId, row: Mapping[str, Any], names: Mapping[int, str]) -> Change:
    """One row (a dict in ``stored_schema``) as a value; ``names`` are those of its columns by id."""
    raw = dict(row["_raw"] or ())
    erased = erased_ids(raw)
    return Change(
        topic=topic,
        partition=row["_partition"],
        offset=row["_offset"],
        epoch=row["_epoch"],
        op=Op(row["_op"]),
        lsn=row["_lsn"],
        commit_ts=row["_commit_ts"],
        key=row["key"],
        after=_mark_erased(
            _drop_unknown(row["after"], names, row["_unchanged"]), [names.get(each) for each in erased]
        ),
        before=_mark_erased(row["before"], [names.get(-each) for each in erased]),
        raw={number: text for number, text in raw.items() if text is not None},
    )


def _mark_erased(values: Mapping[str, Any] | None, erased: Sequence[str | None]) -> Mapping[str, Any] | None:
    if values is None or not erased:
        return values
    return {name: ERASED if name in erased else value for name, value in values.items()}


def _drop_unknown(
    values: Mapping[str, Any] | None, names: Mapping[int, str], unknown: Sequence[int] | None
) -> Mapping[str, Any] | None:
    if values is None or not unknown:
        return values
    left_out = {names[number] for number in unknown}
    return {name: value for name, value in values.items() if name not in left_out}
