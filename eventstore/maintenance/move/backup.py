"""A copy of a store with a SQLite catalog, made while everything runs: a moment of the log, whole.

The order makes it one: a lease first, so that no file goes that the copied catalog names; groups before the catalog, so
that no group is ahead of it; the catalog before the files, of which only those that it names are copied. The new
catalog takes its place last, so that the copy is a whole one at any moment, the one before or this. Files never change,
so those of an earlier copy in the same folder are not copied again.
"""

from __future__ import annotations

import fcntl
import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import create_engine, select

from tailrace.eventstore import failpoints
from tailrace.eventstore.catalog import leases, tables
from tailrace.eventstore.catalog.open import groups_file
from tailrace.eventstore.catalog.sqlite_file import read_uri
from tailrace.eventstore.errors import IntegrityError, OperatorError, UsageError, manual_page
from tailrace.eventstore.integrity import catalog_snapshot
from tailrace.eventstore.log.log import Log
from tailrace.eventstore.storage import LocalStorage
from tailrace.eventstore.storage.open import MARKER, read_marker
from tailrace.eventstore.storage.private import make_folder, opener

SEGMENTS = "segments"  # the folder beside the catalog's copy
_NEW = ".new"


@dataclass(frozen=True, slots=True)
class Backup:
    """What a copy holds: the log up to ``epoch``. ``copied`` of its ``files`` were not there before."""

    epoch: int
    hash: str
    files: int
    copied: int
    bytes: int


def backup(log: Log, folder: Path, *, report: Callable[[str], None] = lambda _: None) -> Backup:
    """Copy the store into a folder, or bring an earlier copy there up to date. Raises UsageError when the catalog is no
    file, or the folder holds another log or what this store does not have of it; IntegrityError when a file to copy is
    damaged, OperatorError when the folder cannot be written."""
    source = log.catalog.path
    if source is None:
        raise UsageError(
            "the catalog is on a Postgres server, which copies itself",
            hint="tailrace store hold -- COMMAND keeps files while COMMAND copies both: see "
            + manual_page("operations/running.md", "A catalog on Postgres"),
        )
    target = LocalStorage(folder / SEGMENTS)
    try:
        make_folder(target.root)
        _require_same_log(log, target)
        with _folder_lock(folder):
            _require_not_newer(log, folder / source.name)
            done = _copy(log, source, target, folder, report)
    except OSError as error:
        raise OperatorError(
            f"{folder} cannot be written: {error.strerror or error}",
            hint="free space, or choose another folder",
        ) from error
    return done


def _copy(
    log: Log, source: Path, target: LocalStorage, folder: Path, report: Callable[[str], None]
) -> Backup:
    with leases.reader_lease(log.catalog, "backup"):
        report("the catalog")
        databases = [path for path in (groups_file(source), source) if path.exists()]
        for path in databases:
            _copy_database(path, folder / (path.name + _NEW))
        seen = _picture(folder / (source.name + _NEW))
        done = _copy_files(log, seen, target, report)
    failpoints.hit("backup_copied")
    for path in databases:
        _replace(folder / (path.name + _NEW), folder / path.name)
    return done


@contextmanager
def _folder_lock(folder: Path) -> Iterator[None]:
    """Two at once would put one's catalog in its place before the other's files are there. The lock ends with us."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UsageError(
                f"another backup into {folder} is under way", hint="wait for it, or choose another folder"
            ) from None
        yield
    finally:
        os.close(descriptor)


def _require_same_log(log: Log, target: LocalStorage) -> None:
    if not target.exists(MARKER):
        return
    found = read_marker(target)
    if found != log.log_id:
        raise UsageError(f"{target.root} holds another log ({found})", hint="choose another folder")


def _require_not_newer(log: Log, copied: Path) -> None:
    """Raises UsageError when the copy there has what this store has not: then this store is an older copy of the log,
    or went another way since."""
    found = _head(copied)
    if found is None:
        return
    epoch, hash = found
    with log.catalog.read() as connection:
        head = connection.execute(select(tables.log_head)).one()
    same = [each for each in log.epochs(after=epoch - 1, limit=1) if each.epoch == epoch]
    if epoch > head.epoch:
        what = (
            f"the log up to epoch {epoch:,}, and this store ends at epoch {head.epoch:,}: it is an older copy"
        )
    elif (epoch == head.epoch and hash != head.hash) or (same and same[0].hash != hash):
        what = f"epoch {epoch:,} of the log with another history than this store's: one of them is a copy"
    else:
        return
    raise UsageError(
        f"{copied.parent} holds {what}",
        hint=f"choose another folder; if this store is the one to keep, remove {copied} first",
    )


def _head(catalog: Path) -> tuple[int, str] | None:
    """Epoch and hash of a copy's head; None when there is none that can be read, which is replaced."""
    if not catalog.exists():
        return None
    try:
        with closing(sqlite3.connect(read_uri(catalog.absolute()), uri=True)) as connection:
            epoch, hash = connection.execute("SELECT epoch, hash FROM log_head").fetchone()
    except (sqlite3.Error, TypeError):
        return None
    return int(epoch), str(hash)


def _copy_database(source: Path, target: Path) -> None:
    """SQLite's own copy of one moment, beside writers; durable."""
    target.unlink(missing_ok=True)
    open(target, "xb", opener=opener).close()  # SQLite fills an empty file, and makes others under the umask
    with closing(sqlite3.connect(read_uri(source.absolute()), uri=True)) as connection:
        try:
            connection.execute("VACUUM INTO ?", (str(target),))
        except sqlite3.Error as error:
            raise OperatorError(
                f"{source} cannot be copied to {target}: {error}", hint="free space"
            ) from None
    descriptor = os.open(target, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _picture(catalog: Path) -> catalog_snapshot.CatalogSnapshot:
    engine = create_engine(f"sqlite:///{catalog}")
    try:
        with engine.connect() as connection:
            return catalog_snapshot.take(connection)
    finally:
        engine.dispose()


def _copy_files(
    log: Log, seen: catalog_snapshot.CatalogSnapshot, target: LocalStorage, report: Callable[[str], None]
) -> Backup:
    paths = sorted(seen.paths - seen.retired)
    have = {file.path for file in target.files()}
    copied = size = 0
    for at, path in enumerate([*paths, MARKER], start=1):
        if path in have:
            continue
        data = log.storage.open(path)
        target.write(path, data)
        copied += 1
        size += data.size
        report(f"file {at:,} of {len(paths):,}")
    for path in paths:
        if not target.exists(path):
            raise IntegrityError(f"{target.place(path)} was copied and is not there", hint="check the disk")
    return Backup(seen.epoch, seen.hash, len(paths), copied, size)


def _replace(new: Path, old: Path) -> None:
    """``new`` takes the place of ``old`` and of what SQLite kept beside it."""
    for suffix in ("-wal", "-shm"):
        old.with_name(old.name + suffix).unlink(missing_ok=True)
    os.replace(new, old)
    descriptor = os.open(old.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
