"""Generations as folders of Parquet files. A step writes new files beside the old ones and then moves one link.

Files of a bucket are written again only if they hold a key of the step. New rows are merged with files that are small
beside them, so that a bucket has few files.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import IO, Literal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import xxhash

from tailrace.eventstore.errors import (
    DifferenceFound,
    IntegrityError,
    OperatorError,
    TailraceError,
    TransientError,
    UsageError,
)
from tailrace.eventstore.model import keys
from tailrace.eventstore.model.position import Fence
from tailrace.eventstore.settings import SinkSettings
from tailrace.eventstore.storage.private import make_folder, opener
from tailrace.projections.sinks.columns import is_list, is_text, to_texts
from tailrace.projections.sinks.contract import (
    InMotion,
    SinkSnapshot,
    Target,
    check_step,
    column_problems,
    key_texts,
    keys_for,
    raise_problems,
    rows_for,
)
from tailrace.projections.sinks.folder import folder_problems, sync_folder
from tailrace.projections.sinks.parquet.snapshot import (
    MANIFEST,
    STAGING,
    Manifest,
    PlacedFile,
    SnapshotFolder,
    StagedLoad,
    folder_name,
    forget_loading,
    read_loading,
    write_loading,
)
from tailrace.projections.sinks.specs import ParquetFolder

_LOCK = ".lock"
_FILE_ROWS = 1_000_000
# Of a column: one that needs more is written plain. With Arrow's 1 MiB, a bucket's keys and times take most of the
# work, and more room in the end.
_DICTIONARY_BYTES = 64 << 10
# A file of at most so many times the new rows is written again together with them.
_GROWTH = 2


class ParquetSink:
    """The atomic sink for ``ParquetFolder``."""

    kind: Literal["atomic", "monotonic"] = "atomic"

    def __init__(self, spec: ParquetFolder, settings: SinkSettings) -> None:
        self._spec = spec
        self._path = settings.path or Path()

    def _folder(self, store: str, projection: str) -> SnapshotFolder:
        return SnapshotFolder(f"sink {self._spec.sink!r}", self._path, store, projection)

    def _folder_of(self, target: Target) -> SnapshotFolder:
        return self._folder(target.store, target.projection)

    def check(self, target: Target) -> list[str]:
        problems = column_problems(target) + partition_problems(self._spec, target)
        raise_problems(target, problems + folder_problems(self._path, target))
        return []

    def create(self, target: Target) -> None:
        raise_problems(target, column_problems(target) + partition_problems(self._spec, target))
        folder = self._folder_of(target)
        found = folder.current(target.generation)
        if found is not None and not found[1].is_of(target, self._spec.partition_by):
            raise OperatorError(
                f"{target} is in the sink with other columns or folders",
                hint="rebuild the projection as a new generation",
            )
        folder.create(target)

    def owner(self, target: Target) -> str | None:
        return self._folder_of(target).owner(target.generation)

    @contextmanager
    def load(self, target: Target, expected: Fence | None, to: Fence) -> Iterator[ParquetLoad]:
        folder = self._folder_of(target)
        place = folder.generation(target.generation)
        if not place.is_dir():
            raise UsageError(f"{target} does not exist in the sink", hint="create it first")
        for path in (place / _LOCK, place / STAGING):
            folder.require_inside(path)
        with ExitStack() as locked:
            with folder.translate_errors():
                self._lock(folder, locked.enter_context(open(place / _LOCK, "ab", opener=opener)))
            # Only now: between a look at the fence and the lock another process could have written.
            current = folder.current(target.generation)
            check_step(target, current[1].fence(target) if current else None, expected, to)
            load = ParquetLoad(folder, self._spec, target, current, to)
            with folder.translate_errors():
                load.begin()
            yield load

    def _lock(self, folder: SnapshotFolder, file: IO[bytes]) -> None:
        """One writer of a generation at a time. The kernel releases the lock of a process that died."""
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise TransientError(
                f"{folder.text}: another process writes to {Path(file.name).parent}",
                hint="let it end, then try again",
            ) from error

    def fence(self, target: Target) -> Fence | None:
        found = self._folder_of(target).current(target.generation)
        return None if found is None else found[1].fence(target)

    def promote(self, target: Target, expected_live: int | None) -> None:
        self._folder_of(target).promote(target, expected_live, self.fence)

    def live(self, store: str, projection: str) -> int | None:
        return self._folder(store, projection).live()

    def drop(self, target: Target) -> None:
        self._folder_of(target).drop(target)

    def scan(self, target: Target) -> Iterator[pa.RecordBatch]:
        with self.snapshot(target) as found:
            yield from found.rows

    @contextmanager
    def snapshot(self, target: Target) -> Iterator[SinkSnapshot]:
        """The rows and fence of one step's folder, which later steps leave alone until ``keep_seconds`` after they
        replaced it."""
        folder = self._folder_of(target)
        current = folder.current(target.generation)
        if current is None:
            yield SinkSnapshot(None, iter(()))
        else:
            yield SinkSnapshot(current[1].fence(target), self._retained_rows(folder, target, *current))

    def _retained_rows(
        self, folder: SnapshotFolder, target: Target, place: Path, manifest: Manifest
    ) -> Iterator[pa.RecordBatch]:
        """The rows of a step's folder. Raises InMotion when a later step removed it meanwhile."""
        try:
            yield from self._rows(folder, target, place, manifest)
        except TailraceError as error:
            now = folder.current(target.generation)
            if now is None or now[0] == place or all((place / file.path).exists() for file in manifest.files):
                raise
            raise InMotion(
                f"{target}: {place} was replaced and removed while it was read",
                hint="try again, or set keep_seconds of the ParquetFolder to what reading takes",
            ) from error

    def _rows(
        self, folder: SnapshotFolder, target: Target, place: Path, manifest: Manifest
    ) -> Iterator[pa.RecordBatch]:
        if not manifest.is_of(target, self._spec.partition_by):
            raise IntegrityError(
                f"{target}: {place / MANIFEST} is of another generation",
                hint=f"tailrace rebuild {target.projection}",
            )
        with folder.translate_errors():
            held = {str(path.relative_to(place)) for path in place.rglob("*.parquet")}
        foreign = sorted(held - {file.path for file in manifest.files})
        if foreign:
            raise DifferenceFound(
                f"{target}: {place} has files that Tailrace did not write: {', '.join(foreign[:3])}",
                hint="remove them: every reader of the folder reads them, too",
            )
        for file in manifest.files:
            yield from manifest.complete_rows(read_file(folder, place, file), file).to_batches()


def read_file(folder: SnapshotFolder, place: Path, file: PlacedFile) -> pa.Table:
    """The rows of a file. Raises IntegrityError when it is not what was written."""
    try:
        with folder.translate_errors():
            data = folder.require_inside(place / file.path).read_bytes()
            if xxhash.xxh3_128_hexdigest(data) == file.checksum:
                return pq.ParquetFile(pa.BufferReader(data)).read()
    except OperatorError as error:
        if not isinstance(error.__cause__, FileNotFoundError):
            raise
    raise IntegrityError(
        f"{folder.text}: {place / file.path} is missing or not what was written",
        hint="check the disk, then rebuild the projection as a new generation",
    )


class ParquetLoad:
    """One step. Its new files are in a folder of their own until ``commit``. A first load takes long, so a file in the
    folder says which buckets are complete, and a load that was cut off goes on after them."""

    def __init__(
        self,
        folder: SnapshotFolder,
        spec: ParquetFolder,
        target: Target,
        before: tuple[Path, Manifest] | None,
        to: Fence,
    ) -> None:
        self._folder, self._spec, self._target, self._to = folder, spec, target, to
        self._generation = folder.generation(target.generation)
        self._staging = self._generation / STAGING
        self._before = before[0] if before else None
        self._held: dict[int, list[PlacedFile]] = {}
        for file in before[1].files if before else ():
            self._held.setdefault(file.bucket, []).append(file)
        self._fresh: set[str] = set()
        self.done: set[int] = set()
        # As a manifest it knows how the rows of files become whole.
        self._shape = Manifest(
            to.log_id, to.epoch, to.epoch_hash, target.key, target.schema, spec.partition_by,
            target.partitions, target.split, (),
        )  # fmt: skip

    def begin(self) -> None:
        """The folder, and the buckets that an earlier load of this step finished."""
        staged = None if self._before is not None else read_loading(self._staging)
        if staged is None or replace(staged.manifest, files=()) != self._shape:
            shutil.rmtree(self._staging, ignore_errors=True)
            make_folder(self._staging)
            return
        self.done = set(staged.done)
        for file in staged.manifest.files:
            self._held.setdefault(file.bucket, []).append(file)
            self._fresh.add(file.path)
        for path in self._staging.rglob("*.parquet"):
            if str(path.relative_to(self._staging)) not in self._fresh:
                path.unlink()

    def bucket_done(self, bucket: int) -> None:
        if self._before is not None:
            return
        self.done.add(bucket)
        with self._folder.translate_errors():
            for folder in {(self._staging / file.path).parent for file in self._held.get(bucket, ())}:
                sync_folder(folder)
            whole = [file for at in sorted(self.done) for file in self._held.get(at, ())]
            write_loading(
                self._staging, StagedLoad(replace(self._shape, files=tuple(whole)), sorted(self.done))
            )

    def write(self, bucket: int, upserts: pa.Table, deletes: pa.Table) -> None:
        rows = rows_for(self._target, upserts)
        gone = keys_for(self._target, deletes)
        with self._folder.translate_errors():
            if self._before is not None:
                named = {*key_texts(self._target, rows), *key_texts(self._target, gone)}
                hashes = [*upserts.column("_hash").to_pylist(), *deletes.column("_hash").to_pylist()]
                self._take_out(bucket, named, np.array(hashes, np.int64))
            for values, piece in self._pieces(rows):
                self._add(bucket, values, piece)

    def commit(self) -> None:
        files = tuple(file for held in self._held.values() for file in held)
        with self._folder.translate_errors():
            forget_loading(self._staging)
            for file in files:
                if file.path not in self._fresh:
                    assert self._before is not None
                    make_folder((self._staging / file.path).parent)
                    os.link(self._before / file.path, self._staging / file.path)
            with open(self._staging / MANIFEST, "w", encoding="utf-8", opener=opener) as out:
                out.write(replace(self._shape, files=files).to_text())
                out.flush()
                os.fsync(out.fileno())
            for path, _, _ in os.walk(self._staging):
                sync_folder(Path(path))
            step = self._generation / f"s{self._to.epoch:012d}-{secrets.token_hex(4)}"
            self._staging.rename(step)
            sync_folder(self._generation)
            self._folder.make_current(self._target.generation, step)
        self._folder.prune(self._target.generation, self._spec.keep_seconds)

    def _take_out(
        self, bucket: int, named: set[str], hashes: np.ndarray[tuple[int], np.dtype[np.int64]]
    ) -> None:
        """Rows with these keys leave the existing files, which are written again without them."""
        if not named:
            return
        for file in [each for each in self._held.get(bucket, ()) if each.path not in self._fresh]:
            rows = self._read(file)
            found = keys.hash_columns(
                [keys.column_texts(rows.column(name).combine_chunks()) for name in self._target.key]
            )
            concerned = np.isin(found.to_numpy(), hashes)
            if not concerned.any():
                continue
            texts = key_texts(self._target, rows)
            kept = np.array(
                [not hit or text not in named for hit, text in zip(concerned, texts, strict=True)]
            )
            if not kept.all():
                self._forget(file)
                self._put(bucket, file.values, rows.filter(pa.array(kept)))

    def _pieces(self, rows: pa.Table) -> Iterator[tuple[tuple[str | None, ...], pa.Table]]:
        """Rows by their values in the columns that name folders."""
        if not self._spec.partition_by:
            yield (), rows
            return
        texts = [to_texts(rows.column(name).combine_chunks()) for name in self._spec.partition_by]
        codes = [text.dictionary_encode(null_encoding="encode").indices.to_numpy() for text in texts]
        if not rows.num_rows:
            return
        _, which = np.unique(np.column_stack(codes), axis=0, return_inverse=True)
        order = np.argsort(which.ravel(), kind="stable")
        bounds = np.flatnonzero(np.diff(which.ravel()[order], prepend=-1, append=-1))
        for first, end in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
            at = int(order[first])
            yield tuple(text[at].as_py() for text in texts), rows.take(pa.array(order[first:end]))

    def _add(self, bucket: int, values: tuple[str | None, ...], rows: pa.Table) -> None:
        """Write new rows, together with files that they are not small beside."""
        if not rows.num_rows:
            return
        beside = [file for file in self._held.get(bucket, ()) if file.values == values]
        parts, count = [rows], rows.num_rows
        for file in sorted(beside, key=lambda file: file.rows):
            if file.rows > min(_GROWTH * count, _FILE_ROWS // 2):
                break
            parts.append(self._read(file))
            count += file.rows
            self._forget(file)
        self._put(bucket, values, pa.concat_tables(parts))

    def _put(self, bucket: int, values: tuple[str | None, ...], rows: pa.Table) -> None:
        names = zip(self._spec.partition_by, values, strict=True)
        folder = "".join(f"{folder_name(name, value)}/" for name, value in names)
        stored = rows.drop_columns(list(self._spec.partition_by)) if self._spec.partition_by else rows
        make_folder(self._staging / folder)
        for start in range(0, stored.num_rows, _FILE_ROWS):
            piece = stored.slice(start, _FILE_ROWS)
            out = pa.BufferOutputStream()
            pq.write_table(piece, out, compression="zstd", dictionary_pagesize_limit=_DICTIONARY_BYTES)
            data = out.getvalue()
            path = f"{folder}b{bucket:04d}-{secrets.token_hex(6)}.parquet"
            with open(self._staging / path, "wb", opener=opener) as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            checksum = xxhash.xxh3_128_hexdigest(data)
            placed = PlacedFile(path, bucket, piece.num_rows, data.size, checksum, values)
            self._held.setdefault(bucket, []).append(placed)
            self._fresh.add(path)

    def _forget(self, file: PlacedFile) -> None:
        self._held[file.bucket].remove(file)
        if file.path in self._fresh:
            (self._staging / file.path).unlink()

    def _read(self, file: PlacedFile) -> pa.Table:
        place = self._staging if file.path in self._fresh else self._before
        assert place is not None
        return self._shape.complete_rows(read_file(self._folder, place, file), file)


def partition_problems(spec: ParquetFolder, target: Target) -> list[str]:
    """Columns that folders cannot be named by."""
    problems = []
    for name in spec.partition_by:
        if name not in target.schema.names:
            problems.append(f"the folder is partitioned by {name!r}, which is not in the output")
        elif not _names_folders(target.schema.field(name).type):
            kind = target.schema.field(name).type
            problems.append(
                f"the folder is partitioned by {name!r} of type {kind}: only text, integers, booleans and dates can be"
            )
    if len(set(spec.partition_by)) < len(spec.partition_by):
        problems.append("the folder is partitioned by one column twice")
    if not set(target.schema.names) - set(spec.partition_by):
        problems.append("the folder is partitioned by all columns: the files would have none")
    return problems


def _names_folders(kind: pa.DataType) -> bool:
    return not is_list(kind) and bool(
        is_text(kind) or pa.types.is_signed_integer(kind) or pa.types.is_boolean(kind) or kind == pa.date32()
    )
