"""What a process that captures and does nothing else does to stay small. For the command line: a program that embeds
``tailrace.cdc.capture`` decides these things itself.
"""

from __future__ import annotations

import ctypes
import os
import sys
from importlib.machinery import ModuleSpec

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # M_… of glibc's malloc.h
_LARGE_BYTES, _KEPT_BYTES = 4 << 20, 32 << 20


def keep_small() -> None:
    """To be called before pyarrow and the modules of capture are imported: it finds its allocator then. What the
    environment chooses stays."""
    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")  # the others keep what they are given back
    _return_large_blocks()
    _hide_pandas()


def _return_large_blocks() -> None:
    """Have the C library give freed blocks of some megabytes back to the system at once, and keep a bounded rest.

    It begins so, at 128 KiB, but the first large block that is freed moves its limit up to 32 MiB (mallopt(3)); from
    then on the arrays of a decoded block leave holes that stay resident. Smaller ones are asked for again and again,
    page by page of a Parquet file: given back each time, they cost more than what is done in them."""
    if sys.platform == "linux":
        mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # musl has none, and gives back by itself
        if mallopt is not None:
            mallopt(_MMAP_THRESHOLD, _LARGE_BYTES)
            mallopt(_TRIM_THRESHOLD, _KEPT_BYTES)


class _NoPandas:
    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        if name == "pandas":
            raise ModuleNotFoundError("capture has no use for pandas", name=name)
        return None


def _hide_pandas() -> None:
    """pyarrow imports pandas, where it is installed, with the first array that is made of a list, in case that list is
    a column of pandas: 35 MiB and 0.3 CPU seconds. It looks once; afterwards pandas can be imported by others."""
    if "pandas" in sys.modules:
        return
    import pyarrow as pa

    sys.meta_path.insert(0, _NoPandas)
    try:
        pa.array([0])
    finally:
        sys.meta_path.remove(_NoPandas)
