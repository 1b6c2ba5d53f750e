"""A connector that has a slot of a real Postgres and writes what that sends to Kafka, in Debezium's format. It is told
how many rows to send and up to which transaction to confirm the slot, so that it can be stopped anywhere."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import psycopg
from kafka import KafkaProducer

from tailrace.cdc.wire import pgoutput
from tailrace.eventstore.model.position import format_lsn, parse_lsn

_INTEGERS = (20, 21, 23)


@dataclass(frozen=True)
class Sent:
    """A row as it goes to Kafka."""

    topic: str
    key: bytes
    value: bytes | None
    headers: list[tuple[str, bytes]]
    xid: int
    commit_end: int


@dataclass
class SlotConnector:
    """``partition``: how keys are spread (None: the producer's way). Tables have REPLICA IDENTITY DEFAULT."""

    dsn: str
    brokers: str
    prefix: str
    slot: str = "debezium"
    publication: str = "dbz_publication"
    position: int = 0  # rows sent since the slot's position
    confirmed: int = 0
    relations: dict[int, pgoutput.Relation] = field(default_factory=dict)
    _last_commit: int = 0

    def __post_init__(self) -> None:
        self._producer = KafkaProducer(bootstrap_servers=self.brokers, acks="all")
        self._connection = psycopg.connect(self.dsn, autocommit=True)

    def close(self) -> None:
        self._producer.close()
        self._connection.close()

    def start(self, publication: str = "FOR ALL TABLES") -> None:
        """Make publication and slot, as Debezium does."""
        self._connection.execute(f"CREATE PUBLICATION {self.publication} {publication}")
        self._connection.execute(
            "SELECT pg_create_logical_replication_slot(%s::text, 'pgoutput')", [self.slot]
        )

    def snapshot(self, table: str, last: bool = True) -> None:
        """All rows of a table with a key ``id``."""
        rows = self._connection.execute(f"SELECT to_jsonb(t) FROM {table} t ORDER BY id").fetchall()  # noqa: S608
        found = self._connection.execute("SELECT pg_current_wal_lsn()::text").fetchone()
        assert found is not None
        lsn = parse_lsn(found[0])
        for at, (row,) in enumerate(rows):
            marker = "last" if last and at == len(rows) - 1 else "first" if at == 0 else "true"
            source = self._source(table, 1, lsn, None) | {"snapshot": marker}
            envelope = {"op": "r", "before": None, "after": row, "source": source}
            self._put(
                Sent(
                    f"{self.prefix}.{table}",
                    _json({"id": row["id"]}),
                    _json(envelope),
                    [],
                    0,
                    0,
                )
            )
        self._producer.flush()

    def pending(self) -> list[Sent]:
        """All rows that the slot sends."""
        rows = self._connection.execute(
            "SELECT lsn::text, data FROM pg_logical_slot_peek_binary_changes(%s, NULL, NULL, 'proto_version', '1',"
            " 'publication_names', %s)",
            [self.slot, self.publication],
        ).fetchall()
        found: list[Sent] = []
        last, xid, begun = self._last_commit, 0, 0
        for text, data in rows:
            lsn = parse_lsn(text)
            match pgoutput.decode(data):
                case pgoutput.Relation(relid) as relation:
                    self.relations[relid] = relation
                case pgoutput.Begin(xid=number):
                    xid, begun = number, len(found)
                case pgoutput.Commit(end_lsn=end):
                    found[begun:] = [Sent(**{**vars(each), "commit_end": end}) for each in found[begun:]]
                    last = end
                case pgoutput.Insert(relid, new):
                    found.append(self._row("c", relid, new, xid, lsn, last))
                case pgoutput.Update(relid, new, key):
                    moved = key is not None
                    if key is not None:
                        found += self._gone(relid, key, xid, lsn, last)
                    old = None if key is None else self._key(relid, key)
                    found.append(self._row("c" if moved else "u", relid, new, xid, lsn, last, old))
                case pgoutput.Delete(relid, key):
                    assert key is not None
                    found += self._gone(relid, key, xid, lsn, last)
        return found

    def send(self, count: int | None = None, *, skip: Sequence[int] = ()) -> int:
        """Send so many more rows, None: all; but those with a number in ``skip``. Gives how many were there."""
        rows = self.pending()
        until = len(rows) if count is None else min(len(rows), self.position + count)
        for number, each in enumerate(rows[self.position : until]):
            if number not in skip:
                self._put(each)
        self._producer.flush()
        self.position = until
        return len(rows)

    def send_forged(self, xid: int) -> None:
        """An update of a transaction that is not there."""
        found = self._connection.execute("SELECT pg_current_wal_lsn()::text").fetchone()
        assert found is not None
        lsn = parse_lsn(found[0])
        source = self._source("public.items", xid, lsn, lsn - 1)
        envelope = {"op": "u", "before": None, "after": {"id": 1, "note": "forged"}, "source": source}
        self._put(Sent(f"{self.prefix}.public.items", _json({"id": 1}), _json(envelope), [], xid, 0))
        self._producer.flush()

    def confirm(self, count: int) -> None:
        """Confirm the slot up to the last transaction of which the first ``count`` rows hold all."""
        rows = self.pending()
        ends = [
            each.commit_end
            for each in rows[:count]
            if all(other.commit_end != each.commit_end for other in rows[count:])
        ]
        if not ends:
            return
        self._connection.execute(
            "SELECT pg_replication_slot_advance(%s, %s::pg_lsn)", [self.slot, format_lsn(max(ends))]
        )
        self._last_commit = max(ends)
        self.position -= sum(each.commit_end <= max(ends) for each in rows)

    def _row(
        self,
        op: str,
        relid: int,
        cells: pgoutput.Tuple,
        xid: int,
        lsn: int,
        last: int,
        old: bytes | None = None,
    ) -> Sent:
        relation = self.relations[relid]
        after = {
            column.name: "__debezium_unavailable_value"
            if cell is pgoutput.UNCHANGED
            else _value(column.type_oid, cell)
            for column, cell in zip(relation.columns, cells, strict=True)
        }
        source = self._source(f"{relation.schema}.{relation.table}", xid, lsn, last)
        envelope = {"op": op, "before": None, "after": after, "source": source}
        headers = [] if old is None else [("__debezium.oldkey", old)]
        topic = f"{self.prefix}.{relation.schema}.{relation.table}"
        return Sent(topic, self._key(relid, cells), _json(envelope), headers, xid, 0)

    def _gone(self, relid: int, key: pgoutput.Tuple, xid: int, lsn: int, last: int) -> list[Sent]:
        relation = self.relations[relid]
        source = self._source(f"{relation.schema}.{relation.table}", xid, lsn, last)
        envelope = {"op": "d", "before": json.loads(self._key(relid, key)), "after": None, "source": source}
        topic = f"{self.prefix}.{relation.schema}.{relation.table}"
        return [Sent(topic, self._key(relid, key), _json(envelope), [], xid, 0)]

    def _key(self, relid: int, cells: pgoutput.Tuple) -> bytes:
        pairs = zip(self.relations[relid].columns, cells, strict=True)
        return _json({column.name: _value(column.type_oid, cell) for column, cell in pairs if column.is_key})

    def _source(self, table: str, xid: int, lsn: int, last: int | None) -> dict[str, Any]:
        schema, name = table.split(".")
        before = "null" if not last else f'"{last}"'
        return {
            "snapshot": "false", "schema": schema, "table": name, "txId": xid, "lsn": lsn,
            "sequence": f'[{before},"{lsn}"]', "ts_ms": 1_767_225_600_000,
        }  # fmt: skip

    def _put(self, each: Sent) -> None:
        self._producer.send(each.topic, key=each.key, value=each.value, headers=each.headers)


def _json(value: object) -> bytes:
    return json.dumps(value).encode()


def _value(type_oid: int, cell: pgoutput.Cell) -> Any:
    if cell is pgoutput.NULL:
        return None
    assert isinstance(cell, bytes)
    return int(cell) if type_oid in _INTEGERS else cell.decode()
