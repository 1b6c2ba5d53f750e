"""Rows of large tables at one position, of which a few are found by their keys without reading the others.

Refreshes of sums look up what the rows that changed were. In the log these few rows are among millions that are decoded
together. Here all rows of a table lie in files of this process, in the order of their keys' hashes, and are mapped into
memory. What changed since lies in layers over them. The files are private, and go with the process at the latest.
"""

from __future__ import annotations

import logging
import shutil
import tempfile
import threading
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import pyarrow as pa

from tailrace.eventstore.disclosure import describe_error
from tailrace.eventstore.model.position import Cut
from tailrace.projections.generations.difference import HASH
from tailrace.projections.generations.key_set import KeySet, hashes_of
from tailrace.projections.generations.key_subset import KeySubset
from tailrace.projections.round.files import private_folder

_log = logging.getLogger("tailrace.projections")
LAYER_KEYS = 50_000
"""Keys of a layer: with more, the next changes begin another."""


@dataclass(frozen=True, slots=True)
class ChangedRows:
    """The keys that changed between two positions, and their rows at the later one."""

    keys: KeySet
    rows: pa.Table


Since = Callable[[Cut], ChangedRows | None]
"""What changed since an earlier position; None where that is not known."""


@dataclass(frozen=True, slots=True)
class _Layer:
    """``rows``, by the hashes of their keys, are all of these ``keys``."""

    keys: KeySet
    rows: pa.RecordBatch


class _HeldRows:
    """All rows of a table at a position: those of ``files``, but for the keys in ``layers``, the latest of which
    counts."""

    def __init__(self, cut: Cut, key: Sequence[str], folder: Path, files: Sequence[pa.RecordBatch]) -> None:
        self.cut, self.folder = cut, folder
        self._key, self._files = key, files
        self._layers: list[_Layer] = []

    @property
    def layers_bytes(self) -> int:
        return sum(layer.keys.nbytes + layer.rows.nbytes for layer in self._layers)

    def add(self, cut: Cut, changed: ChangedRows) -> None:
        """Go on to a later position."""
        keys, rows = changed.keys, by_hash(changed.rows, self._key)
        last = self._layers[-1] if self._layers else None
        if last is not None and len(last.keys) + len(keys) <= LAYER_KEYS:
            self._layers.pop()
            kept = last.rows.filter(pa.array(~self._has(keys, last.rows)))
            rows = pa.Table.from_batches([kept, rows]).sort_by(HASH).combine_chunks().to_batches()[0]
            keys = KeySet.union([last.keys, keys])
        self._layers.append(_Layer(keys, rows))
        self.cut = cut

    def rows_of(self, keys: KeySet) -> pa.Table:
        found: list[pa.RecordBatch] = []
        for layer in reversed(self._layers):
            here = layer.keys.matches(keys.table.columns)
            found += self._find(keys.take(np.flatnonzero(here).tolist()), [layer.rows])
            keys = keys.take(np.flatnonzero(~here).tolist())
        found += self._find(keys, self._files)
        return pa.Table.from_batches(found, self._files[0].schema).drop_columns([HASH])

    def _find(self, keys: KeySet, batches: Sequence[pa.RecordBatch]) -> list[pa.RecordBatch]:
        if not len(keys):
            return []
        some = KeySubset.of(keys, self._key)
        near = (rows.take(pa.array(some.places(rows.column(0).to_numpy()))) for rows in batches)
        return [rows.filter(pa.array(self._has(keys, rows))) for rows in near if rows.num_rows]

    def _has(self, keys: KeySet, rows: pa.RecordBatch) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        return keys.matches([rows.column(name) for name in self._key])


class KeptRows:
    """Tables by what they hold: files of ``most_bytes`` each, and layers of ``memory_bytes``, at most. A thread of its
    own reads the rows while others work (``at_work``): ten million take 20 s. One thread at a time asks."""

    def __init__(self, most_bytes: int, memory_bytes: int) -> None:
        self._most_bytes, self._memory_bytes = most_bytes, memory_bytes
        self._held: dict[Hashable, _HeldRows] = {}
        self._begun: dict[Hashable, Future[_HeldRows | None]] = {}
        self._refused: set[Hashable] = set()
        self._pool: ThreadPoolExecutor | None = None
        self._ended = threading.Event()

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """Inside, rows are kept. A process that ends before long does better to look them up."""
        self._ended.clear()
        with ThreadPoolExecutor(1, "tailrace-rows") as pool:
            self._pool = pool
            try:
                yield
            finally:
                self._pool = None
                self._ended.set()

    def find(self, what: Hashable, cut: Cut, keys: KeySet, since: Since) -> pa.Table | None:
        """The rows of some keys at a position, in the columns that were kept; None where they are not known."""
        self._take_finished(what)
        held = self._held.get(what)
        if held is None or cut.epoch < held.cut.epoch:
            return None
        if held.cut != cut:
            changed = since(held.cut)
            if changed is not None:
                held.add(cut, changed)
            if changed is None or held.layers_bytes > self._memory_bytes:
                self.forget(what)
                return None
        return held.rows_of(keys)

    def may_keep(self, what: Hashable) -> bool:
        known = what in self._held or what in self._begun or what in self._refused
        return self._pool is not None and not known

    def keep(self, what: Hashable, cut: Cut, key: Sequence[str], tables: Iterable[pa.Table]) -> None:
        """Begin to write all rows of a table at a position. Nobody needs them: where they are too large, cannot be read
        or written, they are not kept by this process."""
        assert self._pool is not None, "may_keep"
        self._begun[what] = self._pool.submit(self._written, cut, key, tables)

    def finish(self) -> None:
        """Wait for all that was begun."""
        for what in list(self._begun):
            self._begun[what].exception()
            self._take_finished(what)

    def _take_finished(self, what: Hashable) -> None:
        begun = self._begun.get(what)
        if begun is None or not begun.done():
            return
        del self._begun[what]
        held = None if begun.exception() is not None else begun.result()
        if held is not None:
            self._held[what] = held
            return
        self._refused.add(what)
        error = begun.exception()
        if error is not None:
            _log.warning("rows of a table are not kept: %s", describe_error(error))

    def _written(self, cut: Cut, key: Sequence[str], tables: Iterable[pa.Table]) -> _HeldRows | None:
        """None where they are too large, or the end came before."""
        folder = Path(tempfile.mkdtemp(dir=self._root))
        files: list[pa.RecordBatch] = []
        try:
            size = 0
            for rows in tables:
                size += rows.nbytes
                if size > self._most_bytes or self._ended.is_set():
                    files = []
                    break
                if rows.num_rows:
                    files.append(_mapped(by_hash(rows, key), folder / f"{len(files)}.arrow"))
            return _HeldRows(cut, key, folder, files) if files else None
        finally:
            if not files:
                shutil.rmtree(folder, ignore_errors=True)

    def forget(self, what: Hashable) -> None:
        begun = self._begun.pop(what, None)
        if begun is not None and not begun.cancel():
            begun.add_done_callback(_remove)
        held = self._held.pop(what, None)
        if held is not None:
            shutil.rmtree(held.folder, ignore_errors=True)

    def forget_all(self) -> None:
        for what in [*self._held, *self._begun]:
            self.forget(what)

    @cached_property
    def _root(self) -> Path:
        return private_folder(self, "tailrace-rows-")


def _remove(written: Future[_HeldRows | None]) -> None:
    held = None if written.cancelled() or written.exception() is not None else written.result()
    if held is not None:
        shutil.rmtree(held.folder, ignore_errors=True)


def by_hash(rows: pa.Table, key: Sequence[str]) -> pa.RecordBatch:
    """Rows in the order of their keys' hashes, which stand first."""
    hashes = pa.array(hashes_of([rows[name] for name in key]))
    made = rows.add_column(0, pa.field(HASH, pa.int64()), hashes).sort_by(HASH).combine_chunks()
    return made.to_batches()[0] if made.num_rows else pa.RecordBatch.from_pylist([], made.schema)


def _mapped(rows: pa.RecordBatch, path: Path) -> pa.RecordBatch:
    """The same rows in a file."""
    with pa.ipc.new_file(path, rows.schema) as writer:
        writer.write_batch(rows)
    return pa.ipc.open_file(pa.memory_map(str(path))).get_batch(0)
