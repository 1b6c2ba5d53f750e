"""Keys of subjects in a file of their own: apart from the database that has the events, and from its backups."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tailrace.eventstore.errors import OperatorError
from tailrace.eventstore.streams.personal.sealing import Key, new_secret

if TYPE_CHECKING:
    import sqlite3

_TABLES: Final = """
CREATE TABLE IF NOT EXISTS keys (
    number INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, subject TEXT NOT NULL, secret BLOB,
    retired INTEGER NOT NULL DEFAULT 0
);
CREATE INDEX IF NOT EXISTS keys_subject ON keys (subject);
CREATE TABLE IF NOT EXISTS tag_secret (only_one INTEGER PRIMARY KEY CHECK (only_one = 1), secret BLOB NOT NULL);
"""
_WAIT_SECONDS: Final = 30.0


class FileKeys:
    """``KeyStore`` in a file of SQLite, for the processes of one machine. What is deleted is overwritten
    (https://www.sqlite.org/pragma.html#pragma_secure_delete).

    Another transaction than that of the events: a key may be there without an event. Back the file up by its own, with
    ``sqlite3 FILE ".backup COPY"``; after restoring it: ``tailrace forget --again``.
    """

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)

    async def seal_keys(self, subjects: Sequence[str]) -> Mapping[str, Key]:
        with self._file() as file:
            found = {}
            for subject in subjects:
                current = _current(file, subject)
                found[subject] = _make(file, subject) if current is None else current
            return found

    async def open_keys(self, ids: Sequence[str]) -> Mapping[str, bytes | None]:
        with self._file() as file:
            found = {}
            for id in ids:
                for (secret,) in file.execute("SELECT secret FROM keys WHERE id = ?", (id,)):
                    found[id] = secret
            return found

    async def tag_secret(self) -> bytes:
        with self._file() as file:
            file.execute("INSERT OR IGNORE INTO tag_secret VALUES (1, ?)", (new_secret(),))
            ((secret,),) = file.execute("SELECT secret FROM tag_secret")
            return bytes(secret)

    async def rotate(self, subject: str) -> Key | None:
        with self._file() as file:
            if _current(file, subject) is None:
                return None
            file.execute("UPDATE keys SET retired = 1 WHERE subject = ?", (subject,))
            return _make(file, subject)

    async def keys_of(self, subject: str) -> Sequence[Key]:
        query = "SELECT id, secret FROM keys WHERE subject = ? AND secret IS NOT NULL ORDER BY number DESC"
        with self._file() as file:
            return [Key(*row) for row in file.execute(query, (subject,))]

    async def forget(self, ids: Iterable[str]) -> Sequence[str]:
        """The ids stay, without subject and secret."""
        gone = []
        with self._file() as file:
            for id in ids:
                done = file.execute(
                    "UPDATE keys SET secret = NULL, subject = '' WHERE id = ? AND secret IS NOT NULL", (id,)
                )
                gone += [id] * done.rowcount
                file.execute("INSERT OR IGNORE INTO keys (id, subject, secret) VALUES (?, '', NULL)", (id,))
        return gone

    @contextmanager
    def _file(self) -> Iterator[sqlite3.Connection]:
        """One transaction; others wait. Only its owner may read the file."""
        import sqlite3  # only for those who have such a file

        try:
            self.path.touch(mode=0o600)
            file = sqlite3.connect(self.path, timeout=_WAIT_SECONDS, isolation_level=None)
            try:
                file.execute("PRAGMA secure_delete = ON")
                file.execute("PRAGMA synchronous = FULL")
                file.execute("BEGIN IMMEDIATE")
                for statement in _TABLES.split(";")[:-1]:
                    file.execute(statement)
                yield file
                file.execute("COMMIT")
            finally:
                file.close()
        except (OSError, sqlite3.Error) as error:
            raise OperatorError(
                f"the file of keys {self.path} cannot be used: {error}",
                hint="its folder must exist, and this user be able to write both",
            ) from None


def _current(file: sqlite3.Connection, subject: str) -> Key | None:
    query = "SELECT id, secret FROM keys WHERE subject = ? AND secret IS NOT NULL AND NOT retired"
    return next((Key(*row) for row in file.execute(query, (subject,))), None)


def _make(file: sqlite3.Connection, subject: str) -> Key:
    key = Key(str(uuid.uuid4()), new_secret())
    file.execute("INSERT INTO keys (id, subject, secret) VALUES (?, ?, ?)", (key.id, subject, key.secret))
    return key
