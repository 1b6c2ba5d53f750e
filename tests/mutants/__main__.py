"""``python -m tests.mutants [--seed N] [--sample N] [--only AREA|MODULE] [--workers N] [--json FILE]``."""

from __future__ import annotations

import argparse
import json
import random
import shutil
import signal
import sys
import tempfile
import time
import tomllib
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import chain, zip_longest
from pathlib import Path
from queue import SimpleQueue

from tests.mutants.baseline import measure
from tests.mutants.mutations import Mutation, mutations
from tests.mutants.table import AREAS, Area, matching
from tests.mutants.trial import IMPORTED, Outcome, Worker, copy_of
from tests.support import REPOSITORY
from tests.support.memory import prefer_memory

SAMPLE = 240
EQUIVALENTS = Path(__file__).with_name("equivalents.toml")
Identity = tuple[str, str, str, str]


@dataclass(frozen=True, slots=True)
class Candidate:
    area: str
    mutation: Mutation
    tests: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Result:
    candidate: Candidate
    outcome: Outcome
    by: str  # the test that noticed
    seconds: float

    @property
    def row(self) -> str:
        mutation = self.candidate.mutation
        told = {name: getattr(mutation, name) for name in ("module", "function", "line", "was", "becomes")}
        return json.dumps(told | {"outcome": self.outcome, "by": self.by, "seconds": round(self.seconds, 1)})


def equivalents() -> dict[Identity, str]:
    """The mutations that nobody can tell from the original, and why."""
    listed = tomllib.loads(EQUIVALENTS.read_text(encoding="utf-8")).get("equivalent", [])
    return {(each["module"], each["function"], each["was"], each["becomes"]): each["why"] for each in listed}


def candidates(areas: Sequence[Area] = AREAS, only: str = "") -> list[Candidate]:
    """All mutants of the areas' modules as they are now."""
    return [
        Candidate(area.name, mutation, tuple(matching(area.tests)))
        for area in areas
        for module in matching(area.modules)
        if only in (area.name, module, "")
        for mutation in mutations(module, (REPOSITORY / module).read_bytes())
    ]


def draw(found: Sequence[Candidate], seed: int, sample: int) -> list[Candidate]:
    """As many of each area as there are, in turn; inside an area any of its modules' mutants."""
    by_area: dict[str, list[Candidate]] = {}
    for each in random.Random(seed).sample(found, len(found)):
        by_area.setdefault(each.area, []).append(each)
    turns = chain.from_iterable(zip_longest(*(by_area[name] for name in sorted(by_area))))
    return [each for each in turns if each is not None][:sample]


def run(
    tree: Path,
    drawn: Sequence[Candidate],
    workers: int,
    imported: Sequence[str] = IMPORTED,
    kept: Path | None = None,
) -> Iterator[Result]:
    """Try them, each with its own tests, in as many copies as there are workers. Raises SystemExit where these fail
    without a mutation. ``kept``: see ``measure``."""
    with ExitStack() as opened:
        first = opened.enter_context(Worker(tree, imported))
        files = list(dict.fromkeys(chain.from_iterable(each.tests for each in drawn)))
        baseline = measure(first, files, sorted({each.mutation.module for each in drawn}), kept)
        free: SimpleQueue[Worker] = SimpleQueue()
        free.put(first)
        for number in range(1, workers):
            copied = shutil.copytree(tree, tree.with_name(f"tree-{number}"), symlinks=True)
            free.put(opened.enter_context(Worker(copied, imported)))

        def attempt(each: Candidate) -> Result:
            worker, began = free.get(), time.monotonic()
            try:
                outcome, by = worker.try_mutant(each.mutation, baseline.request(each.mutation, each.tests))
            finally:
                free.put(worker)
            return Result(each, outcome, by, time.monotonic() - began)

        pool = opened.enter_context(ThreadPoolExecutor(workers))
        yield from pool.map(attempt, drawn)


def show(result: Result, number: int, of: int) -> None:
    mutation = result.candidate.mutation
    print(
        f"{number}/{of} {result.outcome.value:8} {result.seconds:5.1f} s {mutation.module}:{mutation.line}"
        f" {mutation.function}{' by ' if result.by else ''}{result.by}",
        flush=True,
    )
    if result.outcome is Outcome.SURVIVED:
        print(f"  - {mutation.was}\n  + {mutation.becomes}", flush=True)


def summary(results: Sequence[Result], known: Collection[Identity], found: Sequence[Candidate]) -> str:
    """A table in Markdown: of each area, what was tried and what became of it."""
    rows = [
        "| area | mutants | equivalent | tried | killed | over their time | survived |",
        "|---|---|---|---|---|---|---|",
    ]
    for area in sorted({each.area for each in found}):
        made = [each for each in found if each.area == area]
        outcomes = Counter(each.outcome for each in results if each.candidate.area == area)
        listed = sum(each.mutation.identity in known for each in made)
        counts = (len(made), listed, outcomes.total(), *(outcomes[each] for each in Outcome))
        rows.append(f"| {area} | {' | '.join(f'{each:,}' for each in counts)} |")
    return "\n".join(rows)


def killed_before(file: Path) -> set[Identity]:
    """Those that an earlier run has killed, by its lines."""
    if not file.exists():
        return set()
    rows = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    return {
        (row["module"], row["function"], row["was"], row["becomes"])
        for row in rows
        if row.get("outcome", Outcome.SURVIVED) != Outcome.SURVIVED
    }


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument(
        "--seed", type=int, default=datetime.now(UTC).toordinal(), help="default: another each day"
    )
    parser.add_argument("--sample", type=int, default=SAMPLE)
    parser.add_argument("--only", default="", help="an area or a module")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument(
        "--json",
        type=Path,
        help="add a line for each; what it has from an interrupted run is not done again",
    )
    given = parser.parse_args()
    prefer_memory()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # workers and copies go, too
    known, found = equivalents(), candidates(only=given.only)
    drawn = draw([each for each in found if each.mutation.identity not in known], given.seed, given.sample)
    print(f"seed {given.seed}: {len(drawn)} of {len(found):,} mutants", flush=True)
    before = killed_before(given.json) if given.json else set()
    rest = [each for each in drawn if each.mutation.identity not in before]
    results = []
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        for result in run(copy_of(Path(folder, "tree")), rest, given.workers, kept=given.json):
            results.append(result)
            show(result, len(results), len(rest))
            if given.json:
                with given.json.open("a", encoding="utf-8") as file:
                    file.write(result.row + "\n")
    print(f"\n{summary(results, known.keys(), found)}")
    survivors = [each for each in results if each.outcome is Outcome.SURVIVED]
    for number, each in enumerate(survivors, 1):
        show(each, number, len(survivors))
    sys.exit(1 if survivors else 0)


if __name__ == "__main__":
    main()
