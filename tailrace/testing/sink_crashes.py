"""Crash tests of a sink: a process that applies a step is killed, and the step is applied again.

The module is also the program of that process: ``python -m tailrace.testing.sink_crashes`` with a pickled step on
standard input.
"""

from __future__ import annotations

import os
import pickle
import random
import signal
import subprocess
import sys
from time import sleep
from typing import Any, ClassVar

from tailrace.eventstore.model.position import Fence
from tailrace.projections.sinks.contract import Target
from tailrace.testing.sink_steps import SinkStep, SinkSteps, pieces

CHILD_SECONDS = 120  # for a process that starts, imports and applies one small step
BEGINS = b"begins\n"


class SinkCrashes(SinkSteps):
    """The tests of ``SinkContract`` that kill a process in the middle of a step."""

    process: ClassVar[type[subprocess.Popen[Any]]] = subprocess.Popen

    def test_a_first_step_killed_anywhere_gives_the_same_when_applied_again(self) -> None:
        target = self.target()
        step = SinkStep(self.fence(target, 10), tuple(self.row(number) for number in range(30)))
        for writes in (1, target.buckets):
            self.opener().create(target)
            self.die(target, None, step, writes)
            assert self.opener().fence(target) is None
            assert self.opener().owner(target) == target.log_id
            if self.opener().kind == "atomic":
                assert self.content(target) == []
        self.apply(target, None, step)
        self.assert_holds(target, step.upserts, step.to)

    def test_a_later_step_killed_anywhere_gives_the_same_when_applied_again(self) -> None:
        target = self.target()
        first = self.filled(target)
        step = SinkStep(
            self.fence(target, 11),
            upserts=tuple(self.row(number, seed=1) for number in range(10, 30)),
            deletes=tuple(self.key_of(number) for number in range(10)),
        )
        for writes in (1, target.buckets):
            self.die(target, first.to, step, writes)
            assert self.opener().fence(target) == first.to
            if self.opener().kind == "atomic":
                self.assert_holds(target, first.upserts, first.to)
        self.apply(target, first.to, step)
        self.assert_holds(target, step.upserts, step.to)

    def test_a_step_killed_at_any_moment_is_in_or_can_be_applied_again(self) -> None:
        target = self.target()
        first = self.filled(target)
        step = SinkStep(
            self.fence(target, 11),
            upserts=tuple(self.row(number, seed=1) for number in range(10, 400)),
            deletes=tuple(self.key_of(number) for number in range(10)),
        )
        draw = random.Random(type(self).__name__)
        for _ in range(3):
            self.kill_soon(target, first.to, step, after=draw.uniform(0, 0.1))
            if self.opener().fence(target) == step.to:
                break
            if self.opener().kind == "atomic":
                self.assert_holds(target, first.upserts, first.to)
        if self.opener().fence(target) != step.to:
            self.apply(target, first.to, step)
        self.assert_holds(target, step.upserts, step.to)
        last = SinkStep(self.fence(target, 12), deletes=tuple(self.key_of(n) for n in range(10, 400)))
        self.apply(target, step.to, last)
        self.assert_holds(target, [], last.to)

    def die(self, target: Target, expected: Fence | None, step: SinkStep, writes: int) -> None:
        """Apply a step in a process of its own that is killed with -9 after so many writes, before the commit."""
        with self._child(target, expected, step, writes) as child:
            _, said = child.communicate(timeout=CHILD_SECONDS)
        assert child.returncode == -signal.SIGKILL, said.decode(errors="replace")

    def kill_soon(self, target: Target, expected: Fence | None, step: SinkStep, after: float) -> None:
        """Apply a step in a process of its own that is killed with -9 so many seconds after it began."""
        with self._child(target, expected, step, None) as child:
            assert child.stdout is not None
            assert child.stdout.readline() == BEGINS, child.communicate()[1].decode(errors="replace")
            sleep(after)
            child.kill()
            child.communicate(timeout=CHILD_SECONDS)

    def _child(
        self, target: Target, expected: Fence | None, step: SinkStep, writes: int | None
    ) -> subprocess.Popen[bytes]:
        child = self.process(
            [sys.executable, "-m", "tailrace.testing.sink_crashes"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )
        assert child.stdin is not None
        parts = list(pieces(target, step))
        pickle.dump((self.opener, target, expected, step.to, parts, writes), child.stdin)
        child.stdin.flush()
        return child


def apply_in_a_child() -> None:
    """Apply a step that comes pickled on standard input; with ``writes``, die after so many of them."""
    opener, target, expected, to, parts, writes = pickle.load(sys.stdin.buffer)
    sink = opener()
    sys.stdout.buffer.write(BEGINS)
    sys.stdout.flush()
    with sink.load(target, expected, to) as load:
        for part in parts if writes is None else parts[:writes]:
            load.write(*part)
        if writes is not None:
            os.kill(os.getpid(), signal.SIGKILL)
        load.commit()


if __name__ == "__main__":
    apply_in_a_child()
