"""Compile functions to machine code: where the compiled form is stored, and the error when the compiler is missing.

Importing this without numba raises OperatorError. Compiled code is kept in the user's cache folder, never beside the
source: an installed package may be read-only, and a source folder stays clean. Where that folder cannot be written,
each process compiles the code again (some seconds). Each state of a room's sources has a folder of its own: numba sees
only changes in a kernel's own module, and cannot read a cache that names a class which is no longer there. So a kernel
takes classes and functions only from its own room and from this one."""

from __future__ import annotations

import hashlib
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from tailrace.eventstore.errors import optional_part

with optional_part("compiled code", "capture"):
    import numba
    from numba import extending

_P = ParamSpec("_P")
_T = TypeVar("_T")


def cache_folder(room: Path) -> Path | None:
    """Where compiled code of the kernels in the folder ``room`` is kept: below ``NUMBA_CACHE_DIR``, else below
    ``XDG_CACHE_HOME`` or ``~/.cache``. None when it cannot be written, or when somebody else can: what lies there
    runs."""
    chosen = os.environ.get("NUMBA_CACHE_DIR")
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    folder = (Path(chosen) if chosen else Path(home) / "tailrace" / "kernels") / _sources_hash(room)
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return folder if _is_ours(folder) else None
    except OSError:
        return None


def _is_ours(folder: Path) -> bool:
    """Whether nobody but this user and root can write there."""
    found = folder.stat()
    return found.st_uid in (os.geteuid(), 0) and not found.st_mode & 0o022


def _sources_hash(room: Path) -> str:
    """A hash of every class and function that a kernel of that room may use."""
    folders = dict.fromkeys((room, Path(__file__).parent))
    sources = (path.read_bytes() for folder in folders for path in sorted(folder.glob("*.py")))
    return hashlib.sha256(b"".join(sources)).hexdigest()[:16]


@contextmanager
def _cached_in(folder: Path) -> Iterator[None]:
    """numba asks for the folder when a function is decorated, and takes it from its global configuration."""
    config: Any = numba.config
    before = config.CACHE_DIR
    config.CACHE_DIR = str(folder)
    try:
        yield
    finally:
        config.CACHE_DIR = before


_folder_of = cache(cache_folder)


def kernel(function: Callable[_P, _T]) -> Callable[_P, _T]:
    """Compile at the first call, for the types of its arguments; runs without the GIL. Reads and writes of arrays are
    not checked: the function checks what it is given. It works on arrays it is given and makes none (``_nrt`` off):
    counting references to them took nine tenths of the time."""
    source = sys.modules[function.__module__].__file__
    folder = _folder_of(Path(source).parent) if source else None
    if folder is None:
        return _compile(function, nogil=True)
    with _cached_in(folder):
        return _compile(function, nogil=True, cache=True)


def part(function: Callable[_P, _T]) -> Callable[_P, _T]:
    """A part of the kernels of its module, compiled into each of them: a call would pass every field of every array."""
    return _compile(function, forceinline=True, no_cpython_wrapper=True)


def primitive(typing: Callable[..., Any]) -> Any:
    """A kernel function that Python cannot express, in the form of numba's ``intrinsic``: from the types of its
    arguments it returns its signature and the function that writes its code."""
    decorate: Any = extending.intrinsic
    return decorate(typing)


def load_compiler() -> None:
    """Import what numba imports only with the first compiled function. To be called before threads begin that may call
    one: modules that import each other in a circle break when two threads import them."""
    import numpy.ma  # noqa: F401 it looks for masked arrays among arguments
    from numba.core import boxing  # noqa: F401 only where nothing is cached yet
    from numba.core.registry import cpu_target

    cpu_target.typing_context.refresh()
    cpu_target.target_context.refresh()


def _compile(function: Callable[_P, _T], **options: bool) -> Callable[_P, _T]:
    compiler: Any = numba.njit
    compiled: Callable[_P, _T] = compiler(error_model="numpy", _nrt=False, **options)(function)
    return compiled
