"""Tests without a mutation: how long each takes and which lines it runs, so that those which most likely notice a
mutant are run first, and one that hangs is not waited for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.mutants.mutations import Mutation
from tests.mutants.plugin import Event
from tests.mutants.trial import Worker
from tests.mutants.worker import Request

_LONGER, _LEAST_SECONDS = 5, 30.0
"""How much longer than without a mutation a test may take; the machine may be busier by then."""


@dataclass(frozen=True, slots=True)
class Baseline:
    tests: tuple[Event, ...]  # each as it ended

    def request(self, mutation: Mutation, files: Sequence[str]) -> Request:
        """To run the tests of the files that can notice: they run the mutation's function, or start a process that may.
        First those that run its line, then its function, the quickest first."""
        name = f"{mutation.module}:{mutation.function}"
        tests = [each for each in self.tests if each.test.partition("::")[0] in files]
        if any(name in each.ran for each in tests):
            tests = [each for each in tests if name in each.ran or each.processes]

        def place(test: Event) -> tuple[bool, bool, float]:
            return mutation.line not in test.ran.get(name, ()), name not in test.ran, test.seconds or 0.0

        tests.sort(key=place)
        least = _LEAST_SECONDS + _LONGER * max((each.setup for each in tests), default=0.0)
        limits = {each.test: least + _LONGER * (each.seconds or 0.0) for each in tests}
        chosen = [file for file in files if any(each.test.startswith(f"{file}::") for each in tests)]
        return Request(chosen, [each.test for each in tests], limits, 2 * least)


def measure(worker: Worker, files: Sequence[str], modules: Sequence[str]) -> Baseline:
    """Raises SystemExit where they fail without a mutation, twice: a machine may be busy with something else."""
    tests: list[Event] = []
    for number, file in enumerate(files, 1):
        answer = worker.run_tests(Request([file], record=modules))
        if not answer.passed:
            answer = worker.run_tests(Request([file], record=modules))
        ended = [each for each in answer.events if each.seconds is not None]
        seconds = sum(each.seconds or 0.0 for each in ended)
        print(
            f"without a mutation {number}/{len(files)} {Path(file)}: {len(ended)} tests, {seconds:.1f} s",
            flush=True,
        )
        if not answer.passed:
            why = "\n".join(each.why for each in ended if each.why)
            raise SystemExit(f"{answer.output}\n{why}\n{answer.by or file} fails without a mutation")
        tests += ended
    return Baseline(tuple(tests))
