"""Tests without a mutation: how long each takes and which lines it runs, so that those which most likely notice a
mutant are run first, and one that hangs is not waited for."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass
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


def measure(
    worker: Worker, files: Sequence[str], modules: Sequence[str], kept: Path | None = None
) -> Baseline:
    """Files that a run of the same tree has measured come from the lines of ``kept``, to which the others are added.
    Raises SystemExit where they fail without a mutation, twice: a machine may be busy with something else."""
    tests: list[Event] = []
    tree = _digest(worker.tree)
    before = _measured(kept, tree, modules)
    for number, file in enumerate(files, 1):
        if file in before:
            tests += before[file]
            continue
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
        if kept is not None:
            row = {
                "tests": file,
                "tree": tree,
                "modules": modules,
                "events": [asdict(each) for each in ended],
            }
            with kept.open("a", encoding="utf-8") as out:
                out.write(json.dumps(row) + "\n")
    return Baseline(tuple(tests))


def _measured(kept: Path | None, tree: str, modules: Collection[str]) -> dict[str, list[Event]]:
    """By file of tests, of rows that say what ran of all these modules."""
    lines = kept.read_text(encoding="utf-8").splitlines() if kept is not None and kept.exists() else []
    rows = [row for row in map(json.loads, lines) if row.get("tree") == tree]
    return {
        row["tests"]: [Event(**each) for each in row["events"]]
        for row in rows
        if set(row["modules"]).issuperset(modules)
    }


def _digest(tree: Path) -> str:
    """Of the names and bytes of its Python files, which say which lines run."""
    digest = hashlib.sha256()
    for path in sorted(tree.rglob("*.py")):
        digest.update(b"%s\0%d\0" % (str(path.relative_to(tree)).encode(), path.stat().st_size))
        digest.update(path.read_bytes())
    return digest.hexdigest()
