"""Work on threads beside a block of a test."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager


@contextmanager
def in_background(work: Callable[[int, threading.Event], object], threads: int = 1) -> Iterator[None]:
    """Each thread works, by its number, until the event is set when the block ends. What one of them raised is raised
    then, unless the block raised."""
    stop = threading.Event()
    with ThreadPoolExecutor(threads) as pool:
        running = [pool.submit(work, number, stop) for number in range(threads)]
        try:
            yield
        finally:
            stop.set()
        for future in running:
            future.result()
