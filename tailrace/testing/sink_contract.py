"""What every sink must keep, as a suite of tests: our sinks pass it, and so can a user's own.

    class TestMySink(SinkContract):
        @pytest.fixture(autouse=True)
        def place(self, my_server):
            self.opener = functools.partial(MySink, my_server.url)

``opener`` opens the sink as another process would. It must pickle, because the suite kills processes in the middle of a
step (``sink_crashes``). The tests are plain functions with asserts: any runner that calls ``test_*`` will do. A sink
that holds fewer types sets ``schema`` to what it holds. ``process`` may be another ``Popen`` that starts Python faster.
"""

from __future__ import annotations

import random
from contextlib import suppress
from dataclasses import replace

import pyarrow as pa

from tailrace.eventstore.errors import Fenced, NotOwner, TailraceError, UsageError
from tailrace.eventstore.model.position import Fence
from tailrace.projections.sinks.contract import InMotion, ResumableLoad, SnapshotSink
from tailrace.testing.sink_crashes import SinkCrashes
from tailrace.testing.sink_steps import Row, SinkStep, pieces, raises


class SinkContract(SinkCrashes):
    """Subclass it, set ``opener``, and let a test runner find the subclass."""

    def test_check_finds_nothing_and_writes_nothing(self) -> None:
        target = self.target()
        self.opener().check(target)
        assert self.opener().fence(target) is None
        assert self.opener().live(target.store, target.projection) is None
        assert self.content(target) == []

    def test_check_names_every_column_that_no_sink_can_hold(self) -> None:
        bad = [pa.field("nested", pa.struct([("x", pa.int32())])), pa.field("_epoch", pa.int64())]
        target = replace(self.target(), schema=pa.schema([*self.schema, *bad]), key=(*self.key, "absent"))
        with raises(TailraceError) as caught:
            self.opener().check(target)
        assert all(name in str(caught[0]) for name in ("nested", "_epoch", "absent"))

    def test_an_empty_generation_shows_nothing(self) -> None:
        target = self.target()
        self.opener().create(target)
        self.assert_holds(target, [], None)
        assert self.opener().live(target.store, target.projection) is None

    def test_every_value_comes_back_as_it_was(self) -> None:
        target = self.target()
        self.opener().create(target)
        step = SinkStep(self.fence(target, 1), tuple(self.row(number) for number in range(120)))
        self.apply(target, None, step)
        self.assert_holds(target, step.upserts, step.to)

    def test_creating_again_changes_nothing(self) -> None:
        target = self.target()
        first = self.filled(target)
        self.opener().create(target)
        self.assert_holds(target, first.upserts, first.to)

    def test_a_generation_says_whose_it_is_before_its_first_step_and_after_it(self) -> None:
        target = self.target()
        assert self.opener().owner(target) is None
        self.opener().create(target)
        assert self.opener().owner(target) == target.log_id
        self.filled(target)
        assert self.opener().owner(target) == target.log_id
        self.opener().drop(target)
        assert self.opener().owner(target) is None

    def test_another_logs_generation_is_neither_created_again_nor_dropped(self) -> None:
        """Two stores may have one name. Nothing of the other's has a fence yet while it is built."""
        empty, full = self.target(), self.target(2)
        self.opener().create(empty)
        first = self.filled(full)
        for mine in (empty, full):
            theirs = replace(mine, log_id="log-2")
            assert self.opener().owner(theirs) == mine.log_id
            with raises(NotOwner):
                self.opener().create(theirs)
            with raises(NotOwner):
                self.opener().drop(theirs)
            assert self.opener().owner(mine) == mine.log_id
        self.assert_holds(full, first.upserts, first.to)
        self.opener().drop(empty)
        self.opener().create(replace(empty, log_id="log-2"))
        assert self.opener().owner(empty) == "log-2"

    def test_an_untouched_generation_may_get_other_columns(self) -> None:
        target = self.target()
        more = self.schema.append(pa.field("dropped_later", pa.int64()))
        self.opener().create(replace(target, schema=more))
        first = self.filled(target)
        self.assert_holds(target, first.upserts, first.to)

    def test_a_step_changes_its_rows_and_no_others(self) -> None:
        target = self.target()
        first = self.filled(target, range(20))
        second = SinkStep(
            self.fence(target, 11),
            upserts=(self.row(3, seed=1), self.row(50)),
            deletes=(self.key_of(4), self.key_of(99)),  # the last was never there
        )
        self.apply(target, first.to, second)
        expected = [self.row(n) for n in range(20) if n not in (3, 4)] + list(second.upserts)
        self.assert_holds(target, expected, second.to)

    def test_a_deleted_row_can_come_back(self) -> None:
        target = self.target()
        first = self.filled(target, range(3))
        gone = SinkStep(self.fence(target, 11), deletes=tuple(self.key_of(n) for n in range(3)))
        self.apply(target, first.to, gone)
        self.assert_holds(target, [], gone.to)
        back = SinkStep(self.fence(target, 12), upserts=(self.row(1, seed=5),))
        self.apply(target, gone.to, back)
        self.assert_holds(target, back.upserts, back.to)

    def test_a_step_without_rows_moves_the_fence(self) -> None:
        target = self.target()
        self.opener().create(target)
        empty = SinkStep(self.fence(target, 1))
        self.apply(target, None, empty)
        self.assert_holds(target, [], empty.to)
        self.apply(target, empty.to, SinkStep(self.fence(target, 2)))
        self.assert_holds(target, [], self.fence(target, 2))

    def test_many_steps_equal_a_dictionary(self) -> None:
        target = self.target()
        self.opener().create(target)
        draw = random.Random(20)
        state: dict[int, Row] = {}
        fence: Fence | None = None
        for epoch in range(1, 13):
            touched = draw.sample(range(40), draw.randrange(25))
            gone = {number for number in touched if draw.random() < 0.4}
            put = {number: self.row(number, epoch) for number in touched if number not in gone}
            step = SinkStep(
                self.fence(target, epoch),
                upserts=tuple(put.values()),
                deletes=tuple(self.key_of(number) for number in sorted(gone)) if fence else (),
            )
            self.apply(target, fence, step)
            fence = step.to
            state = {n: row for n, row in {**state, **put}.items() if n not in gone}
            self.assert_holds(target, state.values(), fence)

    def test_a_step_from_another_fence_is_refused(self) -> None:
        target = self.target()
        first = self.filled(target)
        wrong = [
            None,
            self.fence(target, 9),
            self.fence(target, 10, log="another log"),
            self.fence(target, 10, hash="another history"),
        ]
        for expected in wrong:
            with raises(Fenced):
                self.apply(target, expected, SinkStep(self.fence(target, 11), upserts=(self.row(1, seed=9),)))
        self.assert_holds(target, first.upserts, first.to)

    def test_the_fence_of_another_generation_is_refused(self) -> None:
        target = self.target()
        first = self.filled(target)
        with raises(UsageError):
            self.apply(target, first.to, SinkStep(self.fence(self.target(2), 11)))
        self.assert_holds(target, first.upserts, first.to)

    def test_a_step_cannot_go_in_twice(self) -> None:
        target = self.target()
        first = self.filled(target)
        second = SinkStep(self.fence(target, 11), upserts=(self.row(1, seed=1),), deletes=(self.key_of(2),))
        self.apply(target, first.to, second)
        before = self.content(target)
        with raises(Fenced):
            self.apply(target, first.to, second)
        assert self.content(target) == before
        assert self.opener().fence(target) == second.to

    def test_a_step_left_without_commit_has_not_happened_and_is_applied_again(self) -> None:
        target = self.target()
        first = self.filled(target)
        second = SinkStep(
            self.fence(target, 11), tuple(self.row(n, seed=1) for n in range(5, 30)), (self.key_of(1),)
        )
        with self.opener().load(target, first.to, second.to) as load:
            for bucket, upserts, deletes in list(pieces(target, second))[:-1]:
                load.write(bucket, upserts, deletes)
        assert self.opener().fence(target) == first.to
        if self.opener().kind == "atomic":
            self.assert_holds(target, first.upserts, first.to)
        self.apply(target, first.to, second)
        expected = [self.row(n) for n in range(5) if n != 1] + list(second.upserts)
        self.assert_holds(target, expected, second.to)

    def test_a_first_step_that_is_cut_off_goes_on_behind_the_buckets_that_were_done(self) -> None:
        """Of a sink whose loads keep them; any other begins again."""
        target = self.target()
        self.opener().create(target)
        step = SinkStep(self.fence(target, 10), tuple(self.row(number) for number in range(60)))
        parts = list(pieces(target, step))
        kept: set[int] = set()
        for bucket, _, _ in parts[:-1]:
            with self.opener().load(target, None, step.to) as load:
                if not isinstance(load, ResumableLoad):
                    return
                assert set(load.done) == kept
                for part in [each for each in parts if each[0] == bucket]:
                    load.write(*part)
                load.bucket_done(bucket)
                kept.add(bucket)
                load.write(*parts[-1])  # which is not done
            assert self.opener().fence(target) is None
            self.opener().create(target)
        with self.opener().load(target, None, step.to) as load:
            load.write(*parts[-1])
            load.commit()
        self.assert_holds(target, step.upserts, step.to)
        last = SinkStep(self.fence(target, 11), (self.row(3, seed=1),), (self.key_of(4),))
        self.apply(target, step.to, last)
        expected = [self.row(n) for n in range(60) if n not in (3, 4)] + list(last.upserts)
        self.assert_holds(target, expected, last.to)

    def test_buckets_of_another_first_step_are_not_gone_on_with(self) -> None:
        target = self.target()
        self.opener().create(target)
        left = SinkStep(self.fence(target, 10, hash="another history"), tuple(map(self.row, range(60))))
        step = SinkStep(self.fence(target, 10), tuple(self.row(number, seed=1) for number in range(20)))
        with self.opener().load(target, None, left.to) as load:
            for part in pieces(target, left):
                load.write(*part)
                if isinstance(load, ResumableLoad):
                    load.bucket_done(part[0])
        if self.opener().kind == "monotonic":
            return  # whose rows are there already; what is built is never computed twice at one epoch
        self.opener().create(target)
        self.apply(target, None, step)
        self.assert_holds(target, step.upserts, step.to)

    def test_a_scan_may_be_left_early(self) -> None:
        target = self.target()
        first = self.filled(target, range(200))
        scan = self.opener().scan(target)
        next(iter(scan))
        del scan
        self.assert_holds(target, first.upserts, first.to)

    def test_a_snapshot_is_of_one_position_whatever_is_applied_meanwhile(self) -> None:
        """Of a sink that has them; what it shows may be removed meanwhile, which it says."""
        sink, target = self.opener(), self.target()
        if not isinstance(sink, SnapshotSink):
            return
        with sink.snapshot(target) as found:
            assert (found.fence, list(found.rows)) == (None, [])
        first = self.filled(target)
        second = SinkStep(self.fence(target, 11), (self.row(3, seed=1), self.row(50)), (self.key_of(4),))
        with sink.snapshot(target) as found:
            self.apply(target, first.to, second)
            assert found.fence == first.to
            with suppress(InMotion):
                rows = [repr(row) for batch in found.rows for row in batch.to_pylist()]
                expected = pa.Table.from_pylist(list(first.upserts), target.schema).to_pylist()
                assert sorted(rows) == sorted(map(repr, expected))
        with sink.snapshot(target) as found:
            assert found.fence == second.to
            assert sum(batch.num_rows for batch in found.rows) == len(first.upserts)

    def test_a_writer_that_fell_asleep_changes_nothing(self) -> None:
        """Only a monotonic sink lets two writers in at once; an atomic one refuses the second at its fence."""
        if self.opener().kind == "atomic":
            self.test_a_step_cannot_go_in_twice()
            return
        target = self.target()
        first = self.filled(target)
        old = SinkStep(
            self.fence(target, 11), tuple(self.row(n, seed=1) for n in range(10)), (self.key_of(15),)
        )
        new = SinkStep(
            self.fence(target, 12), tuple(self.row(n, seed=2) for n in range(4)), (self.key_of(5),)
        )
        with raises(Fenced), self.opener().load(target, first.to, old.to) as asleep:
            parts = list(pieces(target, old))
            asleep.write(*parts[0])
            self.apply(target, first.to, old)
            self.apply(target, old.to, new)
            before = self.content(target)
            for part in parts:
                asleep.write(*part)
            assert self.content(target) == before
            asleep.commit()
        assert self.content(target) == before
        assert self.opener().fence(target) == new.to

    def test_a_row_without_a_key_is_refused(self) -> None:
        target = self.target()
        first = self.filled(target)
        for name in self.key:
            nameless = SinkStep(self.fence(target, 11), (self.row(1) | {name: None},))
            with raises(UsageError):
                self.apply(target, first.to, nameless)
        assert self.opener().fence(target) == first.to

    def test_a_step_into_a_generation_that_was_never_created_is_refused(self) -> None:
        target = self.target(7)
        with raises(UsageError):
            self.apply(target, None, SinkStep(self.fence(target, 1)))

    def test_promotion_is_a_compare_and_set(self) -> None:
        one, two = self.target(1), self.target(2)
        self.filled(one)
        self.filled(two, range(5))
        sink = self.opener()
        sink.promote(one, None)
        assert self.opener().live("acme", "totals") == 1
        with raises(Fenced):
            sink.promote(two, None)
        with raises(Fenced):
            sink.promote(two, 5)
        assert self.opener().live("acme", "totals") == 1
        sink.promote(two, 1)
        assert self.opener().live("acme", "totals") == 2
        sink.promote(two, 1)  # the first try's answer was lost
        assert self.opener().live("acme", "totals") == 2

    def test_an_unfilled_generation_is_never_shown(self) -> None:
        target = self.target()
        self.opener().create(target)
        with raises(UsageError):
            self.opener().promote(target, None)
        assert self.opener().live("acme", "totals") is None

    def test_going_back_shows_the_older_generation_unchanged(self) -> None:
        one, two = self.target(1), self.target(2)
        first = self.filled(one)
        self.filled(two, range(5))
        self.opener().promote(one, None)
        self.opener().promote(two, 1)
        self.opener().promote(one, 2)
        assert self.opener().live("acme", "totals") == 1
        self.assert_holds(one, first.upserts, first.to)

    def test_generations_and_projections_do_not_touch_each_other(self) -> None:
        one, two = self.target(1), self.target(2)
        first, second = self.filled(one), self.filled(two, range(10, 40))
        self.apply(
            two, second.to, SinkStep(self.fence(two, 11), deletes=tuple(self.key_of(n) for n in range(40)))
        )
        self.assert_holds(one, first.upserts, first.to)
        self.opener().drop(two)
        self.assert_holds(one, first.upserts, first.to)
        self.assert_holds(two, [], None)

    def test_the_live_generation_is_not_dropped(self) -> None:
        target = self.target()
        first = self.filled(target)
        self.opener().promote(target, None)
        with raises(UsageError):
            self.opener().drop(target)
        self.assert_holds(target, first.upserts, first.to)

    def test_a_dropped_generation_is_gone_and_can_be_built_anew(self) -> None:
        target = self.target()
        self.filled(target)
        self.opener().drop(target)
        self.opener().drop(target)
        self.assert_holds(target, [], None)
        again = self.filled(target, range(3), epoch=4)
        self.assert_holds(target, again.upserts, again.to)
