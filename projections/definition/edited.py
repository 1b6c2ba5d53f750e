"""Files of loaded definitions that were edited since: a process goes on with the text that it has read."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tailrace.projections.definition.model import Projection


@dataclass(frozen=True, slots=True)
class EditedFile:
    """A file that no longer has the text that was read, and the projections that it defines."""

    file: str
    projections: tuple[str, ...]


class DefinitionFiles:
    """The files of projections, as they are when this is made."""

    def __init__(self, projections: Iterable[Projection]) -> None:
        self._names: dict[str, list[str]] = {}
        for each in projections:
            self._names.setdefault(each.file, []).append(each.name)
        self._stamps = {file: _stamp(file) for file in self._names}
        self._texts = {file: _digest(file) for file in self._names}
        self._told = dict(self._texts)

    def edited(self) -> Iterator[EditedFile]:
        """The files that were edited since the last call. One that was touched, or has its first text again, is not
        among them."""
        for file, names in self._names.items():
            stamp = _stamp(file)
            if stamp == self._stamps[file]:
                continue
            self._stamps[file], text = stamp, _digest(file)
            if text not in (self._told[file], self._texts[file]):
                yield EditedFile(file, tuple(names))
            self._told[file] = text


def _stamp(file: str) -> tuple[int, int] | None:
    try:
        found = Path(file).stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size


def _digest(file: str) -> str:
    """Of its text; "" when it is not there."""
    try:
        return hashlib.sha256(Path(file).read_bytes()).hexdigest()
    except OSError:
        return ""
