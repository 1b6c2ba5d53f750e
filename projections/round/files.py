"""Rows that several projections read at one position, written once for all of them.

The files lie in a folder of this process that nobody else may read. They go when the same is written at another
position, or was not asked for at one, at the latest with the process.
"""

from __future__ import annotations

import shutil
import tempfile
import threading
import weakref
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from tailrace.eventstore.model.position import Cut


@dataclass(frozen=True, slots=True)
class Earlier:
    """The ``folder`` that holds the same at another position, which mostly is the one before."""

    cut: Cut
    folder: Path


def private_folder(owner: object, prefix: str) -> Path:
    """A new folder that nobody else may read. It goes with its owner, at the latest with the process."""
    folder = Path(tempfile.mkdtemp(prefix=prefix))
    weakref.finalize(owner, shutil.rmtree, folder, ignore_errors=True)
    return folder


class RoundFiles:
    """Folders of files by what they hold, each at the position at which it was last asked for."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._cut = Cut(0)
        self._held: dict[Hashable, Earlier] = {}
        self._made = 0

    def folder_of(self, cut: Cut, key: Hashable, write: Callable[[Path, Earlier | None], None]) -> Path:
        """The folder that holds ``key`` at a position; ``write`` fills it at the first call. That of another position
        is there until then, and removed afterwards."""
        with self._lock:
            if cut != self._cut:
                for name in [name for name, held in self._held.items() if held.cut != self._cut]:
                    self._remove(name)
                self._cut = cut
            held = self._held.get(key)
            if held is None or held.cut != cut:
                self._made += 1  # a name is never used again: engines remember what a file of a name holds
                folder = self._root / str(self._made)
                folder.mkdir()
                write(folder, held)
                if held is not None:
                    self._remove(key)
                self._held[key] = held = Earlier(cut, folder)
            return held.folder

    def forget_all(self) -> None:
        with self._lock:
            for key in list(self._held):
                self._remove(key)

    @cached_property
    def _root(self) -> Path:
        return private_folder(self, "tailrace-inputs-")

    def _remove(self, key: Hashable) -> None:
        shutil.rmtree(self._held.pop(key).folder, ignore_errors=True)
