"""The log against a model of a few lines: whatever is appended, sealed, taken over and cut, both say the same."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from tailrace.eventstore.errors import Fenced, UsageError
from tailrace.eventstore.log.writer import SourceWriter
from tailrace.eventstore.maintenance.files import fold, seal, tiers
from tailrace.eventstore.model.epoch import EpochBatch, TopicRows
from tailrace.eventstore.model.position import format_lsn
from tailrace.eventstore.model.topic import TopicId
from tailrace.eventstore.settings import UpkeepSettings
from tailrace.eventstore.store import Store
from tests.eventstore.shop import assert_dense, at, content, register, rows
from tests.fixtures.scale import Scale
from tests.support.machines import numbered_store, run_machine

SOURCES = ("shop", "bank")
CHANGES = st.lists(st.tuples(st.sampled_from("cudt"), st.integers(0, 40)), max_size=25)
TRANSACTION = st.tuples(st.integers(1, 3), st.integers(-5, 10), CHANGES, CHANGES)


@dataclass(frozen=True)
class Row:
    source: str
    table: str
    lsn: int
    ordinal: int
    commit_ts: datetime
    epoch: int
    copies: int  # a truncate is stored in each of the 4 partitions


class LogMachine(RuleBasedStateMachine):
    """Two sources append epochs of some transactions; times go forward and back."""

    def __init__(self, open_store: Callable[[], Store]) -> None:
        super().__init__()
        self.store = open_store()
        self.reader = self.store
        self.model: list[Row] = []
        self.epoch = 0
        self.hashes: list[str] = []
        self.lsn = dict.fromkeys(SOURCES, 100)
        self.through = dict.fromkeys(SOURCES, 0)
        self.clock = 0
        self.zombies: list[SourceWriter] = []

    @initialize()
    def begin(self) -> None:
        for source in SOURCES:
            register(self.store, source)
        self.writers = {source: self.store.take_over(source) for source in SOURCES}

    def teardown(self) -> None:
        assert self.store.verify().findings == ()
        self.store.close()

    @rule(
        source=st.sampled_from(SOURCES),
        transactions=st.lists(TRANSACTION, min_size=1, max_size=4),
        ahead=st.booleans(),
    )
    def append(
        self,
        source: str,
        transactions: list[tuple[int, int, list[tuple[str, int]], list[tuple[str, int]]]],
        ahead: bool,
    ) -> None:
        found: dict[str, list[pa.Table]] = {"orders": [], "customers": []}
        added: list[Row] = []
        self.lsn[source] = max(self.lsn[source], self.through[source] - 1)  # nothing new commits below it
        for step, seconds, *by_table in transactions:
            self.lsn[source] += step
            self.clock += 3
            moment = at(self.clock + seconds)
            for table, changes in zip(found, by_table, strict=True):
                found[table].append(rows(self.lsn[source], changes, moment))
                added += [
                    Row(source, table, self.lsn[source], i, moment, self.epoch + 1, 4 if op == "t" else 1)
                    for i, (op, _) in enumerate(changes)
                ]
        topic_rows = [
            TopicRows(TopicId.table(source, "public", table), 1, pa.concat_tables(parts))
            for table, parts in found.items()
        ]
        writer = self.writers[source]
        given = topic_rows
        files = []
        if ahead:  # the first topic as a file written ahead, the rest with the append
            files = [writer.prepare(given[0].topic, 1, given[0].rows)] if given[0].rows.num_rows else []
            given = given[1:]
        self.through[source] = self.lsn[source] + 1
        info = writer.append(
            EpochBatch(
                source,
                self.lsn[source],
                self.through[source],
                self.through[source],
                moment,
                len(transactions),
                given,
                files,
            )
        )
        assert (info is not None) == bool(added)
        if info is not None:
            self.epoch += 1
            self.hashes.append(info.hash)
            assert info.epoch == self.epoch
            assert info.rows == sum(row.copies for row in added)
        self.model += added

    @rule(source=st.sampled_from(SOURCES), ahead=st.integers(0, 3))
    def advance(self, source: str, ahead: int) -> None:
        through = self.lsn[source] + ahead
        self.through[source] = max(self.through[source], through)
        self.writers[source].advance(through, through)
        state = self.store.source(source)
        assert state is not None and state == self.writers[source].state
        assert state.through_lsn == self.through[source]

    @rule(source=st.sampled_from(SOURCES))
    def take_over(self, source: str) -> None:
        self.zombies.append(self.writers[source])
        self.writers[source] = self.store.take_over(source)

    @precondition(lambda self: self.zombies)
    @rule(data=st.data())
    def a_zombie_appends(self, data: st.DataObject) -> None:
        zombie = data.draw(st.sampled_from(self.zombies))
        source = zombie.state.name
        lsn = self.lsn[source] + 1000
        late = TopicRows(TopicId.table(source, "public", "orders"), 1, rows(lsn, [("c", 1)]))
        with pytest.raises(Fenced):
            zombie.append(EpochBatch(source, lsn, lsn, lsn, at(lsn), 1, [late]))

    @rule(up_to=st.integers(0, 30))
    def seal(self, up_to: int) -> None:
        self.store.seal(up_to)

    @rule()
    def merge(self) -> None:
        self.store.merge()

    @rule()
    def fold(self) -> None:
        self.store.fold()

    @rule()
    def maintain(self) -> None:
        self.store.maintain()

    @rule()
    def collect(self) -> None:
        self.store.collect_orphans()

    @rule(epoch=st.integers(0, 40))
    def cut_by_epoch(self, epoch: int) -> None:
        if epoch > self.epoch:
            with pytest.raises(UsageError):
                self.store.cut(epoch)
            return
        cut = self.store.cut(epoch)
        for source in SOURCES:
            self.compare(source, [row for row in self.of(source) if row.epoch <= epoch], cut=cut)

    @rule(source=st.sampled_from(SOURCES), back=st.integers(0, 20))
    def cut_by_lsn(self, source: str, back: int) -> None:
        lsn = self.lsn[source] + 3 - back
        text = f"{source}={format_lsn(lsn)}"
        if lsn > self.through[source]:
            with pytest.raises(UsageError):
                self.store.cut(text)
            return
        cut = self.store.cut(text)
        for name in SOURCES:
            expected = [
                row for row in self.of(name) if (row.lsn < lsn if name == source else row.epoch <= cut.epoch)
            ]
            self.compare(name, expected, cut=cut)

    @rule(seconds=st.integers(-5, 200))
    def cut_by_time(self, seconds: int) -> None:
        moment = at(seconds)
        cut = self.store.cut(moment)
        inside: list[Row] = []
        for source in SOURCES:
            earlier = list(itertools.takewhile(lambda row: row.commit_ts <= moment, self.of(source)))
            self.compare(source, earlier, cut=cut)
            inside += earlier
        if cut.below_lsn:
            lasts = [
                max(one, key=lambda row: row.lsn)
                for s in SOURCES
                if (one := [r for r in inside if r.source == s])
            ]
            assert cut.commit_ts == max((row.commit_ts for row in lasts), default=None)

    @rule(epoch=st.integers(0, 20))
    def read_after(self, epoch: int) -> None:
        for source in SOURCES:
            self.compare(source, [row for row in self.of(source) if row.epoch > epoch], after_epoch=epoch)

    @invariant()
    def nothing_is_missing_and_offsets_are_dense(self) -> None:
        if not self.model:
            return
        for source in SOURCES:
            self.compare(source, self.of(source))
            for table in ("orders", "customers"):
                assert_dense(content(self.store, TopicId.table(source, "public", table)))
        assert [info.epoch for info in self.store.epochs()] == list(range(1, self.epoch + 1))
        assert [info.hash for info in self.store.epochs()] == self.hashes

    def of(self, source: str) -> list[Row]:
        return [row for row in self.model if row.source == source]

    def compare(self, source: str, expected: list[Row], **how: object) -> None:
        for table in ("orders", "customers"):
            topic = TopicId.table(source, "public", table)
            found = sorted(
                (row["_lsn"], row["_ordinal"], row["_epoch"])
                for row in content(self.store, topic, columns=("_lsn", "_ordinal", "_epoch"), **how)
            )
            wanted = sorted(
                (row.lsn, row.ordinal, row.epoch)
                for row in expected
                if row.table == table
                for _ in range(row.copies)
            )
            assert found == wanted, (topic, how)


def test_the_log_equals_its_model(
    catalog_url: str, store_dir: Path, scale: Scale, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With all rows in files, some, and none."""
    monkeypatch.setattr(tiers, "FAN_IN", 2)  # so that a few epochs are merged in several tiers
    monkeypatch.setattr(seal, "CHUNK_EPOCHS", 3)
    monkeypatch.setattr(fold, "CHUNK", 2)
    numbers = itertools.count()

    def open_store() -> Store:
        number = next(numbers)
        shutil.rmtree(store_dir / str(number - 1), ignore_errors=True)
        root, chosen = numbered_store(
            catalog_url,
            store_dir,
            number,
            inline_bytes=(0, 3000, 1 << 20)[number % 3],
            upkeep=UpkeepSettings(keep_seconds=0, keep_epochs=1),
        )
        return Store.open(chosen, create=True, root=root)

    run_machine(
        lambda: LogMachine(open_store),
        examples=scale.pick(smoke=6, full=150),
        steps=scale.pick(smoke=15, full=40),
    )
