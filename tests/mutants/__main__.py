"""``python -m tests.mutants [--seed N] [--sample N] [--only AREA|MODULE] [--workers N] [--json FILE]``."""

from __future__ import annotations

import argparse
import json
import random
import shutil
import sys
import tempfile
import tomllib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from itertools import chain, zip_longest
from pathlib import Path
from queue import SimpleQueue

from tests.mutants.mutations import Mutation, mutations
from tests.mutants.table import AREAS, Area, matching
from tests.mutants.trial import Outcome, Tested, copy_of, run_tests, try_mutant
from tests.support import REPOSITORY

EQUIVALENTS = Path(__file__).with_name("equivalents.toml")
_BASELINE_SECONDS = 600.0


@dataclass(frozen=True, slots=True)
class Candidate:
    area: str
    mutation: Mutation
    tests: tuple[str, ...]


def equivalents() -> dict[tuple[str, str, str, str], str]:
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


def run(tree: Path, drawn: Sequence[Candidate], workers: int) -> list[tuple[Candidate, Outcome]]:
    """Try them, each with its own tests, in as many copies as there are workers. Raises SystemExit where these fail
    without a mutation."""
    baseline: dict[str, Tested] = {}
    for file in dict.fromkeys(chain.from_iterable(each.tests for each in drawn)):
        baseline[file] = run_tests(tree, [file], _BASELINE_SECONDS)
        print(f"baseline {file}: {baseline[file].seconds:.1f} s", flush=True)
        if not baseline[file].passed:
            raise SystemExit(f"{baseline[file].output[-3000:]}\n{file} fails without a mutation")
    trees: SimpleQueue[Path] = SimpleQueue()
    trees.put(tree)
    for number in range(1, workers):
        trees.put(shutil.copytree(tree, tree.with_name(f"tree-{number}"), symlinks=True))

    def attempt(each: Candidate) -> Outcome:
        mine = trees.get()
        try:
            seconds = 60 + 3 * sum(baseline[file].seconds for file in each.tests)
            return try_mutant(mine, each.mutation, each.tests, seconds)
        finally:
            trees.put(mine)

    done = []
    with ThreadPoolExecutor(workers) as pool:
        for number, (each, outcome) in enumerate(zip(drawn, pool.map(attempt, drawn), strict=True), 1):
            place = f"{each.mutation.module}:{each.mutation.line} {each.mutation.function}"
            print(f"{number}/{len(drawn)} {outcome.value:8} {place}", flush=True)
            if outcome is Outcome.SURVIVED:
                print(f"  - {each.mutation.was}\n  + {each.mutation.becomes}", flush=True)
            done.append((each, outcome))
    return done


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument(
        "--seed", type=int, default=datetime.now(UTC).toordinal(), help="default: another each day"
    )
    parser.add_argument("--sample", type=int, default=80)
    parser.add_argument("--only", default="", help="an area or a module")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    known, found = equivalents(), candidates(only=given.only)
    moved = known.keys() - {each.mutation.identity for each in candidates()}
    for module, function, was, _ in sorted(moved):
        print(f"listed as equivalent, but there no more: {module} {function}: {was}", flush=True)
    drawn = draw([each for each in found if each.mutation.identity not in known], given.seed, given.sample)
    print(f"seed {given.seed}: {len(drawn)} of {len(found):,} mutants", flush=True)
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        done = run(copy_of(Path(folder, "tree")), drawn, given.workers)
    survivors = [each.mutation for each, outcome in done if outcome is Outcome.SURVIVED]
    if given.json:
        rows = [asdict(each.mutation) | {"mutated": None, "outcome": outcome} for each, outcome in done]
        given.json.write_text(json.dumps(rows, indent=1))
    for each in survivors:
        print(f"\n{each.module}:{each.line} {each.function}\n- {each.was}\n+ {each.becomes}")
    print(f"\n{len(done)} mutants, {len(survivors)} survived; {len(known)} are listed as equivalent")
    sys.exit(1 if survivors else 0)


if __name__ == "__main__":
    main()
