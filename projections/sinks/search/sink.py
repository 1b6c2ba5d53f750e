"""Generations as tantivy indexes. A step is one commit of one index: rows, deletions and fence together.

tantivy's writer lock admits one process at a time; the kernel releases it when that process dies.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import pyarrow as pa
import pyarrow.compute as pc
import tantivy

from tailrace.eventstore import disclosure
from tailrace.eventstore.errors import DifferenceFound, IntegrityError, OperatorError, UsageError
from tailrace.eventstore.model.position import Fence
from tailrace.eventstore.settings import SinkSettings
from tailrace.eventstore.storage.private import close_files
from tailrace.projections.sinks.columns import is_list, is_text
from tailrace.projections.sinks.contract import (
    SinkSnapshot,
    Target,
    check_step,
    column_problems,
    key_column,
    key_texts,
    keys_for,
    raise_problems,
    require_same_log,
    rows_for,
)
from tailrace.projections.sinks.folder import folder_problems
from tailrace.projections.sinks.rows import dump, from_objects, pieces
from tailrace.projections.sinks.search.documents import documents, json_documents
from tailrace.projections.sinks.search.folder import (
    IS_FENCE,
    IS_ROW,
    KEY,
    KIND,
    ROW,
    TERM_BYTES,
    IndexMeta,
    SearchFolder,
    index_schema,
    read_fence,
    stored_row,
)
from tailrace.projections.sinks.specs import FieldKind, SearchIndex

_WRITER_BYTES = 128 << 20
_WRITER_THREADS = 2
_ROWS_AT_ONCE = 10_000


class SearchSink:
    """The atomic sink for ``SearchIndex``."""

    kind: Literal["atomic", "monotonic"] = "atomic"

    def __init__(self, spec: SearchIndex, settings: SinkSettings) -> None:
        self._spec = spec
        self._path = settings.path or Path()

    def _folder(self, store: str, projection: str) -> SearchFolder:
        return SearchFolder(f"sink {self._spec.sink!r}", self._path, store, projection)

    def _folder_of(self, target: Target) -> SearchFolder:
        return self._folder(target.store, target.projection)

    def check(self, target: Target) -> list[str]:
        problems = column_problems(target) + field_problems(self._spec, target)
        raise_problems(target, problems + folder_problems(self._path, target))
        return []

    def create(self, target: Target) -> None:
        raise_problems(target, column_problems(target) + field_problems(self._spec, target))
        folder = self._folder_of(target)
        require_same_log(target, folder.owner(target.generation))
        meta = IndexMeta(target.key, target.schema, dict(self._spec.fields))
        known = folder.meta(target.generation)
        if known is not None and known != meta:
            if self.fence(target) is not None:
                raise OperatorError(
                    f"{target} is in the sink with other columns",
                    hint="rebuild the projection as a new generation",
                )
            folder.remove(target.generation)
            known = None
        place = folder.create(target)
        with folder.translate_errors():
            folder.check_names(place)
            if not (place / "meta.json").exists():
                tantivy.Index(index_schema(self._spec.fields), str(place))
            folder.write_meta(target.generation, known or meta)
            close_files(place)

    def owner(self, target: Target) -> str | None:
        return self._folder_of(target).owner(target.generation)

    @contextmanager
    def load(self, target: Target, expected: Fence | None, to: Fence) -> Iterator[SearchLoad]:
        folder = self._folder_of(target)
        index = folder.open_index(target.generation)
        if index is None or folder.meta(target.generation) is None:
            raise UsageError(f"{target} does not exist in the sink", hint="create it first")
        with folder.translate_errors():
            writer = index.writer(_WRITER_BYTES, _WRITER_THREADS)
        load = SearchLoad(writer, folder, self._spec, target, first=expected is None, to=to)
        try:
            # Only now: between a look at the fence and the lock another process could have written.
            with folder.translate_errors():
                index.reload()
            check_step(target, read_fence(index, target), expected, to)
            yield load
        finally:
            with folder.translate_errors():
                if not load.committed:
                    writer.rollback()
                writer.wait_merging_threads()
                close_files(folder.generation(target.generation))

    def purge(self, target: Target) -> None:
        """Write all rows again: a segment keeps deleted ones until it is merged with others."""
        fence = self.fence(target)
        if fence is None:
            return
        folder = self._folder_of(target)
        none = target.schema.empty_table()
        with self.load(target, fence, fence) as load, self.snapshot(target) as found:
            with folder.translate_errors():
                load.begin_again()
            for batch in found.rows:  # of the commit before, whose files stay while they are read
                load.write(0, pa.Table.from_batches([batch]), none)
            load.commit()

    def fence(self, target: Target) -> Fence | None:
        folder = self._folder_of(target)
        index = folder.open_index(target.generation)
        with folder.translate_errors():
            return None if index is None else read_fence(index, target)

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
        """The rows and fence of one commit: a searcher keeps its files open, even those that later commits remove."""
        folder = self._folder_of(target)
        index = folder.open_index(target.generation)
        if index is None:
            yield SinkSnapshot(None, iter(()))
            return
        with folder.translate_errors():
            searcher = index.searcher()
            fence = read_fence(index, target, searcher)
        yield SinkSnapshot(fence, self._rows(folder, target, index, searcher))

    def _rows(
        self, folder: SearchFolder, target: Target, index: tantivy.Index, searcher: tantivy.Searcher
    ) -> Iterator[pa.RecordBatch]:
        folder.check_files(target.generation)
        meta = folder.meta(target.generation)
        if meta is None or (meta.key, meta.schema) != (target.key, target.schema):
            raise IntegrityError(
                f"{target}: what readers need to know of it, tailrace.json, is gone or of another generation",
                hint=f"tailrace rebuild {target.projection}",
            )
        with folder.translate_errors():
            rows = tantivy.Query.term_query(index.schema, KIND, IS_ROW, "basic")
            hits = searcher.search(rows, limit=max(1, searcher.num_docs), count=False).hits
        addresses = [address for _, address in hits]
        for start in range(0, len(addresses), _ROWS_AT_ONCE):
            yield self._read(folder, searcher, addresses[start : start + _ROWS_AT_ONCE], target)

    def _read(
        self,
        folder: SearchFolder,
        searcher: tantivy.Searcher,
        addresses: Sequence[tantivy.DocAddress],
        target: Target,
    ) -> pa.RecordBatch:
        try:
            with folder.translate_errors():
                return from_objects([stored_row(searcher, address) for address in addresses], target.schema)
        except (IntegrityError, pa.ArrowException, TypeError) as error:
            raise DifferenceFound(
                f"{target}: the index has documents that differ from what Tailrace wrote:"
                f" {disclosure.exception_text(error)}",
                hint=f"find out who else writes to the index; tailrace rebuild {target.projection} makes it right",
            ) from error


class SearchLoad:
    """One step in one open commit of the index's writer."""

    def __init__(
        self,
        writer: tantivy.IndexWriter,
        folder: SearchFolder,
        spec: SearchIndex,
        target: Target,
        *,
        first: bool,
        to: Fence,
    ) -> None:
        self.committed = False
        self._first = first
        self._writer, self._folder, self._spec, self._target, self._to = writer, folder, spec, target, to

    def begin_again(self) -> None:
        """Delete everything."""
        self._writer.delete_all_documents()
        self._first = True

    def write(self, bucket: int, upserts: pa.Table, deletes: pa.Table) -> None:
        rows = rows_for(self._target, upserts)
        gone = keys_for(self._target, deletes)
        with self._folder.translate_errors():
            for piece in pieces(rows):
                self._replace(piece)
            for text in key_texts(self._target, gone):
                self._writer.delete_documents_by_term(KEY, text)

    def commit(self) -> None:
        fence = tantivy.Document()
        fence.add_text(KIND, IS_FENCE)
        values = {"log_id": self._to.log_id, "epoch": self._to.epoch, "epoch_hash": self._to.epoch_hash}
        fence.add_bytes(ROW, dump(values).encode())
        with self._folder.translate_errors():
            self._writer.delete_documents_by_term(KIND, IS_FENCE)
            self._writer.add_document(fence)
            self._writer.commit()
        self.committed = True

    def _replace(self, rows: pa.Table) -> None:
        keys = key_column(self._target, rows)
        self._check_lengths(keys, rows)
        if not self._first:
            for key in keys.to_pylist():
                self._writer.delete_documents_by_term(KEY, key)
        texts = json_documents(self._spec.fields, keys, rows)
        add = self._writer.add_json
        for text in texts.drop_null().to_pylist():
            add(text)
        if texts.null_count:
            others = texts.is_null()
            for document in documents(self._spec.fields, keys.filter(others), rows.filter(others)):
                self._writer.add_document(document)

    def _check_lengths(self, keys: pa.StringArray, rows: pa.Table) -> None:
        """Raises UsageError for a text that would not be found."""
        of = f"projection {self._target.projection!r}"
        if (longest := _longest(keys)) > TERM_BYTES:
            raise UsageError(
                f"{of}: a key of {longest} bytes", hint=f"a search index takes keys up to {TERM_BYTES} bytes"
            )
        for name, kind in self._spec.fields.items():
            if kind == "string" and (longest := _longest(rows.column(name))) > TERM_BYTES:
                raise UsageError(
                    f"{of}: column {name!r} has a value of {longest} bytes, and is searched as 'string'",
                    hint=f"such a field takes values up to {TERM_BYTES} bytes: shorten it, or declare it 'text'",
                )


def _longest(texts: pa.StringArray | pa.ChunkedArray) -> int:
    """Bytes of the longest text, those in lists too."""
    return pc.max(pc.binary_length(pc.list_flatten(texts) if is_list(texts.type) else texts)).as_py() or 0


def field_problems(spec: SearchIndex, target: Target) -> list[str]:
    """Searchable fields that are missing in the output, or of a type that their kind cannot take."""
    problems = [] if spec.fields else ["no column is searchable: name some in SearchIndex(fields=…)"]
    for name, kind in spec.fields.items():
        if name.startswith("_"):
            problems.append(f"the name {name!r} of a searchable field begins with an underscore")
        elif name not in target.schema.names:
            problems.append(f"the searchable field {name!r} is not in the output")
        elif not _takes(kind, target.schema.field(name).type):
            problems.append(
                f"field {name!r} is declared {kind}, its column is {target.schema.field(name).type}"
            )
    return problems


def _takes(kind: FieldKind, column: pa.DataType) -> bool:
    element = column.value_type if is_list(column) else column
    integer, types = pa.types.is_signed_integer(element), pa.types
    match kind:
        case "text" | "string":
            return is_text(element)
        case "i64":
            return bool(integer)
        case "f64":
            return bool(integer or types.is_floating(element) or types.is_decimal(element))
        case "bool":
            return bool(types.is_boolean(element))
        case "date":
            return bool(types.is_date(element) or types.is_timestamp(element))
