"""The whole store against one model: whatever is appended, kept in order, removed, consumed, moved and copied, readers,
consumers and states say what the model says, nothing goes that somebody needs, and the log verifies after each step."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

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

from tailrace.eventstore.errors import HistoryGone, UsageError
from tailrace.eventstore.maintenance.files import fold, seal, tiers
from tailrace.eventstore.maintenance.move.backup import backup
from tailrace.eventstore.maintenance.move.move import open_move
from tailrace.eventstore.maintenance.repartition import repartition
from tailrace.eventstore.maintenance.retention import plan
from tailrace.eventstore.maintenance.rounds import Round
from tailrace.eventstore.metadata import segment_index
from tailrace.eventstore.metadata.generations import InputNeed, NewGeneration
from tailrace.eventstore.metadata.projection_steps import NewStep
from tailrace.eventstore.model.epoch import EpochBatch, TopicRows
from tailrace.eventstore.model.position import format_lsn
from tailrace.eventstore.model.retention import Retention
from tailrace.eventstore.model.time import to_micros
from tailrace.eventstore.model.topic import TopicId
from tailrace.eventstore.settings import StoreSettings, TopicSettings, UpkeepSettings
from tailrace.eventstore.state.state import state
from tailrace.eventstore.store import Store
from tailrace.eventstore.subscriptions.assignment import Slot
from tests.eventstore.shop import CUSTOMERS, ORDERS, at, register, rows
from tests.eventstore.store_model import PARTITIONS, Row, TopicModel, last_rows
from tests.fixtures.scale import Scale
from tests.support.machines import numbered_store, run_machine

POLICIES = [
    {"retention": "keep"},
    {"retention": "20 s"},
    {"retention": Retention(bytes=9000)},
    {"retention": "compact", "compact_after": "10 s", "tombstones": "15 s"},
    {"retention": "compact + 30 s", "compact_after": "5 s", "tombstones": "0"},
]
NAMES = ("mails", "search")
TOPICS = (ORDERS, CUSTOMERS)
CHANGES = st.lists(st.tuples(st.sampled_from("ccuuudt"), st.integers(0, 12)), max_size=6)
TRANSACTIONS = st.lists(st.tuples(st.integers(-4, 9), CHANGES, CHANGES), min_size=1, max_size=3)
Position = tuple[int, int]  # the next offset, an epoch before which nothing is left to read

_clock = [0]


@dataclass
class Reading:
    """A reader of everything, in the middle of it."""

    topic: TopicId
    rows: Iterator[pa.RecordBatch]
    expected: list[tuple[int, int, int]]
    start: int
    given: list[tuple[int, int, int]] = field(default_factory=list)


class StoreMachine(RuleBasedStateMachine):
    def __init__(self, place: Callable[[int], tuple[Path, StoreSettings]]) -> None:
        super().__init__()
        self.place = place
        self.copies = itertools.count()
        self.epoch = 0
        self.lsn = 100
        self.written = 0  # seconds at which the last transaction committed
        self.latest: dict[int, int] = {}  # by epoch, of its youngest commit
        self.groups: dict[str, dict[Slot, Position]] = {}
        self.starts: dict[str, int] = {}  # epochs at which groups begin
        self.fence = 0
        self.readings: list[Reading] = []
        _clock[0] = 0

    @initialize(policies=st.tuples(st.sampled_from(POLICIES), st.sampled_from(POLICIES)))
    def begin(self, policies: tuple[dict[str, Any], dict[str, Any]]) -> None:
        chosen = {topic.text: TopicSettings(**policy) for topic, policy in zip(TOPICS, policies, strict=True)}
        self.models = {topic: TopicModel(chosen[topic.text]) for topic in TOPICS}
        self.policies = chosen
        self.folder, self.settings = self.place(0)
        self.settings = self.settings.model_copy(update={"topics": chosen})
        self.store = Store.open(self.settings, create=True, root=self.folder)
        register(self.store)
        self.writer = self.store.take_over("shop")
        self.append([(1, [("c", 1)], [("c", 2)])])
        self.store.derived.create_generation(NewGeneration(
            "totals", fingerprint="f", sink="mart", key=["id"], schema=b"", partitions=1, split=1,
            inputs=[InputNeed(ORDERS.text, "state", 0)],
        ))  # fmt: skip

    def teardown(self) -> None:
        if hasattr(self, "store"):
            self.store.close()

    # capture

    @rule(transactions=TRANSACTIONS)
    def append(self, transactions: list[tuple[int, list[tuple[str, int]], list[tuple[str, int]]]]) -> None:
        """Commit times go forward, and sometimes a little back."""
        found: dict[TopicId, list[pa.Table]] = {topic: [] for topic in TOPICS}
        changes: dict[TopicId, list[tuple[int, int, int, str, int]]] = {topic: [] for topic in TOPICS}
        for seconds, *by_topic in transactions:
            self.lsn += 1
            self.written += seconds
            for topic, given in zip(TOPICS, by_topic, strict=True):
                found[topic].append(rows(self.lsn, given, at(self.written)))
                changes[topic] += [
                    (self.lsn, at_, self.written, op, key) for at_, (op, key) in enumerate(given)
                ]
        batch = EpochBatch(
            "shop", self.lsn, self.lsn + 1, self.lsn + 1, at(self.written), len(transactions),
            [TopicRows(topic, 1, pa.concat_tables(parts)) for topic, parts in found.items()],
            completes=[] if self.epoch else list(TOPICS),
        )  # fmt: skip
        if self.writer.append(batch) is None:
            return
        self.epoch += 1
        self.latest[self.epoch] = max(change[2] for given in changes.values() for change in given)
        for topic, appended in changes.items():
            self.models[topic].append(self.epoch, appended)
        _clock[0] = max(_clock[0], self.written)

    @rule(topic=st.sampled_from(TOPICS), count=st.sampled_from([1, 2, 3, 6]))
    def repartition(self, topic: TopicId, count: int) -> None:
        """Rows of before stay; groups have to do the new partitions, too."""
        model = self.models[topic]
        done = repartition(self.store, topic, count)
        if count == model.spreads[-1][2]:
            assert not done.epoch
            return
        self.epoch += 1
        assert done.epoch == self.epoch
        model.repartition(count, self.epoch)
        for name, positions in self.groups.items():
            for number in done.after.numbers:
                positions[Slot(topic, number)] = (0, max(self.starts[name], self.epoch))

    # upkeep

    @rule()
    def seal(self) -> None:
        self.store.seal()

    @rule()
    def merge(self) -> None:
        self.store.merge()

    @rule()
    def fold(self) -> None:
        self.store.fold()

    @rule(seconds=st.sampled_from([-20, -3, 5, 15, 40]))
    def time_passes(self, seconds: int) -> None:
        """The wall clock, which somebody may set back."""
        _clock[0] = max(_clock[0] + seconds, 0)

    @rule(data=st.data())
    def maintain(self, data: st.DataObject) -> None:
        holding = sorted({name for topic in TOPICS for name, _ in self.readers(topic)})
        forced = data.draw(st.sampled_from([None, None, None, *holding]))
        before = {topic: self.bytes_behind(topic) for topic in TOPICS}
        self.store.seal()
        try:
            done = self.store.maintain(force_past=[forced] if forced else [])
        except UsageError:  # everybody it could name needs only topics that keep all
            kept = {t for t in TOPICS if self.models[t].policy.retention.keeps_all}
            assert forced and {t for t in TOPICS if forced in dict(self.readers(t))} <= kept
            return
        for topic in TOPICS:
            self.removed(topic, done, forced, before[topic])

    def removed(self, topic: TopicId, done: Round, forced: str | None, files: list[tuple[int, int]]) -> None:
        """What retention did with a topic is what its policy says and its readers let it."""
        model = self.models[topic]
        policy = model.policy.retention
        found = self.store.log_start(topic)
        deleted = compacted = 0
        if policy.seconds is not None:
            deleted = self.older_than(topic, policy.seconds)
        if policy.compact:
            compacted = self.older_than(topic, model.policy.compact_after)
        needs = {name: epoch for name, epoch in self.readers(topic) if name != forced}
        cut = min([max(deleted, compacted), *needs.values()])
        if policy.bytes is not None:
            assert found.epoch <= min([self.epoch, *needs.values()]) or found.epoch == model.start
            left = sum(size for last, size in files if last > found.epoch)
            assert found.epoch == model.start or left >= policy.bytes
            cut = found.epoch
        due = any(model.start < row.epoch <= cut for row in model.rows)
        assert found.epoch == (cut if due or found.epoch != model.start else model.start)
        if found.epoch > model.start:
            tombstones = self.older_than(topic, model.policy.tombstones) if policy.compact else None
            model.begin_behind(cut, min(deleted, cut) if policy.compact else cut, tombstones)
            (removal,) = [each for each in done.removed if each.topic == topic.text]
            assert removal.epoch == cut
        assert list(found.offsets) == model.first

    def older_than(self, topic: TopicId, seconds: float) -> int:
        return self.models[topic].older_than(seconds, _clock[0], self.latest, self.epoch)

    def readers(self, topic: TopicId) -> Iterator[tuple[str, int]]:
        """Who needs rows of a topic behind which epoch."""
        model = self.models[topic]
        for name, positions in self.groups.items():
            needs = [
                epoch - 1
                for slot, (offset, epoch) in positions.items()
                if slot.topic == topic and model.first[slot.partition] <= offset < model.ends[slot.partition]
            ]
            if needs:
                yield name, min(needs)
        if topic == ORDERS and self.fence:
            yield "totals", self.fence

    def bytes_behind(self, topic: TopicId) -> list[tuple[int, int]]:
        self.store.seal()
        self.store.merge()
        return [(ref.last_epoch, ref.bytes) for ref in self.store.files(topic)]

    # consumers

    @rule(name=st.sampled_from(NAMES), back=st.integers(-1, 6))
    def make_group(self, name: str, back: int) -> None:
        if name in self.groups:
            return
        start = {-1: "earliest", 0: "latest"}.get(back, max(self.epoch - back, 0))
        if isinstance(start, int) and any(start < model.start for model in self.models.values()):
            with pytest.raises(HistoryGone):
                self.store.group(name, ["shop.public.*"], start=start)
            return
        self.store.group(name, ["shop.public.*"], start=start)
        self.groups[name] = self.positions_at(TOPICS, start)
        self.starts[name] = start if isinstance(start, int) else self.epoch if start == "latest" else 0

    def positions_at(self, topics: tuple[TopicId, ...], start: str | int) -> dict[Slot, Position]:
        epoch = start if isinstance(start, int) else self.epoch if start == "latest" else 0
        return {
            Slot(topic, partition): (offset, max(epoch, self.models[topic].spread_of(partition)[0]))
            for topic in topics
            for partition, offset in enumerate(
                self.models[topic].first if start == "earliest" else self.models[topic].offsets_at(epoch)
            )
        }

    @precondition(lambda self: self.groups)
    @rule(data=st.data(), polls=st.integers(1, 8), commits=st.booleans(), again=st.booleans())
    def consume(self, data: st.DataObject, polls: int, commits: bool, again: bool) -> None:
        """A process comes, gets some batches, commits them or not, and goes."""
        name = data.draw(st.sampled_from(sorted(self.groups)))
        committed = self.groups[name]
        at_ = {slot: offset for slot, (offset, _) in committed.items()}
        passed = {
            slot for slot, offset in at_.items() if offset < self.models[slot.topic].first[slot.partition]
        }
        with self.store.group(name).join("one", batch_rows=4) as member:
            for _ in range(100 if again and commits else polls):
                try:
                    found = member.poll()
                except HistoryGone:
                    assert passed
                    break
                if found is None:
                    assert not passed
                    assert not any(
                        self.left(slot, offset)
                        for slot, offset in at_.items()
                        if self.is_open(slot, committed)
                    )
                    break
                slot = Slot(found.topic, found.partition)
                assert slot not in passed
                assert self.is_open(slot, committed)
                expected = self.left(slot, at_[slot])
                given = list(
                    zip(found.rows["_offset"].to_pylist(), found.rows["_epoch"].to_pylist(), strict=True)
                )
                assert given == [(row.offset, row.epoch) for row in expected[: len(given)]] != []
                at_[slot] = found.end_offset
                if commits:
                    found.commit()
                    committed[slot] = (found.end_offset, found.last_epoch)
        if passed:
            self.store.group(name).reset("earliest")
            self.groups[name] = self.positions_at(TOPICS, "earliest")

    def is_open(self, slot: Slot, committed: dict[Slot, Position]) -> bool:
        """Whether all is done that the topic's earlier incarnations hold."""
        model = self.models[slot.topic]
        return all(
            committed[Slot(slot.topic, earlier)][0] >= model.ends[earlier]
            for earlier in range(model.spread_of(slot.partition)[1])
        )

    def left(self, slot: Slot, offset: int) -> list[Row]:
        return self.models[slot.topic].of_partition(slot.partition, offset)

    @precondition(lambda self: self.groups)
    @rule(data=st.data(), topic=st.sampled_from(TOPICS), back=st.integers(-1, 6))
    def reset(self, data: st.DataObject, topic: TopicId, back: int) -> None:
        name = data.draw(st.sampled_from(sorted(self.groups)))
        to = {-1: "earliest", 0: "latest"}.get(back, max(self.epoch - back, 0))
        group = self.store.group(name)
        if isinstance(to, int) and to < self.models[topic].start:
            with pytest.raises(HistoryGone):
                group.reset(to, [topic.text])
            return
        group.reset(to, [topic.text])
        self.groups[name] |= self.positions_at((topic,), to)

    @rule()
    def a_projection_goes_on(self) -> None:
        if self.epoch > self.fence:
            self.store.steps.commit(
                NewStep(
                    "totals", 1, from_epoch=self.fence, to_epoch=self.epoch, kind="full", files=[], rows=0
                )
            )
            self.fence = self.epoch

    # readers

    @rule(topic=st.sampled_from(TOPICS))
    def begin_to_read(self, topic: TopicId) -> None:
        model = self.models[topic]
        expected = [row.place for row in model.readable()]
        reading = Reading(topic, self.store.read(topic), expected, model.start)
        self.readings.append(reading)
        self.read_on(reading, 1)

    @precondition(lambda self: self.readings)
    @rule(data=st.data(), batches=st.integers(1, 5))
    def go_on_reading(self, data: st.DataObject, batches: int) -> None:
        self.read_on(self.readings[data.draw(st.integers(0, len(self.readings) - 1))], batches)

    def read_on(self, reading: Reading, batches: int) -> None:
        """It gets all, or the error that retention was faster; never less, and nothing twice."""
        for _ in range(batches):
            try:
                given = next(reading.rows, None)
            except HistoryGone:
                assert self.models[reading.topic].start > reading.start
                self.readings.remove(reading)
                return
            if given is None:
                assert reading.given == reading.expected
                self.readings.remove(reading)
                return
            reading.given += places(given)
            assert reading.given == reading.expected[: len(reading.given)]

    @rule(topic=st.sampled_from(TOPICS), back=st.integers(0, 12))
    def read_after(self, topic: TopicId, back: int) -> None:
        model, epoch = self.models[topic], max(self.epoch - back, 0)
        if 0 < epoch < model.start:
            with pytest.raises(HistoryGone):
                list(self.store.read(topic, after_epoch=epoch))
            return
        expected = model.after(epoch) if epoch else model.readable()
        assert [each for given in self.store.read(topic, after_epoch=epoch) for each in places(given)] == [
            row.place for row in expected
        ]

    @rule(topic=st.sampled_from(TOPICS), back=st.integers(0, 12))
    def state_at_an_epoch(self, topic: TopicId, back: int) -> None:
        epoch = max(self.epoch - back, 1)
        if epoch < self.models[topic].start:
            with pytest.raises(HistoryGone):
                self.states(topic, epoch)
            return
        assert self.states(topic, epoch) == self.expected(
            [row for row in self.models[topic].rows if row.epoch <= epoch]
        )

    @rule(topic=st.sampled_from(TOPICS), back=st.integers(0, 12))
    def state_at_an_lsn(self, topic: TopicId, back: int) -> None:
        lsn = max(self.lsn + 1 - back, 102)
        model = self.models[topic]
        removed_later = any(row.lsn >= lsn and row.epoch <= model.start for row in model.rows)
        try:
            found = self.states(topic, format_lsn(lsn))
        except HistoryGone:
            assert model.start
            return
        assert not removed_later
        assert found == self.expected([row for row in model.rows if row.lsn < lsn])

    def states(self, topic: TopicId, as_of: str | int) -> dict[int, str | None]:
        found = state(self.store, topic, self.store.cut(as_of), on_unreadable="null")
        return {row["id"]: row["note"] for table in found for row in table.to_pylist()}

    @staticmethod
    def expected(rows_: list[Row]) -> dict[int, str | None]:
        return {key: row.note for key, row in last_rows(rows_).items()}

    # elsewhere

    @precondition(lambda self: self.store.catalog.path is not None)
    @rule()
    def copy(self) -> None:
        """A backup is a store of its own that says the same."""
        folder = self.folder / "copies"
        done = backup(self.store, folder)
        assert done.epoch == self.epoch
        chosen = StoreSettings(
            catalog="sqlite:///catalog.db", segments=Path("segments"), topics=self.policies
        )
        with Store.open(chosen, root=folder) as self_:
            self.agrees(self_)

    @rule()
    def move(self) -> None:
        """To a place of its own; readers that are under way are not carried over."""
        folder, there = self.place(1 + next(self.copies))
        there = there.model_copy(
            update={
                "topics": self.policies,
                "catalog": f"sqlite:///{folder / 'catalog.db'}",
                "segments": folder / "segments",
            }
        )
        self.store.close()
        here = self.settings.model_copy(update={"segments": self.folder / Path(self.settings.segments)})
        if here.catalog.startswith("sqlite:///catalog"):
            here = here.model_copy(update={"catalog": f"sqlite:///{self.folder / 'catalog.db'}"})
        with open_move(here, there, folder) as move:
            move.run(lambda _: None, lambda *_: None)
        self.folder, self.settings = folder, there
        self.store = Store.open(there, root=folder)
        self.writer = self.store.take_over("shop")
        self.readings.clear()

    # after each step

    @invariant()
    def it_says_what_the_model_says(self) -> None:
        if self.epoch:
            self.agrees(self.store)

    def agrees(self, store: Store) -> None:
        found = store.verify()
        assert found.findings == ()
        assert (found.epoch, [info.epoch for info in store.epochs()]) == (
            self.epoch,
            list(range(1, self.epoch + 1)),
        )
        for topic, model in self.models.items():
            expected = [row.place for row in model.readable()]
            assert [each for given in store.read(topic) for each in places(given)] == expected
        for name, positions in self.groups.items():
            shown = {each.slot: each.next_offset for each in store.group(name).progress()}
            done = {
                slot
                for slot, (offset, _) in positions.items()
                if slot.partition < self.models[slot.topic].spreads[-1][1]
                and offset >= self.models[slot.topic].ends[slot.partition]
            }
            assert shown == {slot: at_ for slot, (at_, _) in positions.items() if slot not in done}, name


def places(given: pa.RecordBatch) -> list[tuple[int, int, int]]:
    return [(row["_partition"], row["_offset"], row["_epoch"]) for row in given.to_pylist()]


def test_the_store_equals_its_model(
    catalog_url: str, store_dir: Path, scale: Scale, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tiers, "FAN_IN", 2)  # so that a few epochs are merged in several tiers
    monkeypatch.setattr(seal, "CHUNK_EPOCHS", 3)
    monkeypatch.setattr(fold, "CHUNK", 2)
    monkeypatch.setattr(segment_index, "_PAGE_EPOCHS", 3)
    monkeypatch.setattr(plan, "WORTH", 0.0)  # a step is taken as soon as there is one
    monkeypatch.setattr(plan, "now_micros", lambda: to_micros(at(_clock[0])))
    numbers = itertools.count()

    def place(which: int) -> tuple[Path, StoreSettings]:
        number = next(numbers)
        if not which:
            for former in range(number):
                shutil.rmtree(store_dir / str(former), ignore_errors=True)
        root, settings = numbered_store(
            catalog_url,
            store_dir,
            number,
            partitions=PARTITIONS,
            inline_bytes=2500,
            upkeep=UpkeepSettings(keep_seconds=0, keep_epochs=2),
        )
        root.mkdir()
        return root, settings

    run_machine(
        lambda: StoreMachine(place),
        examples=scale.pick(smoke=2, full=30),
        steps=scale.pick(smoke=18, full=40),
    )
