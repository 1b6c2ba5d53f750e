"""Run every benchmark, or those named: ``python -m benchmarks [NAME …] [--quick] [--repeat N] [--to FILE]``."""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Sequence

from benchmarks.options import add_shared

MODULES = (
    "cdc.capture",
    "cdc.latency",
    "cdc.debezium_backlog",
    "cdc.debezium_latency",
    "cdc.load",
    "cdc.decode",
    "kafka.envelopes",
    "eventstore.domain_events",
    "eventstore.followers",
    "eventstore.append",
    "cdc.size",
    "eventstore.consume",
    "eventstore.compaction",
    "projections.check",
    "projections.rebuild",
    "projections.incremental",
    "projections.freshness",
    "projections.everyday",
    "projections.round",
    "projections.tpch",
    "projections.sinks",
    "projections.typed_events",
    "kafka.kafka_fetch",
    "kafka.kafka_capture",
    "kafka.kafka_publish",
    "eventstore.year",
)
"""In the order of a change's way."""
NAMES = {module.rpartition(".")[2]: module for module in MODULES}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"default: {' '.join(NAMES)}")
    add_shared(parser)
    given = parser.parse_args(arguments)
    unknown = [name for name in given.names if name not in NAMES]
    if unknown:
        parser.error(f"no benchmark {', '.join(unknown)}; there are {', '.join(NAMES)}")
    shared = ["--repeat", str(given.repeat), "--to", str(given.to), *(["--quick"] if given.quick else [])]
    for name in given.names or NAMES:
        print(f"\n# {name}\n", flush=True)
        importlib.import_module(f"benchmarks.{NAMES[name]}").main(shared)


if __name__ == "__main__":
    main()
