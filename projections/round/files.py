"""Rows that several projections read at one position, written once for all of them.

The files lie in a folder of this process that nobody else may read, and go when a later position is asked for, at the
latest with the process.
"""

from __future__ import annotations

import shutil
import tempfile
import threading
import weakref
from collections.abc import Callable, Hashable
from pathlib import Path

from tailrace.eventstore.model.position import Cut


class RoundFiles:
    """Folders of files by what they hold, all of one position."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._cut = Cut(0)
        self._folder: Path | None = None
        self._held: dict[Hashable, Path] = {}
        self._made = 0

    def folder_of(self, cut: Cut, key: Hashable, write: Callable[[Path], None]) -> Path:
        """The folder that holds ``key`` at a position; ``write`` fills it at the first call. Those of another position
        are removed."""
        with self._lock:
            if cut != self._cut:
                self._clear()
                self._cut = cut
            if key not in self._held:
                self._made += 1  # a name is never used again: engines remember what a file of a name holds
                folder = self._root() / str(self._made)
                folder.mkdir()
                write(folder)
                self._held[key] = folder
            return self._held[key]

    def _root(self) -> Path:
        if self._folder is None:
            self._folder = Path(tempfile.mkdtemp(prefix="tailrace-inputs-"))
            weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)
        return self._folder

    def _clear(self) -> None:
        for folder in self._held.values():
            shutil.rmtree(folder, ignore_errors=True)
        self._held.clear()
