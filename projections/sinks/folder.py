"""The folder of a projection in a sink of files: ``<path>/<store>/<projection>``, with a folder for each generation.

Whoever hands over such a folder can put links into it, and names of files into what is read there. Neither is followed
out of the projection's folder: reading would show another file, writing and removing would change one.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tailrace.eventstore.errors import Fenced, IntegrityError, OperatorError, UsageError
from tailrace.eventstore.model.position import Fence
from tailrace.eventstore.storage.private import make_folder, opener
from tailrace.projections.sinks.contract import Target, require_filled, require_same_log

_LOCK = ".promote.lock"
_OWNER = ".owner"  # of a generation: the log whose it is


class GenerationsFolder(ABC):
    """The files of one projection. Every method raises OperatorError when the folder cannot be used."""

    def __init__(self, title: str, path: Path, store: str, projection: str) -> None:
        self._root, self._names = path, (store, projection)
        self.path = path.joinpath(*self._names)
        self.text = f"{title} ({path})"

    def generation(self, generation: int) -> Path:
        return self.path / f"g{generation}"

    def require_inside(self, path: Path) -> Path:
        """Where a path below the folder leads. Raises IntegrityError when a link leads out of the folder."""
        with self.translate_errors():
            found, root = path.resolve(), self._root.resolve().joinpath(*self._names)
        if not found.is_relative_to(root):
            raise IntegrityError(
                f"{self.text}: {path} leads out of {self.path}",
                hint="remove that link, and rebuild the projection as a new generation",
            )
        return found

    def owner(self, generation: int) -> str | None:
        """``Sink.owner``."""
        file = self.generation(generation) / _OWNER
        self.require_inside(file)
        with self.translate_errors():
            try:
                text = file.read_text("utf-8", errors="replace")
            except FileNotFoundError:
                return None
        return text.strip() or None

    def create(self, target: Target) -> Path:
        """The generation's folder, with the log whose it is in it. Raises NotOwner when it is another log's."""
        place, owner = self.generation(target.generation), self.owner(target.generation)
        require_same_log(target, owner)
        with self.translate_errors():
            make_folder(place)
            if owner is None:
                replace_file(place / _OWNER, f"{target.log_id}\n")
            sync_folder(self.path)
        return place

    @abstractmethod
    def live(self) -> int | None:
        """The generation that readers see. Raises IntegrityError when the file that names it is not one of ours."""

    @abstractmethod
    def set_live(self, generation: int) -> None:
        """Let readers see it."""

    def promote(
        self, target: Target, expected_live: int | None, fence: Callable[[Target], Fence | None]
    ) -> None:
        """``Sink.promote``; ``fence`` is the sink's."""
        require_filled(target, fence(target))  # before there is a folder to lock
        with self.promotion_lock():
            require_filled(target, fence(target))  # it may have been dropped meanwhile
            live = self.live()
            if live == target.generation:
                return
            if live != expected_live:
                raise Fenced(
                    f"projection {target.projection!r} shows generation {live}, not {expected_live}",
                    hint="another process promoted meanwhile; look at its generations, then promote again",
                )
            self.set_live(target.generation)

    def drop(self, target: Target) -> None:
        """``Sink.drop``."""
        if not self.path.exists():
            return
        require_same_log(target, self.owner(target.generation))
        with self.promotion_lock():
            if self.live() == target.generation:
                raise UsageError(f"{target} is live", hint="promote another generation first")
            self.remove(target.generation)

    @contextmanager
    def promotion_lock(self) -> Iterator[None]:
        """A lock: one promotion at a time on this machine. The kernel releases it when the process dies."""
        self.require_inside(self.path / _LOCK)
        with self.translate_errors(), open(self.path / _LOCK, "ab", opener=opener) as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    @contextmanager
    def translate_errors(self) -> Iterator[None]:
        """Errors of files as ours."""
        try:
            yield
        except OSError as error:
            raise self.unusable_error(error.strerror or str(error)) from error

    def unusable_error(self, why: str) -> OperatorError:
        return OperatorError(f"{self.text}: {why}", hint="check the folder, its owner and free space")

    def remove(self, generation: int) -> None:
        """Remove a generation. Its folder is renamed first: one that is half removed must not look like a
        generation."""
        with self.translate_errors():
            place = self.generation(generation)
            self.require_inside(place)
            waste = place.with_name(f".dropped-g{generation}")
            shutil.rmtree(waste, ignore_errors=True)
            if place.exists():
                place.rename(waste)
                shutil.rmtree(waste)


def folder_problems(path: Path, target: Target) -> list[str]:
    """Why generations of the target cannot be folders below ``path``. Writes nothing."""
    problems = []
    if "/" in target.projection or target.projection.startswith("."):
        problems.append(f"the name {target.projection!r} cannot name a folder")
    nearest = next(each for each in (path, *path.absolute().parents) if each.exists())
    if not nearest.is_dir() or not os.access(nearest, os.W_OK | os.X_OK):
        problems.append(f"{path} cannot be written: make the folder, or correct [sinks] path")
    return problems


def replace_file(path: Path, text: str) -> None:
    """Write a small file. Readers see the old or the new content, even after a crash."""
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    temporary.unlink(missing_ok=True)
    with open(temporary, "x", encoding="utf-8", opener=opener) as file:  # never through a link
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
    sync_folder(path.parent)


def point(link: Path, at: str) -> None:
    """Make a symbolic link, or let it point elsewhere. Readers see where it pointed before or where it points now."""
    temporary = link.with_name(f".{link.name}.{os.getpid()}.tmp")
    temporary.unlink(missing_ok=True)
    temporary.symlink_to(at)
    os.replace(temporary, link)
    sync_folder(link.parent)


def sync_folder(path: Path) -> None:
    """The names in a folder stay after a crash."""
    folder = os.open(path, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
