"""Moving a store: claim the new place, close the old one, copy files, copy rows, open the new one, mark the old one.

It may be killed after each step; run again, it goes on. The log is in one place at any time: the new one refuses to be
opened before everything in it was compared, and from the moment that the old one is closed nothing is written there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from sqlalchemy import Connection, select

from tailrace.eventstore import failpoints
from tailrace.eventstore.catalog import group_tables, relocation, tables
from tailrace.eventstore.catalog.database import Catalog
from tailrace.eventstore.catalog.leases import holders
from tailrace.eventstore.catalog.open import groups_file, open_catalog, open_groups
from tailrace.eventstore.errors import Fenced, MissingFile, OperatorError, UsageError
from tailrace.eventstore.maintenance.move.rows import copy_rows
from tailrace.eventstore.metadata import topics
from tailrace.eventstore.metadata.named_files import named_files
from tailrace.eventstore.segment.copy import CopyResult, copy_files
from tailrace.eventstore.settings import StoreSettings
from tailrace.eventstore.storage import PARTIAL, Storage
from tailrace.eventstore.storage.open import CATALOG_MARKER, MARKER, open_storage, read_marker, write_marker

# What a first try leaves on a disk without room.
_HALF_A_MARKER = f"{MARKER}{PARTIAL}"
# Not copied: what only readers and upkeep of before hold, and the move's own row.
_LEFT = {tables.moved.name, tables.leases.name, tables.retired.name}
Report = Callable[[str], None]
Rate = Callable[[int, int, int, int], None]
"""Files done and of how many, bytes done and of how many."""


@dataclass(frozen=True, slots=True)
class StorePlace:
    """A store's two halves, opened whether they are in use or not."""

    catalog: Catalog
    storage: Storage
    log_id: str

    @property
    def label(self) -> str:
        return f"{self.catalog.label}, segments in {self.storage.label}"


@dataclass(frozen=True, slots=True)
class MoveResult:
    """What is in the new place."""

    log_id: str
    files: CopyResult
    rows: dict[str, int] = field(default_factory=dict)


class Move:
    """One move between two places. ``source`` must be a store, ``target`` empty or what an earlier run left."""

    def __init__(self, source: StorePlace, target: StorePlace) -> None:
        self.source, self.target = source, target
        self._closed_at: int | None = None

    def slots(self) -> dict[str, str]:
        """The replication slots of the sources, by source, while the old place is open: who may be streaming to it."""
        with self.source.catalog.read() as connection:
            if connection.scalar(select(tables.moved.c.id)) is not None:
                return {}
            rows = connection.execute(select(tables.sources.c.name, tables.sources.c.slot))
            return {row.name: row.slot for row in rows}

    def run(self, report: Report, rate: Rate) -> MoveResult:
        """Do, or finish, all of it. Raises OperatorError when a place may not be used, is in use or is another log's;
        IntegrityError when something is damaged: then the log stays where it is, closed; ``abandon`` opens it."""
        arrived = self._claim()
        if not arrived:
            report("closing the old place")
            self._close()
            with self.source.catalog.read() as connection:
                wanted = named_files(connection)
            total = sum(file.bytes for file in wanted)
            files = copy_files(
                wanted,
                self.source.storage,
                self.target.storage,
                lambda done, size: rate(done, len(wanted), size, total),
            )
            report("copying the catalog")
            rows = self._copy_rows()
            failpoints.hit("move_rows_copied")
        self._open_new()
        self._leave()
        if arrived:
            with self.target.catalog.read() as connection:
                found = named_files(connection)
            files, rows = CopyResult(len(found), sum(file.bytes for file in found), 0), {}
        return MoveResult(self.source.log_id, files, rows)

    def abandon(self) -> None:
        """Open the old place again. Raises OperatorError when the log is in the new one already."""
        with self.source.catalog.write() as connection:
            row = connection.execute(select(tables.moved)).one_or_none()
            if row is None or row.arriving:
                raise OperatorError(f"{self.source.catalog.label}: no move of this store was begun")
            if row.ended_at is not None or self._has_arrived():
                raise OperatorError(
                    f"the log is in {self.target.label} already",
                    hint="move it back, to another place than this one",
                )
            relocation.take_down(connection, self.source.catalog.kind, tables.metadata.sorted_tables)
            self._guard_groups(relocation.take_down, connection)
            relocation.unmark(connection)

    # steps

    def _claim(self) -> bool:
        """The new place is ours, and takes files. Whether the log is there already."""
        with self.source.catalog.read() as connection:
            going = connection.execute(select(tables.moved)).one_or_none()
        if going is not None and going.arriving:
            relocation.check(self.source.catalog)
        if going is not None and (going.catalog, going.segments) != self._target_labels:
            relocation.check(self.source.catalog)
        if self._has_arrived():
            return True
        self.target.storage.prepare()
        self._claim_storage()
        with self.target.catalog.write() as connection:
            row = connection.execute(select(tables.moved)).one_or_none()
            if row is not None and (not row.arriving or row.log_id != self.source.log_id):
                relocation.check(self.target.catalog)
            if row is None:
                _require_empty(connection, self.target.catalog)
                relocation.mark(
                    connection,
                    log_id=self.source.log_id,
                    arriving=True,
                    catalog=self.source.catalog.label,
                    segments=self.source.storage.label,
                )
        failpoints.hit("move_claimed")
        return False

    @property
    def _target_labels(self) -> tuple[str, str]:
        return self.target.catalog.label, self.target.storage.label

    def _has_arrived(self) -> bool:
        with self.target.catalog.read() as connection:
            log_id = connection.scalar(select(tables.log.c.log_id))
            marked = connection.execute(select(tables.moved)).one_or_none()
        if log_id == self.source.log_id and marked is not None and not marked.arriving:
            raise OperatorError(
                f"{self.target.catalog.label} holds this log as it was when it moved away from there",
                hint="remove what is left there (the file, or the schema), or move to another place",
            )
        return log_id == self.source.log_id and marked is None

    def _claim_storage(self) -> None:
        storage = self.target.storage
        try:
            found = read_marker(storage)
        except MissingFile:
            if any(file.path != _HALF_A_MARKER for file in storage.files()):
                raise OperatorError(
                    f"{storage.label} holds other files", hint="name an empty folder, or another prefix"
                ) from None
            write_marker(storage, self.source.log_id)
            return
        if found != self.source.log_id:
            raise OperatorError(
                f"the segments in {storage.label} belong to another log ({found})",
                hint="name an empty folder, or another prefix",
            )

    def _close(self) -> None:
        """Nobody writes here any more. Raises OperatorError naming who is at work."""
        catalog = self.source.catalog
        with catalog.write() as connection:
            self._closed_at = connection.scalar(select(tables.moved.c.began_at))
            if self._closed_at is not None:
                return
            at_work = holders(connection)
            if at_work:
                raise OperatorError(
                    f"{catalog.label} is in use: {'; '.join(at_work)}",
                    hint="stop them, and run the move again",
                )
            relocation.put_up(connection, catalog.kind, tables.metadata.sorted_tables, self.target.label)
            self._guard_groups(relocation.put_up, connection, self.target.label)
            name, segments = self._target_labels
            relocation.mark(
                connection, log_id=self.source.log_id, arriving=False, catalog=name, segments=segments
            )
            self._closed_at = connection.scalar(select(tables.moved.c.began_at))
        failpoints.hit("move_closed")

    def _guard_groups(self, do: Callable[..., None], connection: Connection, *more: str) -> None:
        """The tables of groups are in the catalog's transaction on Postgres, in a file of their own beside SQLite."""
        catalog = self.source.catalog
        guarded = group_tables.metadata.sorted_tables
        if catalog.path is None:
            do(connection, catalog.kind, guarded, *more)
        elif groups_file(catalog.path).exists():
            with _groups(catalog) as groups, groups.write() as inside:
                relocation.take_down(inside, groups.kind, guarded)  # what a killed run put up
                do(inside, groups.kind, guarded, *more)

    def _copy_rows(self) -> dict[str, int]:
        """Raises Fenced when another run of the move opened the new place: what is written there since would be
        lost."""
        copied = [table for table in tables.metadata.sorted_tables if table.name not in _LEFT]
        with self.source.catalog.read() as reading, self.target.catalog.write() as writing:
            marked = writing.execute(select(tables.moved).with_for_update()).one_or_none()
            if marked is None or not marked.arriving:
                raise _overtaken_error(f"the log is in {self.target.label}")
            rows = self._copy_groups()
            rows |= copy_rows(reading, writing, copied)
        return rows

    def _copy_groups(self) -> dict[str, int]:
        source, target = self.source.catalog, self.target.catalog
        if source.path is not None and not groups_file(source.path).exists():
            return {}
        with _groups(source) as old, _groups(target) as new, old.read() as reading, new.write() as writing:
            return copy_rows(reading, writing, group_tables.metadata.sorted_tables)

    def _open_new(self) -> None:
        """The one moment at which the log changes its place."""
        with self.source.catalog.write() as held:  # so that nobody abandons the move meanwhile
            row = held.execute(select(tables.moved)).one_or_none()
            if row is None:
                raise OperatorError("the move was abandoned meanwhile", hint="the log is where it was")
            if self._closed_at is not None and row.began_at != self._closed_at:
                # What was written to the old place between is not among the rows that were copied.
                raise _overtaken_error("it was abandoned, and begun again")
            with self.target.catalog.write() as connection:
                relocation.unmark(connection)
            failpoints.hit("move_arrived")
            if row.ended_at is None:
                relocation.end(held)
        failpoints.hit("move_marked")

    def _leave(self) -> None:
        """Without its marker the old place is no half of a store, not beside the new catalog either."""
        self.source.storage.delete(MARKER)
        self.source.storage.delete(CATALOG_MARKER)


@contextmanager
def open_move(settings: StoreSettings, target: StoreSettings, root: Path) -> Iterator[Move]:
    """A move from where ``settings`` say to where ``target`` says. Both halves must change. Nothing is copied yet.

    Raises UsageError for a move that is none, OperatorError and TransientError for places that cannot be opened.
    """
    with ExitStack() as opened:
        source = _open(settings, root, opened, create=False)
        same = source.storage == open_storage(target, root)
        if same or settings.catalog == target.catalog:
            which = "segments are" if same else "catalog is"
            raise UsageError(
                f"the {which} there already",
                hint="a move needs a new place for both: --catalog and --segments",
            )
        yield Move(source, _open(target, root, opened, create=True))


def _open(settings: StoreSettings, root: Path, opened: ExitStack, *, create: bool) -> StorePlace:
    storage = open_storage(settings, root)
    catalog = open_catalog(settings.catalog, store_name=settings.name, root=root, create=create)
    opened.callback(catalog.close)
    if catalog.kind == "postgres":
        open_groups(catalog)
    with catalog.read() as connection:
        return StorePlace(catalog, storage, str(connection.scalar(select(tables.log.c.log_id))))


@contextmanager
def _groups(catalog: Catalog) -> Iterator[Catalog]:
    database = open_groups(catalog)
    try:
        yield database
    finally:
        if database is not catalog:
            database.close()


def _overtaken_error(what: str) -> Fenced:
    return Fenced(
        f"another process continued this move meanwhile: {what}", hint="run one at a time; this one stops"
    )


def _require_empty(connection: Connection, catalog: Catalog) -> None:
    used = topics.head_epoch(connection) or connection.scalar(select(tables.sources.c.name).limit(1))
    if used:
        raise OperatorError(
            f"{catalog.label} holds another log", hint="name an empty database, or another store.name"
        )
