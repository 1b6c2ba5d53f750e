"""The options all benchmarks share: sizes with a full and a quick value, ``--repeat``, ``--quick``, ``--to``."""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.results import RESULTS

REPEAT = 3


@dataclass(frozen=True, slots=True)
class Size:
    """``--NAME`` with its value at full size and with ``--quick``."""

    name: str
    full: int
    quick: int
    help: str


@dataclass(frozen=True, slots=True)
class Options:
    sizes: Mapping[str, int]
    repeat: int
    to: Path
    command: str

    def __getitem__(self, name: str) -> int:
        return self.sizes[name]


def parse(
    module: str, description: str | None, sizes: Sequence[Size], arguments: Sequence[str] | None
) -> Options:
    """Read the command line of ``python -m benchmarks.MODULE``. ``command`` says how to get the same run again."""
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks.{module}", description=description)
    for size in sizes:
        shown = f"{size.help} (default {size.full:,}; quick {size.quick:,})"
        parser.add_argument(f"--{size.name}", type=int, metavar="N", help=shown)
    add_shared(parser)
    given = parser.parse_args(arguments)
    chosen, words = {}, ["python", "-m", f"benchmarks.{module}"]
    for size in sizes:
        value = getattr(given, size.name)
        usual = size.quick if given.quick else size.full
        chosen[size.name] = usual if value is None else value
        if chosen[size.name] != usual:
            words.append(f"--{size.name} {chosen[size.name]}")
    words += ["--quick"] if given.quick else []
    words += [f"--repeat {given.repeat}"] if given.repeat != REPEAT else []
    return Options(chosen, max(1, given.repeat), given.to, " ".join(words))


def add_shared(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--repeat", type=int, default=REPEAT, metavar="N", help="rounds; medians are shown")
    parser.add_argument("--quick", action="store_true", help="small sizes: a look, no measurement")
    parser.add_argument("--to", type=Path, default=RESULTS, metavar="FILE", help="instead of RESULTS.md")


def median(values: Sequence[float]) -> float:
    return float(statistics.median(values))
