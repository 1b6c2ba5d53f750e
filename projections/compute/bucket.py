"""One bucket of a result: compared with the result before, and written as files.

This is the work of one task. It needs neither Spark nor the catalog, and returns file names and counts.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from tailrace.eventstore import failpoints
from tailrace.eventstore.errors import MissingFile, TailraceError
from tailrace.eventstore.metadata.attempts import is_by
from tailrace.eventstore.model import keys
from tailrace.eventstore.storage import Storage
from tailrace.projections.compute.sampling import KeySelection
from tailrace.projections.generations.difference import (
    HASH,
    Row,
    TableDifference,
    difference,
    null_keys,
    repeated_keys,
    sort_rows,
    versions,
)
from tailrace.projections.generations.key_subset import KeySubset
from tailrace.projections.generations.step_files import (
    NO_FILES,
    BucketFiles,
    DerivedFile,
    fold_overlays,
    read_results,
    run_schema,
    write_delta,
    write_run,
    write_small_deltas,
)

if TYPE_CHECKING:
    from tailrace.projections.generations.generation import Generation

BUCKET = "_bucket"
RECEIPT = ".done.json"
"""Suffix of a receipt's name."""

SAMPLES = 5
"""Samples of each kind that a bucket's outcome shows."""

_MOST_SHOWN = 200  # characters or bytes of a value


@dataclass(frozen=True, slots=True)
class Placement:
    """How rows are identified and spread over buckets. With a ``choice`` of keys, rows of other keys are left out, as
    are those of the buckets in ``without``."""

    schema: pa.Schema
    key: tuple[str, ...]
    partitions: int
    split: int
    choice: KeySelection | None = None
    without: frozenset[int] = frozenset()

    @property
    def buckets(self) -> range:
        return range(self.partitions * self.split)

    def add_hashes(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Spark task: add ``_hash`` and ``_bucket`` to each row."""
        for every in batches:
            batch, hashes = self.select(every)
            buckets = self.buckets_of(hashes)
            batch = batch.append_column(HASH, hashes).append_column(BUCKET, pa.array(buckets))
            if self.without:
                batch = batch.filter(pa.array(~np.isin(buckets, sorted(self.without))))
            yield batch

    def select(self, batch: pa.RecordBatch) -> tuple[pa.RecordBatch, pa.Int64Array]:
        """The rows that belong to the choice, and the hashes of their keys."""
        hashes = self.hashes(batch)
        if self.choice is None:
            return batch, hashes
        chosen = pa.array(self.choice.mask(hashes.to_numpy()))
        return batch.filter(chosen), hashes.filter(chosen)

    def hashes(self, batch: pa.RecordBatch) -> pa.Int64Array:
        columns = (batch.column(name).cast(self.schema.field(name).type) for name in self.key)
        return keys.hash_columns([keys.column_texts(column) for column in columns])

    def buckets_of(self, hashes: pa.Int64Array) -> np.ndarray[Any, np.dtype[np.int32]]:
        """The bucket of each row, by the hash of its key."""
        return keys.buckets_of(hashes, self.partitions, self.split)

    def rows(self, group: pa.Table) -> pa.Table:
        """A bucket's rows in the types of files, ordered."""
        return sort_rows(group.select([HASH, *self.schema.names]).cast(run_schema(self.schema)), self.key)


def placement_of(generation: Generation) -> Placement:
    return Placement(generation.schema, generation.key, generation.partitions, generation.split)


@dataclass(frozen=True, slots=True)
class RowSample:
    """A row that an outcome shows, and the ``kind`` it is shown for. ``old`` and ``new`` are its values besides the key
    before and now (None: no row); where both exist, those that differ. All as JSON, with long texts cut."""

    kind: str
    key: str
    old: str | None = None
    new: str | None = None


@dataclass(frozen=True, slots=True)
class BucketOutcome:
    """The answer of one bucket's task. ``only_new``, ``only_old`` and ``different`` count rows that differ from the
    result before; ``samples`` show some of each kind. ``files`` hold the bucket now (None: those of before). With
    ``nulls`` or ``repeats`` in keys nothing was written."""

    bucket: int
    rows: int = 0
    nulls: int = 0
    repeats: int = 0
    only_new: int = 0
    only_old: int = 0
    different: int = 0
    samples: tuple[RowSample, ...] = ()
    files: BucketFiles | None = None
    delta: DerivedFile | None = None

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> BucketOutcome:
        data = json.loads(text)
        data["delta"] = DerivedFile(**data["delta"]) if data["delta"] else None
        data["files"] = BucketFiles.from_data(data["files"]) if data["files"] else None
        data["samples"] = tuple(RowSample(**sample) for sample in data["samples"])
        return cls(**data)


@dataclass(frozen=True, slots=True)
class BucketReceipt:
    """A bucket that an attempt at a build finished: ``basis`` says what it was computed of, ``file`` is its run,
    ``path`` is that of the receipt."""

    path: str
    basis: str
    outcome: BucketOutcome
    file: DerivedFile

    @property
    def paths(self) -> tuple[str, str]:
        return self.path, self.file.path


def receipts(storage: Storage, paths: Collection[str]) -> Iterator[BucketReceipt]:
    """The receipts among some files. One that cannot be read is left out; its bucket is computed again."""
    for path in sorted(path for path in paths if path.endswith(RECEIPT)):
        with suppress(MissingFile, ValueError, KeyError, TypeError):
            data = json.loads(bytes(storage.open(path)))
            outcome = BucketOutcome.from_json(data["outcome"])
            if outcome.files is not None and outcome.files.run is not None:
                yield BucketReceipt(path, str(data["basis"]), outcome, outcome.files.run)


@dataclass(frozen=True, slots=True)
class BucketTask:
    """Compares one bucket with the result before (``previous``, by bucket) and, with a ``folder``, writes its files.
    ``attempt`` is part of their names. ``afresh``: no overlay stays, so that no file holds an earlier value. With a
    ``basis`` each finished bucket gets a receipt for an attempt that takes over
    (``tailrace.projections.refresh.resume``). Pickles into Spark tasks; needs no catalog."""

    storage: Storage
    placement: Placement
    previous: Mapping[int, BucketFiles]
    tolerance: Mapping[str, float]
    folder: str | None
    attempt: str
    afresh: bool = False
    basis: str | None = None

    def compare_group(self, group: pa.Table) -> pa.Table:
        """Spark task: all rows of one bucket."""
        bucket = group[BUCKET][0].as_py()
        outcome = self.compare(bucket, self.placement.rows(group))
        return pa.table({"bucket": pa.array([bucket], pa.int32()), "outcome": [outcome.to_json()]})

    def discard(self, *, but_finished: bool = False) -> None:
        """Remove the files of this attempt: no step will name them, and a full disk needs the room.
        ``but_finished``: buckets with a receipt stay, for an attempt that takes over. What tasks write afterwards is
        left to ``gc``."""
        with suppress(TailraceError):
            mine = self._attempt_files()
            found = receipts(self.storage, mine) if but_finished else ()
            kept = {path for receipt in found for path in receipt.paths}
            for path in mine:
                if path not in kept:
                    self.storage.delete(path)

    def forget_receipts(self) -> None:
        """Remove the receipts, once a step names the files. What stays is left to ``gc``."""
        with suppress(TailraceError):
            for path in self._attempt_files() if self.basis is not None else ():
                if path.endswith(RECEIPT):
                    self.storage.delete(path)

    def _attempt_files(self) -> list[str]:
        """The files of this attempt."""
        if self.folder is None:
            return []
        return [path for path in self.storage.list(self.folder) if is_by(path, self.attempt)]

    def compare(self, bucket: int, rows: pa.Table) -> BucketOutcome:
        """Compare one bucket's ordered rows with the result before, and write what differs."""
        key, schema, choice = self.placement.key, self.placement.schema, self.placement.choice
        bad = bad_keys(bucket, rows, key)
        if bad is not None:
            return bad
        before = self.previous.get(bucket, NO_FILES)
        some = None if choice is None else KeySubset(lambda table: choice.mask(table[HASH].to_numpy()))
        old = read_results(self.storage, [before], schema, key, some)
        found = difference(old, rows, key, self.tolerance)
        return self._outcome(bucket, rows.num_rows, found, old, whole=choice is None)

    def compare_keys(self, rows: pa.Table, some: KeySubset, buckets: Sequence[int]) -> list[BucketOutcome]:
        """Compare ordered rows, which are those of some keys, with the rows of these keys in the result before. Of
        several ``buckets`` at once, which are all that may have any."""
        key, schema = self.placement.key, self.placement.schema
        place = self.placement.buckets_of(rows[HASH].combine_chunks())
        if len(null_keys(rows, key)) or len(repeated_keys(rows, key)):
            parts = [(bucket, rows.filter(pa.array(place == bucket))) for bucket in buckets]
            return [bad for bucket, part in parts if (bad := bad_keys(bucket, part, key)) is not None]
        files = [self.previous.get(bucket, NO_FILES) for bucket in buckets]
        old = read_results(self.storage, files, schema, key, some)
        found = difference(old, rows, key, self.tolerance)
        upserts, deletes = (
            self.placement.buckets_of(each[HASH].combine_chunks()) for each in (found.upserts, found.deletes)
        )
        parts_of = {bucket: found.part(upserts == bucket, deletes == bucket) for bucket in buckets}
        deltas = self._write_together(parts_of)
        return [
            self._outcome(
                bucket, int((place == bucket).sum()), part, old, whole=False, delta=deltas.get(bucket)
            )
            for bucket, part in parts_of.items()
        ]

    def _write_together(self, parts: Mapping[int, TableDifference]) -> dict[int, DerivedFile]:
        """The deltas of buckets in one file, where they are small."""
        changed = {
            bucket: part
            for bucket, part in parts.items()
            if not part.is_empty and self.previous.get(bucket, NO_FILES) != NO_FILES
        }
        if self.folder is None or len(changed) < 2:
            return {}
        path = f"{self.stem(min(changed))}.deltas.arrow"
        return write_small_deltas(self.storage, path, changed, self.placement.key)

    def _outcome(
        self,
        bucket: int,
        rows: int,
        found: TableDifference,
        old: pa.Table,
        *,
        whole: bool,
        delta: DerivedFile | None = None,
    ) -> BucketOutcome:
        """What was ``found``, in files where it is to be written, or in ``delta`` already. ``whole``: its result is all
        of the bucket."""
        before = self.previous.get(bucket, NO_FILES)
        if found.is_empty and not (self.afresh and before.overlays):
            return BucketOutcome(bucket, rows)
        outcome = BucketOutcome(
            bucket,
            rows,
            only_new=found.added.num_rows,
            only_old=found.deletes.num_rows,
            different=found.changed.num_rows,
        )
        if self.folder is None:
            return replace(outcome, samples=_row_samples(found, old, self.placement.key))
        files, delta = self._write(bucket, before, found, found.result if whole else None, delta)
        outcome = replace(outcome, files=files, delta=delta)
        self.receipt(outcome)
        failpoints.hit("derived_written")
        return outcome

    def receipt(self, outcome: BucketOutcome) -> None:
        """Write down that a bucket of a build is finished: its files are whole."""
        if self.basis is not None:
            data = json.dumps({"basis": self.basis, "outcome": outcome.to_json()}).encode()
            self.storage.write(f"{self.stem(outcome.bucket)}{RECEIPT}", data)

    def stem(self, bucket: int) -> str:
        """The beginning of a file's name. It is different each time: Spark may run a task twice, and files are never
        overwritten."""
        return f"{self.folder}/{bucket:04d}-{self.attempt}-{secrets.token_hex(4)}"

    def _write(
        self,
        bucket: int,
        before: BucketFiles,
        difference: TableDifference,
        result: pa.Table | None,
        delta: DerivedFile | None,
    ) -> tuple[BucketFiles, DerivedFile | None]:
        """The bucket's files after the step, and its delta, where it is not written yet. In a first build the run is
        the delta too, so that rows are written once. ``result``: the bucket's rows, where they are known."""
        key, schema = self.placement.key, self.placement.schema
        stem = self.stem(bucket)
        if before == NO_FILES:
            run = write_run(self.storage, f"{stem}.run.arrow", bucket, difference.result)
            return BucketFiles(run), run
        files = before
        if not difference.is_empty:
            if delta is None:
                delta = write_delta(self.storage, f"{stem}.delta.arrow", bucket, difference, key)
            files = BucketFiles(before.run, (*before.overlays, delta))
        if self.afresh and result is not None:
            return BucketFiles(write_run(self.storage, f"{stem}.run.arrow", bucket, result)), delta
        return fold_overlays(self.storage, files, self.stem(bucket), schema, key, result), delta


def _key_samples(kind: str, rows: pa.Table, key: Sequence[str], at: Any) -> tuple[RowSample, ...]:
    chosen = rows.select(list(key)).take(pa.array(at[:SAMPLES]))
    return tuple(RowSample(kind, _as_json(row)) for row in chosen.to_pylist())


def _row_samples(difference: TableDifference, old: pa.Table, key: Sequence[str]) -> tuple[RowSample, ...]:
    samples = []
    for before, after in versions(difference, old, key, SAMPLES):
        kind = "only_new" if before is None else "only_old" if after is None else "different"
        row = before or after or {}
        named = _as_json({name: row[name] for name in key})
        shown = [
            name
            for name in row
            if name not in key and (not before or not after or before[name] != after[name])
        ]
        samples.append(RowSample(kind, named, _version(before, shown), _version(after, shown)))
    return tuple(samples)


def _version(row: Row | None, shown: Sequence[str]) -> str | None:
    return None if row is None else _as_json({name: _cut(row[name]) for name in shown})


def _cut(value: object) -> object:
    if isinstance(value, str | bytes) and len(value) > _MOST_SHOWN:
        return f"{value[:_MOST_SHOWN]!s}… ({len(value):,} long)"
    return value


def _as_json(row: Row) -> str:
    return json.dumps(row, default=str, ensure_ascii=False)


def bad_keys(bucket: int, rows: pa.Table, key: Sequence[str]) -> BucketOutcome | None:
    """The outcome of a bucket whose ordered rows have NULL in a key, or a key twice; None when neither is so."""
    nulls, repeats = null_keys(rows, key), repeated_keys(rows, key)
    if not len(nulls) and not len(repeats):
        return None
    samples = _key_samples("null", rows, key, nulls) + _key_samples("repeated", rows, key, repeats)
    return BucketOutcome(bucket, rows.num_rows, nulls=len(nulls), repeats=len(repeats), samples=samples)
