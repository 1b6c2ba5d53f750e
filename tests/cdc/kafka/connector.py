"""A connector that writes the changes of a table to Kafka in Debezium's format, as it makes them in Postgres: the table
is the truth. It can be restarted, and then sends some rows again."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import psycopg
from kafka import KafkaProducer

from tailrace.eventstore.model.position import parse_lsn

Message = tuple[bytes, bytes | None]


@dataclass
class Connector:
    """One table (id integer, note text) and its Kafka topic of one partition."""

    dsn: str
    brokers: str
    topic: str
    table: str = "public.items"
    transactions: str = ""  # the topic of transaction metadata
    sent: list[Message] = field(default_factory=list)
    _commit: int = 0

    def __post_init__(self) -> None:
        self._producer = KafkaProducer(bootstrap_servers=self.brokers, acks="all")
        self._connection = psycopg.connect(self.dsn, autocommit=True)
        self._connection.execute(
            f"CREATE TABLE IF NOT EXISTS {self.table} (id integer PRIMARY KEY, note text)"
        )

    def close(self) -> None:
        self._producer.close()
        self._connection.close()

    def rows(self) -> dict[int, str]:
        """What the table holds."""
        return dict(self._connection.execute(f"SELECT id, note FROM {self.table}").fetchall())  # noqa: S608

    def snapshot(self) -> None:
        """All rows, with the markers of a snapshot."""
        rows = sorted(self.rows().items())
        lsn = self._lsn()
        for at, (key, note) in enumerate(rows):
            marker = "last" if at == len(rows) - 1 else "first" if at == 0 else "true"
            source = {"snapshot": marker, "txId": 1, "lsn": lsn, "sequence": f'[null,"{lsn}"]'}
            self._send(key, {"op": "r", "before": None, "after": {"id": key, "note": note}, "source": source})
        self.flush()

    def change(self, *changes: tuple[str, int, str]) -> None:
        """One transaction: inserts or updates (c, u) and deletes (d), each with a key and a note."""
        written: list[tuple[str, int, str, int]] = []
        with self._connection.transaction():
            xid = self._connection.execute("SELECT pg_current_xact_id()::text::bigint").fetchone()
            for operation, key, note in changes:
                lsn = self._lsn()
                if operation == "d":
                    gone = self._connection.execute(f"DELETE FROM {self.table} WHERE id = %s", [key])  # noqa: S608
                    if not gone.rowcount:
                        continue  # Postgres says nothing of it
                else:
                    self._connection.execute(
                        f"INSERT INTO {self.table} VALUES (%s, %s) ON CONFLICT (id) DO UPDATE SET note = EXCLUDED.note",  # noqa: S608
                        [key, note],
                    )
                written.append((operation, key, note, lsn))
        assert xid is not None
        for order, (operation, key, note, lsn) in enumerate(written, 1):
            source = {
                "snapshot": "false",
                "txId": xid[0],
                "lsn": lsn,
                "sequence": f'["{self._commit}","{lsn}"]',
            }
            after = None if operation == "d" else {"id": key, "note": note}
            envelope = {"op": operation, "before": None, "after": after, "source": source}
            self._send(key, {**envelope, "transaction": {"id": f"{xid[0]}:{lsn}", "total_order": order}})
            if operation == "d":
                self._put(self._key(key), None)
        if self.transactions:
            self._end(xid[0], len(written))
        self._commit = self._lsn()

    def _end(self, xid: int, rows: int) -> None:
        counts = [{"data_collection": ".".join(self.topic.split(".")[1:]), "event_count": rows}]
        document = {"status": "END", "id": f"{xid}:{self._lsn()}", "data_collections": counts}
        self._producer.send(self.transactions, value=json.dumps(document).encode())

    def restart(self, again: int) -> None:
        """Send the last so many messages again, as a connector does that had not kept its offset."""
        for key, value in self.sent[-again:]:
            self._producer.send(self.topic, key=key, value=value)
        self.flush()

    def send_raw(self, key: bytes, value: bytes | None) -> None:
        self._producer.send(self.topic, key=key, value=value)
        self.flush()

    def flush(self) -> None:
        self._producer.flush()

    def _send(self, key: int, envelope: dict[str, Any]) -> None:
        _, schema, table = self.topic.split(".")
        envelope["source"] |= {"schema": schema, "table": table, "ts_ms": 1_767_225_600_000}
        self._put(self._key(key), json.dumps(envelope).encode())

    def _put(self, key: bytes, value: bytes | None) -> None:
        self.sent.append((key, value))
        self._producer.send(self.topic, key=key, value=value)

    @staticmethod
    def _key(key: int) -> bytes:
        return json.dumps({"id": key}).encode()

    def _lsn(self) -> int:
        row = self._connection.execute("SELECT pg_current_wal_insert_lsn()::text").fetchone()
        assert row is not None
        return parse_lsn(str(row[0]))
