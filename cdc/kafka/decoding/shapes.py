"""Where a record has what: the envelope, and the row alone."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from tailrace.cdc.kafka.decoding.json_values import Names, Path, Paths
from tailrace.cdc.kafka.topics.declaration import Form

META = "__"
"""How the names of fields begin that ExtractNewRecordState adds to a row (``add.fields.prefix``)."""
DELETED: Path = ("__deleted",)
_SOURCE = ("ts_us", "ts_ms", "txId", "lsn", "sequence", "snapshot", "schema", "table")


@dataclass(frozen=True, slots=True)
class Shape:
    """Paths of what is read; of what may stand in several places, all of them. None: this form has no such thing."""

    after: Path
    before: Path | None
    op: Path
    micros: Path | None
    millis: Path | None
    xid: tuple[Path, ...]
    lsn: tuple[Path, ...]
    sequence: tuple[Path, ...]
    snapshot: tuple[Path, ...]
    transaction: Path | None
    table: tuple[Path, ...]

    def paths(self, columns: Iterable[str]) -> Paths:
        row: Names = dict.fromkeys(columns)
        if not self.after:
            extra = [path[0] for path in (*self._places(), DELETED)]
            return Paths({**row, **dict.fromkeys(extra)}, frozenset({()}), wrapped=True)
        images = [path for path in (self.before, self.after) if path]
        names: Names = {
            **{name: row for (name,) in images},
            "source": dict.fromkeys(_SOURCE),
            "transaction": {"id": None},
            "op": None,
            "ts_ms": None,
        }
        return Paths(names, frozenset(images), wrapped=True)

    def _places(self) -> list[Path]:
        single = [path for path in (self.op, self.micros, self.millis) if path]
        return [*single, *self.xid, *self.lsn, *self.sequence, *self.snapshot, *self.table]


_ENVELOPE = Shape(
    after=("after",),
    before=("before",),
    op=("op",),
    micros=("source", "ts_us"),
    millis=("source", "ts_ms"),
    xid=(("source", "txId"),),
    lsn=(("source", "lsn"),),
    sequence=(("source", "sequence"),),
    snapshot=(("source", "snapshot"),),
    transaction=("transaction", "id"),
    table=(("source", "schema"), ("source", "table")),
)
SHAPES = {
    Form.ENVELOPE: _ENVELOPE,
    Form.MESSAGES: replace(_ENVELOPE, after=("message",), before=None, table=()),
    Form.FLATTENED: Shape(
        after=(),
        before=None,
        op=("__op",),
        micros=("__source_ts_us",),
        millis=("__source_ts_ms",),
        xid=(("__txId",), ("__source_txId",)),
        lsn=(("__lsn",), ("__source_lsn",)),
        sequence=(("__sequence",), ("__source_sequence",)),
        snapshot=(("__snapshot",), ("__source_snapshot",)),
        transaction=None,
        table=(("__schema",), ("__table",)),
    ),
}
