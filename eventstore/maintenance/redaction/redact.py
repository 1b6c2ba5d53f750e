"""Redaction: the values of one key's rows are erased, wherever the log holds them; offsets, order and epochs stay.

1. Take the lease of upkeep, and seal: no value is in a blob then.
2. Find the rows (``key_history``), and the files of segments and state runs that hold a cell to erase.
3. Write each of them again with these cells erased (``erase_cells``), and read it back. No lock is held.
4. One transaction: term still mine, the new files in, the old ones out and retired, an entry for each in the topic's
   chain, a receipt, and a control epoch that tells those who follow the topic, projections above all.

A crash before 4 leaves orphans, after it nothing that another run does not do. Rows of later epochs stay as they are.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
from sqlalchemy import Connection, Row, delete, insert, literal, select

from tailrace.eventstore import failpoints
from tailrace.eventstore.catalog import roles, tables, terms
from tailrace.eventstore.catalog.leases import Busy, maintainer_lease
from tailrace.eventstore.catalog.roles import Role
from tailrace.eventstore.errors import Fenced, UsageError
from tailrace.eventstore.log import control_epochs
from tailrace.eventstore.log.log import Log
from tailrace.eventstore.maintenance.files import hash_ledger
from tailrace.eventstore.maintenance.files.orphans import collect_orphans
from tailrace.eventstore.maintenance.files.retired import retire
from tailrace.eventstore.maintenance.files.seal import seal
from tailrace.eventstore.maintenance.redaction import remaining_copies
from tailrace.eventstore.maintenance.redaction.erase_cells import Mask, erase_cells
from tailrace.eventstore.maintenance.redaction.key_history import COLUMNS, Key, KeyRows, rows_about, rows_of
from tailrace.eventstore.maintenance.redaction.receipts import Receipt, Remnant, Rewritten, add_with_epoch
from tailrace.eventstore.metadata import log_start, segment_index, topics
from tailrace.eventstore.model import keys
from tailrace.eventstore.model.info import TopicInfo
from tailrace.eventstore.model.position import Cut
from tailrace.eventstore.model.schema import TopicSchema
from tailrace.eventstore.model.segment_ref import SegmentRef
from tailrace.eventstore.model.topic import TopicId, TopicKind
from tailrace.eventstore.segment.content_hash import row_hashes
from tailrace.eventstore.segment.merge import SourceRows, require_content, require_recorded, rewrite
from tailrace.eventstore.segment.segment import folder_of, read_segment

Offsets = Mapping[int, Sequence[int]]
# Of a domain event, these are what somebody wrote; the others say which event it is, and are needed to read it.
_EVENT_VALUES = ("data", "metadata")
_POLL_SECONDS = 0.2
_PIECES = 6  # of the memory for upkeep: one for a piece that is looked at


@dataclass(frozen=True, slots=True)
class About:
    """Rows whose ``column`` has this text, as the source prints it."""

    column: str
    text: str


@dataclass(frozen=True, slots=True)
class RedactionRequest:
    """What is to be erased. ``key``: texts of its columns as the source prints them, in order, or whom rows are
    ``About``; ``columns``: names, or None for all that are not part of the key."""

    topic: TopicId
    key: Sequence[str] | About
    columns: Sequence[str] | None = None


@dataclass(frozen=True, slots=True)
class _RedactionTarget:
    info: TopicInfo
    topic_id: int
    versions: Mapping[int, TopicSchema]
    ids: frozenset[int]  # of columns
    names: tuple[str, ...]
    found: KeyRows
    upto: int
    about: str


@dataclass(frozen=True, slots=True)
class _ErasedFile:
    """A file with cells to erase: its row of ``segments``, or of ``state_runs``. ``beside``: its rows are in other
    files, too."""

    ref: SegmentRef
    row: Row[*tuple[Any, ...]]
    is_run: bool
    beside: bool
    rows: int


@dataclass(frozen=True, slots=True)
class _Redaction:
    file: _ErasedFile
    values: dict[str, Any]


def plan(log: Log, request: RedactionRequest) -> Receipt:
    """What ``redact`` would do now; nothing is written. Raises UsageError for a topic, column or key that is not there
    or cannot be erased."""
    wanted = _target(log, request, log.cut().epoch)
    refs = log.state_segments(request.topic, Cut(wanted.upto), every_row=True)
    blobs = [(ref.first_epoch, _rows_to_erase(log, wanted, ref)) for ref in refs if ref.path is None]
    held = [Rewritten(f"the blob of epoch {epoch}", "", rows) for epoch, rows in blobs if rows]
    files = list(_files(log, wanted, lambda _: None))
    held += [Rewritten(str(each.ref.path), "", each.rows) for each in files]
    with log.catalog.read() as connection:
        left = remaining_copies.remnants(log, connection, wanted.info, wanted.topic_id)
    return _receipt(wanted, sum(rows for _, rows in blobs) + _count_rows(files), held, left)


def redact(
    log: Log,
    request: RedactionRequest,
    *,
    patience: float = 60.0,
    report: Callable[[str], None] = lambda _: None,
) -> Receipt:
    """Erase; gives the receipt, with no files when everything read as erased already. Waits ``patience`` seconds for
    upkeep that is under way, then raises Busy. Raises as ``plan`` does; OperatorError for a login that may not, Fenced
    when another one began."""
    _columns(log, request)
    if log.catalog.kind == "postgres":
        with log.catalog.read() as connection:
            roles.require(connection, log.catalog.schema, "erase rows", Role.WRITER, Role.MAINTAINER)
    with _exclusive_lease(log, patience):
        report("sealing")
        seal(log)
        term = terms.begin(log.catalog, terms.REDACT)
        report("looking for its rows")
        with log.catalog.read() as connection:
            upto = topics.sealed_upto(connection)  # a capture goes on: what came since is in blobs
        wanted = _target(log, request, upto)
        files = list(_files(log, wanted, report))
        made = []
        for at, file in enumerate(files, start=1):
            report(f"file {at:,} of {len(files):,}")
            made.append(_rewrite(log, wanted, file, term))
        failpoints.hit("redact_written")
        receipt = _swap(log, wanted, made, term)
    failpoints.hit("redact_swapped")
    if receipt.epoch:
        log.waker.notify(receipt.epoch)
    collect_orphans(log)  # of those who were killed: they may hold these rows as well
    remaining_copies.forget_errors(log, request.topic, wanted.found.offsets)
    return receipt


@contextmanager
def _exclusive_lease(log: Log, patience: float) -> Iterator[None]:
    """Like ``maintainer_lease``, which upkeep has for moments only."""
    deadline = time.monotonic() + patience
    with ExitStack() as held:
        while True:
            try:
                held.enter_context(maintainer_lease(log.catalog))
                break
            except Busy as error:
                if time.monotonic() > deadline:
                    raise Busy(error.message, hint="nothing was erased; try again when it is over") from None
            time.sleep(_POLL_SECONDS)
        yield


def _target(log: Log, request: RedactionRequest, upto: int) -> _RedactionTarget:
    info, versions, names, ids = _columns(log, request)

    def read(columns: Sequence[str] = COLUMNS) -> Iterator[pa.Table]:
        for ref in log.state_segments(info.id, Cut(upto), every_row=True):
            yield read_segment(log.storage, ref, versions[ref.version], columns=columns)

    with log.pinned("redaction"):
        if isinstance(request.key, About):
            found = rows_about(read((*COLUMNS, "after", "before")), request.key.column, request.key.text)
        else:
            key: Key = tuple(request.key)
            found = rows_of(read, keys.hash_texts(key), key)
            if not found.offsets:
                raise UsageError(
                    f"{info.id} has no row with key {', '.join(request.key)} in its history",
                    hint=f"tailrace log tail {info.id} shows rows; a time is written as Postgres prints it",
                )
    with log.catalog.read() as connection:
        topic_id = topics.topic_ids(connection, [info.id])[info.id]
    about = request.key.column if isinstance(request.key, About) else ""
    return _RedactionTarget(info, topic_id, versions, ids, names, found, upto, about)


def _columns(
    log: Log, request: RedactionRequest
) -> tuple[TopicInfo, dict[int, TopicSchema], tuple[str, ...], frozenset[int]]:
    """The columns to erase, by name and identity: of a name, that of the latest version, and dropped ones."""
    info = log.topic(request.topic)
    versions = {schema.version: schema for schema in log.schemas(info.id)}
    latest = versions[info.version]
    if not isinstance(request.key, About):
        _check_key(info, latest, request.key)
    elif all(column.name != request.key.column for schema in versions.values() for column in schema.columns):
        raise UsageError(
            f"{info.id} has no column {request.key.column!r}, which is to say whom its rows are about",
            hint=f"its columns are {', '.join(column.name for column in latest.columns)}",
        )
    held = {column.id for column in latest.columns}
    key = {column.id for column in latest.key}
    names: dict[str, set[int]] = {}
    for schema in versions.values():
        for column in schema.columns:
            if column.id not in held or schema is latest:
                names.setdefault(column.name, set()).add(column.id)
    envelope = info.kind is TopicKind.EVENTS
    free = {name for name, ids in names.items() if ids - key and (not envelope or name in _EVENT_VALUES)}
    chosen = tuple(dict.fromkeys(request.columns)) if request.columns is not None else tuple(sorted(free))
    for name in chosen:
        if name not in names:
            raise UsageError(
                f"{info.id} has no column {name!r}", hint=f"its columns are {', '.join(sorted(names))}"
            )
        if name not in free:
            what = "says which event it is" if envelope else "is part of the key, and stays"
            raise UsageError(
                f"column {name!r} of {info.id} {what}", hint=f"erase any of {', '.join(sorted(free))}"
            )
    if not chosen:
        raise UsageError(
            f"all columns of {info.id} are its key: there is nothing to erase beside it",
            hint="delete the row in the source; retention removes its history",
        )
    return info, versions, chosen, frozenset(each for name in chosen for each in names[name] - key)


def _check_key(info: TopicInfo, schema: TopicSchema, key: Sequence[str]) -> None:
    columns = [column.name for column in schema.key]
    if not columns or schema.bag:
        raise UsageError(
            f"{info.id} has no key: its rows have no identity that could be named",
            hint="give the table a primary key, or let retention remove its history",
        )
    if len(columns) != len(key):
        raise UsageError(
            f"the key of {info.id} is ({', '.join(columns)}), but {len(key)} value(s) were given",
            hint=f"--key {','.join(name.upper() for name in columns)}",
        )


def _files(log: Log, wanted: _RedactionTarget, report: Callable[[str], None]) -> Iterator[_ErasedFile]:
    """What holds a cell that is not erased yet."""
    segments = tables.segments
    with log.catalog.read() as connection:
        start = log_start.read(connection, wanted.topic_id)
        table = tables.state_runs
        runs = connection.execute(
            select(table, literal(True).label("sealed")).where(table.c.topic_id == wanted.topic_id)
        ).all()
        rows = connection.execute(
            select(segments)
            .where(
                segments.c.topic_id == wanted.topic_id,
                segments.c.last_epoch <= wanted.upto,
                segments.c.last_epoch > start.epoch,
            )
            .order_by(segments.c.first_row)
        ).all()
    for at, row in enumerate([*runs, *rows], start=1):
        report(f"looking into file {at:,} of {len(runs) + len(rows):,}")
        ref = segment_index.file_ref(wanted.info.id, row)
        found = _rows_to_erase(log, wanted, ref)
        if found:
            is_run = at <= len(runs)
            yield _ErasedFile(ref, row, is_run, is_run and row.epoch != start.epoch, found)


def _count_rows(files: Sequence[_ErasedFile]) -> int:
    """How many rows of the log they hold."""
    return sum(file.rows for file in files if not file.beside)


def _rows_to_erase(log: Log, wanted: _RedactionTarget, ref: SegmentRef) -> int:
    partitions = {piece.partition for piece in ref.ranges if piece.partition in wanted.found.offsets}
    return sum(
        _count(piece, wanted.versions[ref.version], wanted) for piece in _pieces(log, ref, sorted(partitions))
    )


def _pieces(log: Log, ref: SegmentRef, partitions: Sequence[int]) -> Iterator[pa.Table]:
    if ref.path is None:
        yield read_segment(log.storage, ref, partitions=partitions)
        return
    if not partitions:
        return
    rows = SourceRows(log.storage, ref, log.settings.upkeep.memory_bytes // _PIECES)
    try:
        for partition in partitions:
            yield from rows.partition_rows(partition)
    finally:
        rows.close()


def _count(table: pa.Table, version: TopicSchema, wanted: _RedactionTarget) -> int:
    """How many of the rows have a cell to erase."""
    mine = table.filter(pa.array(_offset_mask(table, wanted.found.offsets)))
    if not mine.num_rows:
        return 0
    gone = erase_cells(mine, version, _erasable_ids(version, wanted), np.ones(mine.num_rows, np.bool_))
    return 0 if gone is mine else int(np.count_nonzero(row_hashes(gone) != row_hashes(mine)))


def _erasable_ids(version: TopicSchema, wanted: _RedactionTarget) -> Collection[int]:
    """The columns to erase that are not part of this version's key."""
    return wanted.ids - {column.id for column in version.key}


def _offset_mask(table: pa.Table, offsets: Offsets) -> Mask:
    partitions, found = table["_partition"].to_numpy(), table["_offset"].to_numpy()
    mask = np.zeros(table.num_rows, np.bool_)
    for partition, wanted in offsets.items():
        mask |= (partitions == partition) & np.isin(found, wanted)
    return mask


def _rewrite(log: Log, wanted: _RedactionTarget, file: _ErasedFile, term: int) -> _Redaction:
    version = wanted.versions[file.ref.version]
    of = terms.numbers_of(file.row.path) if file.is_run else None
    path = terms.new_parquet(folder_of(wanted.info.id, wanted.topic_id), terms.REDACT, term, of)
    memory = log.settings.upkeep.memory_bytes

    def change(table: pa.Table) -> pa.Table:
        mask = _offset_mask(table, wanted.found.offsets)
        return erase_cells(table, version, _erasable_ids(version, wanted), mask) if mask.any() else table

    written = rewrite(log.storage, [file.ref], path, memory, change)
    made = replace(file.ref, path=path, sealed=True, checksum=written.checksum, bytes=written.bytes)
    if not file.is_run:
        require_recorded(file.row, written.contents[0])
    require_content(log.storage, made, written.kept, memory)
    values = {**file.row._mapping, "path": path, "bytes": written.bytes, "checksum": written.checksum}
    if file.is_run:
        del values["sealed"]
    else:
        values |= {"sealed": True, "content": written.kept.text}
    return _Redaction(file, values)


def _receipt(
    wanted: _RedactionTarget, rows: int, files: Sequence[Rewritten], left: Sequence[Remnant]
) -> Receipt:
    return Receipt(
        topic=wanted.info.id.text,
        keys=wanted.found.keys,
        columns=wanted.names,
        upto=wanted.upto,
        rows=rows,
        files=tuple(files),
        remnants=tuple(left),
        about=wanted.about,
    )


def _swap(log: Log, wanted: _RedactionTarget, made: Sequence[_Redaction], term: int) -> Receipt:
    """Nothing is recorded when there was nothing to erase."""
    files = [Rewritten(each.file.row.path, each.values["path"], each.file.rows) for each in made]
    rows = _count_rows([each.file for each in made])
    with log.catalog.write() as connection:
        source = control_epochs.locked_source(connection, wanted.info.id.source)
        terms.check(connection, terms.REDACT, term)
        for other in (terms.MERGE, terms.RETAIN, terms.STATE):  # one under way would bring the values back
            terms.advance(connection, other)
        if made:
            _replace(connection, wanted, made)
        receipt = _receipt(
            wanted, rows, files, remaining_copies.remnants(log, connection, wanted.info, wanted.topic_id)
        )
        if made:
            receipt = add_with_epoch(log, connection, source, wanted.topic_id, receipt)
    return receipt


def _replace(connection: Connection, wanted: _RedactionTarget, made: Sequence[_Redaction]) -> None:
    for table, is_run in ((tables.segments, False), (tables.state_runs, True)):
        mine = [each for each in made if each.file.is_run == is_run]
        if not mine:
            continue
        paths = [each.file.row.path for each in mine]
        gone = connection.execute(delete(table).where(table.c.path.in_(paths)))
        if gone.rowcount != len(mine):
            raise Fenced(
                f"files of {wanted.info.id} changed while its rows were erased; nothing was changed",
                hint="run it again",
            )
        rows = []
        for each in mine:
            old = each.file.row
            replaced = [] if is_run else [old._asdict()]
            entry = hash_ledger.record(
                connection,
                wanted.topic_id,
                terms.REDACT,
                [(old.path, old.checksum)],
                replaced,
                None if is_run else each.values,
            )
            rows.append(each.values if is_run else entry)
        connection.execute(insert(table), rows)
    retire(connection, [(each.file.row.path, each.file.row.bytes) for each in made])
