"""Chunks beside a stream lead to the table, on a simulated server that writes commits into the WAL long before they are
visible."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.cdc.snapshot.chunk_merge import PgSnapshot, TouchedKeys, current_rows
from tailrace.eventstore.model.epoch import TopicRows
from tailrace.eventstore.model.topic import TopicId

TOPIC = TopicId.table("shop", "public", "t")
KEYS = range(6)
SPACE = 1 << 32
Change = tuple[str, int, int]  # op, key, value


@dataclass
class Transaction:
    xid: int
    changes: list[Change]
    committed: bool = False


@dataclass
class Server:
    """A table under MVCC. A transaction runs, then commits into the WAL, then becomes visible; until then its keys are
    locked. A chunk's snapshot, its reading and its mark are moments of their own."""

    random: random.Random
    next_xid: int
    visible: dict[int, int] = field(default_factory=dict)
    open: list[Transaction] = field(default_factory=list)
    wal: list[Transaction | str] = field(default_factory=list)

    def begin(self) -> None:
        locked = {key for each in self.open for _, key, _ in each.changes}
        if self.random.random() < 0.05 and not self.open:
            changes: list[Change] = [("t", -1, 0)]
        else:
            free = [key for key in KEYS if key not in locked and -1 not in locked]
            chosen = self.random.sample(free, min(len(free), self.random.randint(0, 3)))
            changes = [(self.random.choice("ud"), key, self.random.randrange(1000)) for key in chosen]
        self.open.append(Transaction(self.next_xid, changes))
        self.next_xid += 1

    def commit(self) -> None:
        running = [each for each in self.open if not each.committed]
        if running:
            chosen = self.random.choice(running)
            chosen.committed = True
            self.wal.append(chosen)

    def show(self) -> None:
        held_back = [each for each in self.open if each.committed]
        if held_back:
            chosen = self.random.choice(held_back)
            self.open.remove(chosen)
            play(self.visible, chosen.changes)

    def step(self) -> None:
        self.random.choice([self.begin, self.commit, self.show])()

    def snapshot(self) -> PgSnapshot:
        running = {each.xid for each in self.open}
        return PgSnapshot(min(running, default=self.next_xid), self.next_xid, frozenset(running))

    def mark(self, name: str) -> None:
        self.next_xid += 1
        self.wal.append(name)


def play(state: dict[int, int], changes: list[Change]) -> None:
    for op, key, value in changes:
        if op == "t":
            state.clear()
        elif op == "d":
            state.pop(key, None)
        else:
            state[key] = value


def as_rows(transaction: Transaction) -> TopicRows:
    columns = {
        "_op": pa.array([op for op, _, _ in transaction.changes], pa.string()),
        "_txn": pa.array([transaction.xid % SPACE for _ in transaction.changes], pa.int64()),
        "_hash": pa.array([key for _, key, _ in transaction.changes], pa.int64()),
    }
    return TopicRows(TOPIC, 1, pa.table(columns))


@dataclass
class Loading:
    """The append side: the log's state, and chunks that wait for their mark."""

    log: dict[int, int] = field(default_factory=dict)
    touched: TouchedKeys = field(default_factory=TouchedKeys)
    waiting: dict[str, tuple[PgSnapshot, dict[int, int]]] = field(default_factory=dict)
    again: list[str] = field(default_factory=list)

    def read(self, entry: Transaction | str) -> None:
        if isinstance(entry, Transaction):
            self.touched.observe(as_rows(entry))
            play(self.log, entry.changes)
        elif entry in self.waiting:
            snapshot, rows = self.waiting.pop(entry)
            hashes = pa.table({"_hash": pa.array(rows, pa.int64())})
            kept = current_rows(hashes, snapshot, self.touched)
            if kept is None:
                self.again.append(entry)
                return
            self.log |= {key: rows[key] for key in kept["_hash"].to_pylist()}
            floors = [each for each, _ in self.waiting.values()]
            self.touched.forget([snapshot, *floors])


def load(server: Server, *, chunk_keys: int) -> tuple[Loading, int]:
    """Begin, wait for what runs, then read all keys in chunks that overlap in time."""
    loading = Loading()
    server.mark("begin")
    place = len(server.wal)
    begun = server.next_xid
    while server.snapshot().xmin < begun:
        server.step()
    todo = [f"{start}" for start in range(0, len(KEYS), chunk_keys)]
    while todo or loading.waiting or loading.again:
        todo += loading.again
        loading.again.clear()
        for name in todo[:2]:
            todo.remove(name)
            for _ in range(server.random.randrange(4)):
                server.step()
            snapshot, seen = server.snapshot(), dict(server.visible)
            for _ in range(server.random.randrange(6)):
                server.step()
            keys = range(int(name), int(name) + chunk_keys)
            loading.waiting[name] = snapshot, {key: seen[key] for key in keys if key in seen}
        for name in server.random.sample(sorted(loading.waiting), len(loading.waiting)):
            server.mark(name)
            server.step()
        while place < len(server.wal):
            loading.read(server.wal[place])
            place += 1
    return loading, place


@given(st.integers(0, 2**32), st.sampled_from([1, 2, 6]), st.sampled_from([100, 3 * SPACE - 9]))
def test_chunks_beside_the_stream_lead_to_the_table(seed: int, chunk_keys: int, first_xid: int) -> None:
    server = Server(random.Random(seed), first_xid)
    for _ in range(12):
        server.step()
    loading, place = load(server, chunk_keys=chunk_keys)
    while server.open:
        server.commit()
        server.show()
    for entry in server.wal[place:]:
        loading.read(entry)
    assert loading.log == server.visible


def test_a_row_of_a_commit_that_is_in_the_wal_and_not_visible_is_dropped() -> None:
    """Its commit stands before everything the chunk does: a window around the chunk would not see it."""
    touched = TouchedKeys()
    touched.observe(as_rows(Transaction(50, [("u", 1, 7)])))
    rows = pa.table({"_hash": pa.array([1, 2], pa.int64())})
    held_back, shown = PgSnapshot(50, 60, frozenset({50})), PgSnapshot(60, 60, frozenset())
    kept = current_rows(rows, held_back, touched)
    assert kept is not None and kept["_hash"].to_pylist() == [2]
    kept = current_rows(rows, shown, touched)
    assert kept is not None and kept["_hash"].to_pylist() == [1, 2]


def test_a_chunk_that_was_read_before_a_truncate_it_does_not_see_is_read_again() -> None:
    touched = TouchedKeys()
    touched.observe(as_rows(Transaction(70, [("t", 0, 0)])))
    rows = pa.table({"_hash": pa.array([1], pa.int64())})
    assert current_rows(rows, PgSnapshot(60, 60, frozenset()), touched) is None
    assert current_rows(rows, PgSnapshot(71, 71, frozenset()), touched) is not None


@pytest.mark.parametrize("xmax", [10, SPACE - 1, SPACE, 5 * SPACE + 3])
def test_transaction_ids_are_widened_across_their_wrap(xmax: int) -> None:
    near = np.array([xmax - 2, xmax - 1, xmax, xmax + 1], np.int64)
    snapshot = PgSnapshot(xmax, xmax, frozenset())
    assert snapshot.widen(near % SPACE).tolist() == near.tolist()
    assert snapshot.sees(near % SPACE).tolist() == [True, True, False, False]


def test_what_all_snapshots_see_is_forgotten() -> None:
    touched = TouchedKeys()
    for xid in (10, 20, 30):
        touched.observe(as_rows(Transaction(xid, [("u", xid, 1)])))
    touched.forget([PgSnapshot(20, 31, frozenset({20}))])
    assert len(touched) == 1  # that of 20, which is not seen


def test_a_transaction_that_stays_open_keeps_nothing_but_what_is_not_seen() -> None:
    touched = TouchedKeys()
    for xid in range(10, 1000):
        touched.observe(as_rows(Transaction(xid, [("u", xid, 1)])))
    touched.forget([PgSnapshot(9, 1000, frozenset({9})), PgSnapshot(9, 998, frozenset({9, 500}))])
    assert len(touched) == 3  # 500, 998 and 999
