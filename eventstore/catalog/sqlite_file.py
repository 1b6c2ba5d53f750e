"""The file of a SQLite database: whether this process may write it, how it is opened, and whether it is still there."""

from __future__ import annotations

import os
import re
import sqlite3
from pathlib import Path

from tailrace.eventstore.errors import MissingFile, OperatorError

_JOURNALS = ("-wal", "-journal")
_READABLE_COPY = (
    "run it as a user who may write there (SQLite keeps files of its own beside the database), or read a whole copy "
    "in a folder that can be written"
)


class SqliteFile:
    """One database while it is open. SQLite itself goes on in a file that was removed, where commits are lost."""

    def __init__(self, path: Path, *, create: bool) -> None:
        self.path = path
        self.read_only = not create and not (os.access(path, os.W_OK) and os.access(path.parent, os.W_OK))
        self._frozen = self.read_only and _is_frozen(path)
        self._opened = _picture(path) if self._frozen else None
        self._identity: tuple[int, int] | None = None

    def query(self, *, create: bool = False) -> dict[str, str]:
        """How SQLite is to open it: never as a new empty database in the place of one that vanished."""
        if self._frozen:
            return {"mode": "ro", "immutable": "1"}
        return {"mode": "ro" if self.read_only else "rwc" if create else "rw"}

    def connected(self) -> None:
        """Note which file was opened, once SQLite has it open."""
        if self._identity is None:
            self._identity = _identity(self.path)

    def check(self) -> None:
        """Raises MissingFile when another file, or none, is at the path since this one was opened; and when somebody
        changed one that was opened without locks."""
        if self._identity is not None and _identity(self.path) != self._identity:
            raise MissingFile(
                f"catalog {self.path} was removed or replaced while it was open; nothing more was read or written",
                hint="put the file back, and run this again",
            )
        if self._opened is not None and _picture(self.path) != self._opened:
            raise MissingFile(
                f"catalog {self.path} was changed from outside this read-only mount while it was read",
                hint="run this again; it finds what is there now",
            )

    def require_writable(self) -> None:
        """Raises OperatorError."""
        if self.read_only:
            raise OperatorError(
                f"catalog {self.path} cannot be opened for writing: this user may only read it; nothing was changed",
                hint="let the user that runs Tailrace write the file and its folder, where SQLite keeps its own",
            )

    def unreadable(self, message: str) -> OperatorError:
        """For a database that may only be read, and cannot be."""
        return OperatorError(f"catalog {self.path} cannot be read here: {message}", hint=_READABLE_COPY)


def read_uri(path: Path) -> str:
    """How to open a database to read it, by itself."""
    query = {**SqliteFile(path, create=False).query(), "mode": "ro"}
    return f"file:{quote_path(path)}?{'&'.join(f'{name}={value}' for name, value in query.items())}"


def prepare(connection: sqlite3.Connection, file: SqliteFile) -> None:
    """Set a new connection up."""
    connection.isolation_level = None  # the driver begins nothing by itself
    if not file.read_only and connection.execute("PRAGMA journal_mode").fetchone()[0] != "wal":
        connection.execute("PRAGMA journal_mode=WAL")
    # WAL with NORMAL may lose the last commits at a power cut
    connection.execute("PRAGMA synchronous=FULL")
    connection.execute("PRAGMA foreign_keys=ON")
    file.connected()


def _is_frozen(path: Path) -> bool:
    """Whether to open with ``immutable=1``: without locks, and without the write-ahead log.

    SQLite cannot read a database in WAL mode where it may not make its -wal and -shm, unless they are there
    (https://sqlite.org/wal.html, "Read-Only Databases"). Without locks it gives wrong rows when another process
    writes, and without the -wal it leaves out the commits in there. So only where the mount is read-only, and nothing
    is in a -wal or -journal; ``SqliteFile.check`` sees a writer to whom the same file is mounted otherwise. With both
    -wal and -shm there SQLite reads and locks as always.
    """
    if not os.statvfs(path).f_flag & os.ST_RDONLY or (
        _size(path, "-wal") is not None and _size(path, "-shm")
    ):
        return False
    return not any(_size(path, suffix) for suffix in _JOURNALS)


def _size(path: Path, suffix: str) -> int | None:
    """Bytes of a file of SQLite's beside the database; None when there is none."""
    try:
        return os.stat(f"{path}{suffix}").st_size
    except FileNotFoundError:
        return None


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _picture(path: Path) -> tuple[int, int, int | None]:
    """What differs as soon as somebody has opened the database to write (a -wal), or has written (the rest)."""
    found = os.stat(path)
    return found.st_size, found.st_mtime_ns, _size(path, "-wal")


def quote_path(path: Path) -> str:
    return re.sub(r"[?#%]", lambda match: f"%{ord(match[0]):02x}", str(path))
