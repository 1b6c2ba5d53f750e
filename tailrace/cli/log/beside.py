"""What else the transactions of a row's history did: the events and messages that say why, the rows that changed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from tailrace.cli.log.row_format import ROW_OPS, Document, cell_line, one_line, sort_by_commit
from tailrace.eventstore.model.topic import TopicId, TopicKind

if TYPE_CHECKING:
    from tailrace.eventstore.model.info import TopicInfo
    from tailrace.eventstore.store import Store

ROWS_MAX = 100
"""Of a transaction so many events, and so many changes, are kept."""
_LINES = 3


@dataclass(slots=True)
class Beside:
    """Events and messages of one transaction, those of the row's own stream first; changes of other rows; and how many
    there were of both."""

    events: list[Document] = field(default_factory=list)
    changes: list[Document] = field(default_factory=list)
    own: int = 0
    count: int = 0

    def add(self, row: Document, stream: str) -> None:
        """Another row. ``stream``: the id of the row's own one."""
        self.count += 1
        event = is_event(row)
        if event and row["after"]["stream"] == stream:
            self.events.insert(self.own, row)
            self.own += 1
        elif len(kept := self.events if event or row["op"] == "m" else self.changes) < ROWS_MAX:
            kept.append(row)

    def lines(self, *, all_of_it: bool) -> list[str]:
        """Those of the row's own stream, else the first; or all that are kept."""
        rows = [*map(event_line, self.events), *map(_change_line, self.changes)]
        shown = rows if all_of_it else rows[: self.own or _LINES]
        more = self.count - len(shown)
        return [*shown, f"and {more} more of the transaction"] if more else shown


def beside(
    store: Store, info: TopicInfo, history: Sequence[Document], stream: str, *, changes: bool
) -> Mapping[str, Beside]:
    """By commit LSN. ``stream``: the id of the stream that is about the row. With ``changes`` those of tables, too."""
    import pyarrow as pa
    import pyarrow.compute as pc

    from tailrace.eventstore.model.position import Cut, parse_lsn
    from tailrace.eventstore.subscriptions.filter import Filter
    from tailrace.eventstore.subscriptions.tail import read_between

    own = {(row["topic"], row["partition"], row["offset"]) for row in history}
    found = {row["lsn"]: Beside() for row in history if row["txn"]}
    topics = [each for each in store.topics(info.id.source) if changes or each.kind is not TopicKind.TABLE]
    lsns = pa.array(sorted(map(parse_lsn, found)), pa.int64())
    for epoch in sorted({row["epoch"] for row in history if row["txn"]}):
        pieces = (
            replace(piece, rows=piece.rows.filter(pc.is_in(piece.rows["_lsn"], lsns)))
            for piece in read_between(store, topics, epoch - 1, Cut(epoch), Filter())
        )
        for row in sort_by_commit(pieces):
            at = found.get(row["lsn"])
            if at is not None and (row["topic"], row["partition"], row["offset"]) not in own:
                at.add(row, stream)
    return found


def is_event(row: Mapping[str, Any]) -> bool:
    """Whether it is an event that was appended, or read by a first load."""
    return TopicId.parse(row["topic"]).is_events and row["after"] is not None


def event_line(event: Mapping[str, Any]) -> str:
    """A domain event in a few words: its type, stream and data."""
    after = event["after"] or {}
    if "type" not in after:
        return f"message {after.get('prefix', '')}"
    return f"{after['type']} on {after['stream']} v{after['version']}: {cell_line(after['data'])}"


def _change_line(row: Mapping[str, Any]) -> str:
    return f"{row['topic']}: {ROW_OPS[row['op']]} {one_line(row)}"
