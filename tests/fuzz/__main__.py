"""``python -m tests.fuzz --seconds 60 [--seed N]``: what reaches something new joins the corpus."""

from __future__ import annotations

import argparse
import random
import time

from tests.fuzz.fuzzing import Disagreement, Fuzzer, corpus, keep


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32))
    given = parser.parse_args()
    print(f"seed {given.seed}", flush=True)
    tried = 0
    try:
        fuzzer = Fuzzer(corpus().values(), given.seed)
        end = time.monotonic() + given.seconds
        while time.monotonic() < end:
            fuzzer.step()
            tried += 1
    except Disagreement as found:
        raise SystemExit(f"{keep(found.data)}: {found.__cause__!r}") from found
    for data in fuzzer.kept:
        keep(data)
    print(f"{tried:,} inputs, {len(fuzzer.kept)} of them reached something new and joined the corpus")


if __name__ == "__main__":
    main()
