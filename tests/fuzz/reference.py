"""A second decoder of blocks, slow and plain: ``tailrace.cdc.wire.pgoutput``, message by message, and the rules on
top of it.

All columns are text, so a row is what the server sent. Written from the rules in ``tailrace.cdc.columnar.decode``,
not from its
code.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tailrace.cdc.columnar.relations import IgnoredRoute, Relations, TableRoute
from tailrace.cdc.policy.policies import Policies
from tailrace.cdc.wire import pgoutput as pg
from tailrace.eventstore.errors import ProtocolError
from tailrace.eventstore.model.keys import hash_texts
from tests.cdc.messages import SOURCE, TEXT, Table

KEYED = Table(1, "keyed", [("id", TEXT, -1, True), ("a", TEXT, -1, False), ("b", TEXT, -1, False)])
FULL = Table(2, "full", [("a", TEXT, -1, False), ("id", TEXT, -1, True)], identity="f")
WIDE = Table(3, "wide", [(f"c{number}", TEXT, -1, number in (2, 7)) for number in range(9)], identity="i")
TABLES = (KEYED, FULL, WIDE)

Row = dict[str, Any]


def refuse(problem: str) -> ProtocolError:
    return ProtocolError(problem, hint="")


class Reference:
    """Takes messages of one block; ``rows`` are (topic, row) in the order of the stream."""

    def __init__(self) -> None:
        latest = {table.topic: table.topic_schema for table in TABLES}
        self._relations = Relations(SOURCE, latest, lambda relation: None, Policies())
        self.rows: list[tuple[str, Row]] = []
        self.ignored = 0
        self._open = False
        self._lsn = self._xid = self._ordinal = 0

    def decode(self, frames: Iterable[bytes]) -> None:
        """Raises ProtocolError."""
        for frame in frames:
            self._take(pg.decode(frame))
        if self._open:
            raise refuse("no commit")

    def _take(self, message: pg.PgOutput) -> None:
        match message:
            case pg.Begin(lsn, _, xid):
                if self._open or lsn >> 63:
                    raise refuse("begin")
                self._open, self._lsn, self._xid, self._ordinal = True, lsn, xid, 0
            case pg.Commit(lsn):
                if not self._open or lsn != self._lsn:
                    raise refuse("commit")
                self._open = False
            case pg.Relation():
                self._relations.announce(message)
            case pg.Message(transactional, _, prefix, content):
                self._message(transactional, prefix, content)
            case pg.Insert() | pg.Update() | pg.Delete():
                self._change(message)
            case pg.Truncate(relids):
                for relid in self._inside(relids):
                    route = self._relations.resolve(relid, self._lsn)
                    if isinstance(route, TableRoute):
                        self._add(route, "t", None, None)
                    else:
                        self.ignored += 1

    def _inside(self, relids: tuple[int, ...]) -> tuple[int, ...]:
        if not self._open:
            raise refuse("outside of a transaction")
        return relids

    def _message(self, transactional: bool, prefix: str, content: bytes) -> None:
        if not transactional:
            self.ignored += 1
            return
        self._inside(())
        if not prefix.startswith("tailrace."):
            row = {"_op": "m", "after": {"prefix": prefix, "content": content}}
            self._emit(f"{SOURCE}.pg_logical.messages", {**row, "_hash": hash_texts([prefix])})

    def _change(self, message: pg.Insert | pg.Update | pg.Delete) -> None:
        (relid,) = self._inside((message.relid,))
        route = self._relations.resolve(relid, self._lsn)
        new = None if isinstance(message, pg.Delete) else message.new
        key, old = (None, None) if isinstance(message, pg.Insert) else (message.key, message.old)
        before = old if old is not None else key
        for cells in (new, before):
            if any(isinstance(cell, pg.Binary) for cell in cells or ()):
                raise refuse("binary")
        if isinstance(route, IgnoredRoute):
            self.ignored += 1
            return
        assert isinstance(route, TableRoute)
        if any(cells is not None and len(cells) != len(route.schema.columns) for cells in (new, before)):
            raise refuse("width")
        self._write(route, "c" if isinstance(message, pg.Insert) else "u", new, key, old)

    def _write(
        self, route: TableRoute, op: str, new: pg.Tuple | None, key: pg.Tuple | None, old: pg.Tuple | None
    ) -> None:
        columns = route.schema.columns
        before = old if old is not None else key
        if new is None:
            self._add(route, "d", None, before, full=old is not None)
            return
        if before is not None:
            new = tuple(
                there if cell is pg.UNCHANGED and (old is not None or column.key) else cell
                for cell, there, column in zip(new, before, columns, strict=True)
            )
        keys = [at for at, column in enumerate(columns) if column.key]
        if any(new[at] is pg.UNCHANGED for at in keys):
            raise refuse("key left out")
        if before is None or all(before[at] == new[at] for at in keys):
            self._add(route, op, new, before, full=old is not None)
        else:
            self._add(route, "d", None, before, full=old is not None)
            self._add(route, "c", new, None, moved=before)

    def _add(
        self,
        route: TableRoute,
        op: str,
        new: pg.Tuple | None,
        before: pg.Tuple | None,
        *,
        full: bool = False,
        moved: pg.Tuple | None = None,
    ) -> None:
        columns = route.schema.columns
        identity = new if new is not None else before
        raw: list[tuple[int, bytes]] = []
        keys = [column.key for column in columns]
        row: Row = {"_op": op, "_before": "none" if before is None else "full" if full else "key"}
        row["after"] = image(route, new, raw) if new is not None else None
        row["key"] = None
        if identity is not None:
            row["key"] = image(route, identity, [] if new is not None else raw, only=keys)
        row["before"] = image(route, before, raw, -1, None if full else keys) if before is not None else None
        if row["before"] is not None:
            row["before"] = {column.name: row["before"].get(column.name) for column in columns}
        row["_moved_from"] = image(route, moved, raw, -1, keys) if moved is not None else None
        unsent = [c.id for c, cell in zip(columns, new or (), strict=bool(new)) if cell is pg.UNCHANGED]
        row["_unchanged"], row["_raw"] = unsent or None, raw or None
        texts = [cell for cell, is_key in zip(identity or (), keys, strict=False) if is_key]
        row["_hash"] = (
            hash_texts([cell if isinstance(cell, bytes) else None for cell in texts]) if identity else 0
        )
        self._emit(route.topic.text, row)

    def _emit(self, topic: str, row: Row) -> None:
        stamp = {"_lsn": self._lsn, "_txn": self._xid, "_ordinal": self._ordinal}
        self.rows.append((topic, {**row, **stamp}))
        self._ordinal += 1


def image(
    route: TableRoute,
    cells: pg.Tuple,
    raw: list[tuple[int, bytes]],
    sign: int = 1,
    only: list[bool] | None = None,
) -> Row:
    values: Row = {}
    for number, (column, cell) in enumerate(zip(route.schema.columns, cells, strict=True)):
        if only is not None and not only[number]:
            continue
        value = None
        if isinstance(cell, bytes):
            try:
                value = cell.decode()
            except UnicodeDecodeError:
                raw.append((sign * column.id, cell))
        values[column.name] = value
    return values
