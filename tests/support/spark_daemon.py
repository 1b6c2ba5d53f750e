"""``pyspark.daemon`` with the modules of our tasks in it: Spark's Python workers, four to six per session, are forked
off a process that has them; each of its own took a second to import them.

pyspark imports nothing before it forks, as libraries may start threads when they are loaded. Those that do are set
not to; a thread all the same ends this process, and with it the test.
"""

from __future__ import annotations

import gc
import importlib
import os
import threading

from tests.support.forking import OF_SERVER

MODULES = (
    "pandas",
    "tailrace.projections.compute.state_runs",
    "tailrace.projections.compute.compute",
    "tailrace.projections.compute.read_plan",
    "pyspark.worker",
)


def main() -> None:
    os.environ.update(OF_SERVER)
    for name in MODULES:
        importlib.import_module(name)
    from pyspark import daemon

    threads = (
        len(os.listdir("/proc/self/task")) if os.path.isdir("/proc/self/task") else threading.active_count()
    )
    if threads != 1:
        raise RuntimeError(f"{threads} threads after the imports: a fork would not have them")
    gc.collect()
    gc.freeze()
    daemon.manager()


if __name__ == "__main__":
    main()
