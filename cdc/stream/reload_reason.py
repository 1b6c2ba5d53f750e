"""Why a topic must be read again after a change of its schema. Pure."""

from __future__ import annotations

from collections.abc import Callable

from tailrace.cdc.columnar.schema_change import ChangeKind, SchemaChange
from tailrace.cdc.wire import ddl_message
from tailrace.eventstore.model.info import DROPPED
from tailrace.eventstore.model.schema import TopicSchema

# After these, rows may be different that the stream said nothing about.
_REASONS = {
    ChangeKind.RETYPED: "a column's type changed",
    ChangeKind.REKEYED: "its key changed",
    ChangeKind.REPLACED: "another table took its name",
    ChangeKind.PROTECTED: "the policy of a column changed",
    ChangeKind.REWRITTEN: "its rows were rewritten",
    ChangeKind.REPARTITIONED: "a partition was attached or detached",
    ChangeKind.REVALUED: "an enum label or a composite type that its values have was changed",
    ChangeKind.UNTOLD: "its columns changed before the DDL trigger was installed",
}


def reload_reason(change: SchemaChange, filled_unseen: Callable[[int, int], bool]) -> str:
    """Why the topic's state is not known after a change; "" when it is. ``filled_unseen``: whether the default of a
    column (oid of the table, attnum) may have filled existing rows without an event."""
    if change.previous is None:
        return ""
    if ChangeKind.GONE in change.kinds:
        return DROPPED
    kinds = set(change.kinds)
    if change.by_trigger and not _changes_values(change.previous, change.current):
        kinds.discard(ChangeKind.RETYPED)
    reasons = [text for kind, text in _REASONS.items() if kind in kinds]
    if not change.by_trigger:
        if {ChangeKind.ADDED, ChangeKind.DROPPED} <= kinds:
            # For a while one may have had the other's name, and the stream showed no difference.
            reasons.append("a column was dropped and another added")
        if _adds_unknown_values(change, filled_unseen):
            reasons.append("a column was added with a default that may have changed its rows")
    return f"read again: {' and '.join(reasons)}" if reasons else ""


def _changes_values(previous: TopicSchema, current: TopicSchema) -> bool:
    before = {column.id: column for column in previous.columns}
    return any(
        column.id in before and not ddl_message.keeps_values(before[column.id], column)
        for column in current.columns
    )


def _adds_unknown_values(change: SchemaChange, filled_unseen: Callable[[int, int], bool]) -> bool:
    known = {column.id for column in change.previous.columns} if change.previous else set()
    return any(
        column.id not in known
        and column.fill is None
        and (column.id in change.guessed or filled_unseen(change.current.relid, column.id))
        for column in change.current.columns
    )
