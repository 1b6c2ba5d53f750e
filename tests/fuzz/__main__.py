"""``python -m tests.fuzz [TARGET …] --seconds 60 [--seed N]``: what reaches something new joins the corpus."""

from __future__ import annotations

import argparse
import random
import time

from tests.fuzz.fuzzing import Disagreement, Fuzzer, Target
from tests.fuzz.targets import TARGETS


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=f"{', '.join(TARGETS)}; default: all")
    parser.add_argument("--seconds", type=float, default=60.0, help="for all of them together")
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32))
    given = parser.parse_args()
    unknown = set(given.targets) - TARGETS.keys()
    if unknown:
        parser.error(f"no such target: {', '.join(sorted(unknown))}")
    print(f"seed {given.seed}", flush=True)
    chosen = given.targets or list(TARGETS)
    for name in chosen:
        fuzz(TARGETS[name], given.seed, given.seconds / len(chosen))


def fuzz(target: Target, seed: int, seconds: float) -> None:
    tried = 0
    try:
        fuzzer = Fuzzer(target, seed)
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            fuzzer.step()
            tried += 1
    except Disagreement as found:
        raise SystemExit(f"{target.keep(found.data)}: {found.__cause__!r}") from found
    for data in fuzzer.kept:
        target.keep(data)
    print(
        f"{target.name}: {tried:,} inputs, {len(fuzzer.kept)} of them reached something new and joined the corpus"
    )


if __name__ == "__main__":
    main()
