"""Groups against a model of a few lines: whoever joins, leaves, dies, dawdles, commits and repartitions, every
partition is committed once, in order, without a gap, by one member at a time, and none before all is done that was
there before it: so each key's rows come in order."""

from __future__ import annotations

import itertools
import shutil
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from tailrace.eventstore.errors import Fenced
from tailrace.eventstore.maintenance.repartition import repartition
from tailrace.eventstore.model.topic import TopicId
from tailrace.eventstore.store import Store
from tailrace.eventstore.subscriptions.assignment import Slot
from tailrace.eventstore.subscriptions.batch import Batch
from tailrace.eventstore.subscriptions.group import Group
from tailrace.eventstore.subscriptions.join_options import Slow
from tailrace.eventstore.subscriptions.member import Member
from tailrace.eventstore.subscriptions.offsets import end_of
from tests.eventstore.shop import CUSTOMERS, ORDERS, batch, writer
from tests.fixtures.scale import Scale
from tests.support.machines import numbered_store, run_machine

LEASE = 60.0
NAMES = ("ann", "ben", "eve")


@dataclass
class Consumer:
    """A process: its own clock begins anywhere, and steps only forward."""

    group: Group
    member: Member
    now: float
    open: dict[Slot, Batch] = field(default_factory=dict)
    position: dict[Slot, int] = field(default_factory=dict)


class GroupMachine(RuleBasedStateMachine):
    def __init__(self, open_store: Callable[[], Store]) -> None:
        super().__init__()
        self.store = open_store()
        self.writer = writer(self.store)
        self.lsn = 0
        self.committed: dict[Slot, int] = defaultdict(int)
        self.consumers: dict[str, Consumer] = {}
        self.dead: list[Consumer] = []

    @initialize(keys=st.lists(st.integers(0, 9), min_size=1, max_size=8))
    def begin(self, keys: list[int]) -> None:
        self.append(keys)
        self.store.group("g", ["shop.public.*"], start="earliest")

    def teardown(self) -> None:
        """Whatever happened, one that comes now finishes the work."""
        for consumer in [*self.consumers.values(), *self.dead]:
            self.end(consumer)
        last = self.enter("last")
        waits = [LEASE + 1, LEASE + 1]  # the silent are seen, then waited for
        while (given := self.share_out(last, waits.pop() if waits else 0.0)) is not None or waits:
            if given is not None:
                self.take(last, given)
                self.commit_of(last, Slot(given.topic, given.partition))
        ends = {
            Slot(topic, number): end
            for topic in (ORDERS, CUSTOMERS)
            for number, end in enumerate(end_of(self.store, topic)[1])
        }
        assert {slot: self.committed[slot] for slot in ends} == ends
        self.end(last)
        self.store.close()

    @rule(keys=st.lists(st.integers(0, 9), min_size=1, max_size=8))
    def append(self, keys: list[int]) -> None:
        self.lsn += 1
        self.writer.append(batch(self.lsn, orders=[("u", key) for key in keys], customers=[("u", keys[0])]))

    @rule()
    def seal(self) -> None:
        self.store.seal()

    @rule(topic=st.sampled_from([ORDERS, ORDERS, CUSTOMERS]), count=st.sampled_from([1, 2, 3, 5]))
    def repartition(self, topic: TopicId, count: int) -> None:
        repartition(self.store, topic, count)

    @rule(name=st.sampled_from(NAMES), slow=st.sampled_from(["block", "buffer"]))
    def join(self, name: str, slow: Slow) -> None:
        """Also under a name that is taken: that process is out, and does not know it yet."""
        if name in self.consumers:
            self.dead.append(self.consumers.pop(name))
        self.consumers[name] = self.enter(name, slow)

    @precondition(lambda self: self.consumers)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        consumer = self.consumers.pop(data.draw(st.sampled_from(sorted(self.consumers))))
        consumer.member.__exit__(None, None, None)

    @precondition(lambda self: self.consumers)
    @rule(data=st.data())
    def die(self, data: st.DataObject) -> None:
        self.dead.append(self.consumers.pop(data.draw(st.sampled_from(sorted(self.consumers)))))

    @precondition(lambda self: self.consumers)
    @rule(data=st.data(), seconds=st.sampled_from([0.0, LEASE / 2, LEASE + 1]))
    def poll(self, data: st.DataObject, seconds: float) -> None:
        name = data.draw(st.sampled_from(sorted(self.consumers)))
        consumer = self.consumers[name]
        try:
            given = self.share_out(consumer, seconds)
        except Fenced:  # another found it silent
            self.dead.append(self.consumers.pop(name))
            return
        if given is not None:
            self.take(consumer, given)

    @precondition(lambda self: any(consumer.open for consumer in self.consumers.values()))
    @rule(data=st.data())
    def commit(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(n for n, each in self.consumers.items() if each.open)))
        consumer = self.consumers[name]
        self.commit_of(consumer, data.draw(st.sampled_from(sorted(consumer.open))))

    @precondition(lambda self: any(consumer.open for consumer in self.dead))
    @rule(data=st.data())
    def a_dead_one_commits(self, data: st.DataObject) -> None:
        """It was only slow: what nobody has taken from it may still land, all else is refused."""
        consumer = data.draw(st.sampled_from([each for each in self.dead if each.open]))
        self.commit_of(consumer, data.draw(st.sampled_from(sorted(consumer.open))))

    @invariant()
    def positions_are_what_was_committed(self) -> None:
        if self.lsn:
            for each in self.store.group("g", ["shop.public.*"], start="earliest").progress():
                assert each.next_offset == self.committed[each.slot]

    def enter(self, name: str, slow: Slow = "block") -> Consumer:
        group = self.store.group("g")
        member = group.join(name, lease=LEASE, batch_rows=3, slow=slow)
        consumer = Consumer(group, member, now=1000.0 * self.lsn)
        group.clock = lambda: consumer.now
        consumer.member.__enter__()
        return consumer

    @staticmethod
    def end(consumer: Consumer) -> None:
        consumer.member.__exit__(None, None, None)

    @staticmethod
    def share_out(consumer: Consumer, seconds: float) -> Batch | None:
        consumer.now += seconds
        return consumer.member.poll()

    def take(self, consumer: Consumer, given: Batch) -> None:
        slot = Slot(given.topic, given.partition)
        _, ends = end_of(self.store, given.topic)
        before = self.store.topic(given.topic).partitioning.incarnation_of(given.partition).first
        assert [self.committed[Slot(given.topic, earlier)] for earlier in range(before)] == ends[:before]
        assert given.rows["_offset"].to_pylist() == list(range(given.first_offset, given.end_offset))
        went_on = given.first_offset == consumer.position.get(slot)
        assert went_on or given.first_offset == self.committed[slot]
        consumer.position[slot] = given.end_offset
        consumer.open[slot] = given

    def commit_of(self, consumer: Consumer, slot: Slot) -> None:
        given = consumer.open.pop(slot)
        try:
            given.commit()
        except Fenced:
            return
        assert given.end_offset >= self.committed[slot]
        self.committed[slot] = given.end_offset


def test_a_group_equals_its_model(catalog_url: str, store_dir: Path, scale: Scale) -> None:
    numbers = itertools.count()

    def open_store() -> Store:
        number = next(numbers)
        shutil.rmtree(store_dir / str(number - 1), ignore_errors=True)
        root, chosen = numbered_store(catalog_url, store_dir, number, partitions=3)
        return Store.open(chosen, create=True, root=root)

    run_machine(
        lambda: GroupMachine(open_store),
        examples=scale.pick(smoke=2, full=50),
        steps=scale.pick(smoke=15, full=40),
    )
