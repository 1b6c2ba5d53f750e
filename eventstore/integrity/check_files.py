"""Do the bytes fit the catalog? Reads blobs and files, a bounded piece at a time."""

from __future__ import annotations

from collections.abc import Collection, Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from sqlalchemy import Connection, select

from tailrace.eventstore.catalog import tables
from tailrace.eventstore.errors import IntegrityError, MissingFile
from tailrace.eventstore.integrity import check_catalog
from tailrace.eventstore.integrity.catalog_snapshot import (
    AnyRow,
    CatalogSnapshot,
    NamedPath,
    Topic,
    blob_place,
)
from tailrace.eventstore.integrity.findings import Finding, LogProblem
from tailrace.eventstore.metadata import segment_index
from tailrace.eventstore.metadata.epochs import open_file, spans_from_json, spans_of
from tailrace.eventstore.segment import file_reader, hash_chain, segment
from tailrace.eventstore.segment.content_hash import Content, content_of
from tailrace.eventstore.segment.merge import SourceRows
from tailrace.eventstore.storage import Storage

PAGE_EPOCHS = 256
_OF_SPANS = ["epoch", "rows", "source", "incarnation", "last_lsn", "last_ts", "commit_ts"]
_UNREADABLE = (pa.ArrowException, IntegrityError, OSError, ValueError, KeyError)


def blobs(
    connection: Connection, topics: Collection[Topic], after: int, upto: int
) -> tuple[int, list[Finding], int]:
    """The next page of epochs with blobs: the last epoch looked at, what is wrong, and the bytes read. In one snapshot:
    a blob that was sealed since is in a file now."""
    table, data = tables.epochs, tables.blobs
    wanted = {topic.id: topic for topic in topics}
    query = (
        select(table, data)
        .outerjoin(data, data.c.append_id == table.c.append_id)
        .where(table.c.epoch > after, table.c.epoch <= upto, table.c.blob_bytes.is_not(None))
        .order_by(table.c.epoch)
        .limit(PAGE_EPOCHS)
    )
    found: list[Finding] = []
    size, last = 0, upto
    for count, row in enumerate(connection.execute(query), start=1):
        last = row.epoch if count == PAGE_EPOCHS else upto
        parts = segment_index.parts_from_json(row.parts)
        if row.data is None or not any(part.topic_id in wanted for part in parts):
            continue  # the check of the structure reports a missing one
        size += len(row.data)
        try:
            plain = segment.unpack_blob(row.data, row.plain_bytes, row.checksum, blob_place(row.epoch))
        except _UNREADABLE:
            detail = "its bytes are not those that were written"
            found.append(Finding(LogProblem.DAMAGED, blob_place(row.epoch), detail))
            continue
        found += _append_findings(connection, row, parts, plain, wanted)
    return last, found, size


def _append_findings(
    connection: Connection,
    row: AnyRow,
    parts: Collection[segment_index.BlobPart],
    plain: bytes,
    topics: dict[int, Topic],
) -> Iterator[Finding]:
    """The parts of a blob, and the files beside it, against the epoch's hash."""
    table = tables.segments
    names = {topic_id: topic.name.text for topic_id, topic in topics.items()}
    files = connection.execute(
        select(table).where(table.c.last_epoch == row.epoch, table.c.sealed.is_(False))
    ).all()
    ids = {part.topic_id for part in parts} | {file.topic_id for file in files}
    if not ids <= names.keys() or row.rows != sum(part.rows for part in parts) + sum(
        file.rows for file in files
    ):
        return  # not all of the epoch is looked at, or there
    appended = [
        hash_chain.AppendedPart(
            names[part.topic_id],
            part.version,
            part.first_row,
            file_reader.checksum(memoryview(plain)[part.start : part.start + part.length]),
            part.ranges,
        )
        for part in parts
    ]
    appended += [check_catalog.appended_part(topics[file.topic_id], file) for file in files]
    yield from check_catalog.changed_parts(row, appended)


def file_findings(storage: Storage, named: NamedPath) -> Iterator[Finding]:
    """The bytes of a file as a whole."""
    try:
        data = storage.open(named.path)
    except MissingFile:
        yield Finding(LogProblem.MISSING, named.path, "the catalog names it")
        return
    if file_reader.checksum(data) != named.checksum:
        yield Finding(LogProblem.DAMAGED, named.path, _damage(data.size, named.bytes))
    elif named.bytes is not None and data.size != named.bytes:
        detail = f"it has {data.size} bytes, the catalog says {named.bytes}"
        yield Finding(LogProblem.CHANGED, named.path, detail)


def _damage(size: int, expected: int | None) -> str:
    if expected is not None and size != expected:
        return f"it has {size} bytes where {expected} were written"
    return "its bytes are not those that were written"


def segment_rows(
    storage: Storage, seen: CatalogSnapshot, topic: Topic, row: AnyRow, memory_bytes: int
) -> Iterator[Finding]:
    """The rows of a file whose bytes are whole: their places, whether their epochs know of them, and their content when
    it is known."""
    try:
        yield from _segment_rows(storage, seen, topic, row, memory_bytes)
    except _UNREADABLE as error:
        text = str(error).partition("\n")[0]
        yield Finding(LogProblem.DAMAGED, row.path, f"{topic.name}: it cannot be read: {text}")


def chosen_rows(storage: Storage, topic: Topic, row: AnyRow, memory_bytes: int) -> Iterator[Finding]:
    """The rows of a file of ``state_runs``, whose offsets have gaps, or of ``archived``: whether it has those that the
    row says, of these epochs and this version."""
    try:
        yield from _chosen_rows(storage, topic, row, memory_bytes)
    except _UNREADABLE as error:
        text = str(error).partition("\n")[0]
        yield Finding(LogProblem.DAMAGED, row.path, f"{topic.name}: it cannot be read: {text}")


def _chosen_rows(storage: Storage, topic: Topic, row: AnyRow, memory_bytes: int) -> Iterator[Finding]:
    ref = segment_index.file_ref(topic.name, row)
    rows = SourceRows(storage, ref, memory_bytes)
    held: dict[int, list[int]] = {}
    epochs: list[int] = []
    try:
        yield from _other_columns(topic, row, rows.schema)
        for piece in rows.all_rows():
            epochs += [pc.min(piece["_epoch"]).as_py(), pc.max(piece["_epoch"]).as_py()]
            by_partition = piece.group_by("_partition").aggregate([("_offset", "min"), ("_offset", "count")])
            for found in by_partition.to_pylist():
                first, count = held.get(found["_partition"], (found["_offset_min"], 0))
                held[found["_partition"]] = [first, count + found["_offset_count"]]
    finally:
        rows.close()
    expected = {piece.partition: [piece.first_offset, piece.rows] for piece in ref.ranges if piece.rows}
    if held != expected or (min(epochs), max(epochs)) != (row.first_epoch, row.last_epoch):
        text = f"{topic.name}: its rows have other offsets or epochs than the catalog says"
        yield Finding(LogProblem.CHANGED, row.path, text)


def _other_columns(topic: Topic, row: AnyRow, held: pa.Schema) -> Iterator[Finding]:
    if not segment.has_columns(held, topic.schemas[row.version]):
        text = f"{topic.name}: its columns are not those of version {row.version}"
        yield Finding(LogProblem.CHANGED, row.path, text)


def _segment_rows(
    storage: Storage, seen: CatalogSnapshot, topic: Topic, row: AnyRow, memory_bytes: int
) -> Iterator[Finding]:
    ref = segment_index.file_ref(topic.name, row)
    if not row.sealed:
        file = file_reader.open_file(storage, ref)
        yield from _other_columns(topic, row, file.schema_arrow)
        held = file.metadata.num_rows
        if held != row.rows:
            text = f"{topic.name}: it holds {held} rows, the catalog says {row.rows}"
            yield Finding(LogProblem.CHANGED, row.path, text)
        return
    rows = SourceRows(storage, ref, memory_bytes)
    content, count, misplaced, last = Content(), 0, False, 0
    unlisted: dict[int, None] = {}
    expected = segment.positions_of(ref.ranges)
    try:
        yield from _other_columns(topic, row, rows.schema)
        for piece in rows.all_rows():
            content += content_of(piece)
            partition, offset = expected[0][count:], expected[1][count:]
            epochs = piece["_epoch"].to_numpy()
            held = piece.num_rows
            misplaced |= not (
                np.array_equal(piece["_partition"].to_numpy(), partition[:held])
                and np.array_equal(piece["_offset"].to_numpy(), offset[:held])
                and bool(np.all((epochs >= row.first_epoch) & (epochs <= row.last_epoch)))
            )
            count += held
            last = max(last, int(epochs.max(initial=0)))
            unlisted |= dict.fromkeys(seen.leaves_out(topic.id, np.unique(epochs).tolist()))
            lsns = piece["_lsn"].drop_null().to_numpy()
            misplaced |= row.first_lsn is not None and not bool(
                np.all((lsns >= row.first_lsn) & (lsns <= row.last_lsn))
            )
    finally:
        rows.close()
    if count != row.rows or misplaced or last != row.last_epoch:
        text = f"{topic.name}: its rows have other offsets, epochs or LSNs than the catalog says"
        yield Finding(LogProblem.CHANGED, row.path, text)
    elif unlisted:
        yield from (
            Finding(LogProblem.CHANGED, f"epoch {epoch}", f"it does not say that it has rows of {topic.name}")
            for epoch in unlisted
        )
    elif row.content and content.text != row.content:
        text = f"{topic.name}: its rows are not those that were recorded when it was made"
        yield Finding(LogProblem.CHANGED, row.path, text)


def epoch_file(storage: Storage, row: AnyRow) -> tuple[list[Finding], int]:
    """A file of epochs whose bytes are whole: what is wrong, and how many rows its epochs brought."""
    try:
        with open_file(storage, row) as file:
            table = file.read(columns=_OF_SPANS)
    except _UNREADABLE as error:
        text = f"it cannot be read: {str(error).partition(chr(10))[0]}"
        return [Finding(LogProblem.DAMAGED, row.path, text)], 0
    held = table["epoch"].to_numpy()
    if not np.array_equal(held, np.arange(row.first_epoch, row.last_epoch + 1)):
        text = f"it does not hold epochs {row.first_epoch} to {row.last_epoch}"
        return [Finding(LogProblem.CHANGED, row.path, text)], 0
    if set(spans_of(table)) != set(spans_from_json(row.spans)):
        text = "its spans are not those of its epochs"
        return [Finding(LogProblem.CHANGED, row.path, text)], 0
    return [], int(table["rows"].to_numpy().sum())


def last_hash(storage: Storage, row: AnyRow) -> str | None:
    """The hash of a file's last epoch; None when it cannot be read, which others tell."""
    try:
        with open_file(storage, row) as file:
            hashes = file.read_row_group(file.num_row_groups - 1, columns=["hash"])["hash"]
            return str(hashes[-1].as_py().hex())
    except _UNREADABLE:
        return None
