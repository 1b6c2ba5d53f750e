"""How far a source is (head, sent, received, durable) and what its slot keeps, as the server reports it.

Any process may ask: the server knows what its walsender sent and what the capture reported back (protocol page,
"Streaming Replication Protocol"), so the capture itself may run elsewhere, or not at all.
"""

from __future__ import annotations

from dataclasses import dataclass

from psycopg import Connection

from tailrace.cdc.postgres.connect import Address, connect, translate_errors
from tailrace.eventstore.model.position import parse_lsn

SLOW_BYTES = 16 << 20  # one WAL segment: less than that behind is nobody's fault

_LADDER = """
SELECT CASE WHEN pg_catalog.pg_is_in_recovery() THEN pg_catalog.pg_last_wal_replay_lsn()
            ELSE pg_catalog.pg_current_wal_flush_lsn() END::text,
       pg_catalog.pg_is_in_recovery(), r.pid IS NOT NULL, r.sent_lsn::text, r.write_lsn::text,
       s.restart_lsn::text, s.wal_status, s.safe_wal_size::bigint,
       (SELECT w.wal_bytes
               / nullif(extract(epoch FROM now() - coalesce(w.stats_reset, pg_postmaster_start_time())), 0)
        FROM pg_catalog.pg_stat_wal w)::float8,
       extract(epoch FROM r.write_lag)::float8, extract(epoch FROM r.flush_lag)::float8,
       t.spill_txns::bigint, t.spill_bytes::bigint, extract(epoch FROM clock_timestamp() - r.reply_time)::float8
FROM (VALUES (%s::text)) x(slot)
LEFT JOIN pg_catalog.pg_replication_slots s ON s.slot_name = x.slot
LEFT JOIN pg_catalog.pg_stat_replication r ON r.pid = s.active_pid
LEFT JOIN pg_catalog.pg_stat_replication_slots t ON t.slot_name = s.slot_name
"""


@dataclass(frozen=True, slots=True)
class Ladder:
    """Byte positions in the server's WAL, never rising from ``head`` down to ``durable``. ``sent`` and ``received``
    are None while no capture is connected, the seconds also while there is nothing to wait for. ``remaining_bytes``:
    WAL that may still be written before the slot is lost, None when the server sets no limit. On a ``standby`` the head
    is what it has replayed."""

    head: int
    standby: bool
    sent: int | None
    received: int | None
    durable: int
    received_seconds: float | None
    durable_seconds: float | None
    slot_state: str
    retained_bytes: int
    remaining_bytes: int | None
    wal_bytes_per_second: float | None
    spilled_transactions: int
    spilled_bytes: int
    reply_seconds: float | None = None  # since the capture that is connected last answered the server

    def lag(self, position: int | None) -> int | None:
        """Bytes from the head down to ``position``."""
        return None if position is None else self.head - position

    @property
    def remaining_seconds(self) -> float | None:
        """The time until the slot is lost, if WAL is written as fast as on average since the server's statistics
        began."""
        if self.remaining_bytes is None or not self.wal_bytes_per_second:
            return None
        return self.remaining_bytes / self.wal_bytes_per_second

    @property
    def slow(self) -> str:
        """The slowest part; "" while none is behind."""
        if self.head - self.durable < SLOW_BYTES:
            return ""
        if self.sent is None or self.received is None:
            return "no capture is connected"
        gaps = {
            "the server: decoding its WAL": self.head - self.sent,
            "the network, or capture's reading": self.sent - self.received,
            "the log: decoding and storing": self.received - self.durable,
        }
        return max(gaps, key=lambda who: gaps[who])


def read_ladder(address: Address, slot: str, durable: int) -> Ladder:
    """The ladder of the source with this ``slot`` whose log holds every commit below ``durable``.

    Raises OperatorError and TransientError (out of reach).
    """
    with connect(address, "tailrace status") as connection:
        return _read(connection, address, slot, durable)


def _read(connection: Connection[tuple[object, ...]], address: Address, slot: str, durable: int) -> Ladder:
    with translate_errors("reading how far replication is", address):
        row = connection.execute(_LADDER, [slot]).fetchone()
    assert row is not None
    head, standby, connected, sent, received, restart, state, remaining, rate, *rest = row
    # The capture reports what it received only now and then; what is durable was surely received, and sent before.
    received_lsn = max(_lsn(received), durable) if connected else None
    sent_lsn = max(_lsn(sent), received_lsn) if received_lsn is not None else None
    head_lsn = max(_lsn(head), sent_lsn or durable)
    received_seconds, durable_seconds, transactions, spilled, replied = rest
    return Ladder(
        head=head_lsn,
        standby=bool(standby),
        sent=sent_lsn,
        received=received_lsn,
        durable=durable,
        received_seconds=_float(received_seconds),
        durable_seconds=_float(durable_seconds),
        slot_state=str(state or "missing"),
        retained_bytes=max(0, head_lsn - _lsn(restart)) if restart else 0,
        remaining_bytes=None if remaining is None else max(0, int(str(remaining))),
        wal_bytes_per_second=_float(rate),
        spilled_transactions=int(str(transactions or 0)),
        spilled_bytes=int(str(spilled or 0)),
        reply_seconds=_float(replied),
    )


def _lsn(value: object) -> int:
    return parse_lsn(str(value)) if value else 0


def _float(value: object) -> float | None:
    return None if value is None else float(str(value))
