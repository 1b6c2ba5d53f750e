"""Searching a projection's tantivy index, and looking rows up by key."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence

import tantivy

from tailrace.eventstore.errors import IntegrityError, UsageError
from tailrace.eventstore.settings import SinkSettings
from tailrace.projections.sinks.keys import key_name
from tailrace.projections.sinks.reader import (
    Hit,
    KeyReader,
    Row,
    SeenGeneration,
    nothing_live_error,
    python_rows,
)
from tailrace.projections.sinks.rows import from_objects
from tailrace.projections.sinks.search.folder import IS_FENCE, KEY, KIND, IndexMeta, SearchFolder, stored_row
from tailrace.projections.sinks.search.query import Queries
from tailrace.projections.sinks.specs import SearchIndex

Stamp = tuple[int, int]  # inode and time of change of a file that is only ever replaced


class SearchReader(KeyReader):
    """Searches the live generation and looks rows up by key. The index stays open until a commit or a promotion
    replaces it."""

    def __init__(self, spec: SearchIndex, settings: SinkSettings, store: str, projection: str) -> None:
        path = settings.path
        assert path is not None, "sink_settings has checked it"
        self._folder = SearchFolder(f"sink {spec.sink!r}", path, store, projection)
        self._projection = projection
        self._followed = SeenGeneration(projection)
        self._lock = threading.Lock()
        self._opened: tuple[Stamp, Stamp, tantivy.Index, IndexMeta] | None = None

    def many(self, keys: Sequence[object]) -> list[Row | None]:
        index, meta = self._live()
        with self._folder.translate_errors():
            searcher = index.searcher()
            found: list[Row | None] = []
            for key in keys:
                _, text = key_name(key, meta.key, meta.schema, self._projection)
                query = tantivy.Query.term_query(index.schema, KEY, text, "basic")
                hits = searcher.search(query, limit=1, count=False).hits
                found += self._rows(searcher, hits, meta) or [None]
            return found

    def search(self, query: str, limit: int = 10) -> list[Hit]:
        """tantivy's query language: words, "phrases", field:word, AND, OR, NOT, ranges field:[a TO b]. Dates are RFC
        3339, day:"2024-02-29T00:00:00Z". NOT takes away from the rest of the query: "* NOT chair" is all rows without
        it.

        Words without a field are searched in all ``text`` and ``string`` fields.
        """
        if limit < 1:
            raise UsageError(f"a limit of {limit}", hint="give 1 or more")
        index, meta = self._live()
        queries = Queries(meta)
        parsed = queries.parse(query)
        no_fence = tantivy.Query.term_query(index.schema, KIND, IS_FENCE, "basic")
        with self._folder.translate_errors():
            searcher = index.searcher()
            most = min(limit, max(1, searcher.num_docs))  # tantivy makes room for that many hits beforehand
            try:
                hits = searcher.search(parsed.and_must_not_match(no_fence), limit=most, count=False).hits
            except ValueError as error:
                if "is not a fast field" not in str(error):
                    raise
                raise queries.unindexed_field_error(query) from None
            rows = self._rows(searcher, hits, meta)
            texts = [name for name, kind in meta.fields.items() if kind == "text"]
            marks = {
                name: tantivy.SnippetGenerator.create(searcher, parsed, index.schema, name) for name in texts
            }
            return [
                Hit(float(score), row, _highlights(row, marks))
                for (score, _), row in zip(hits, rows, strict=True)
            ]

    def close(self) -> None:
        with self._lock:
            self._opened = None

    def _rows(
        self, searcher: tantivy.Searcher, hits: Sequence[tuple[object, tantivy.DocAddress]], meta: IndexMeta
    ) -> list[Row]:
        objects = [stored_row(searcher, address) for _, address in hits]
        return python_rows(from_objects(objects, meta.schema))

    def _live(self) -> tuple[tantivy.Index, IndexMeta]:
        with self._lock, self._folder.translate_errors():
            for _ in range(3):  # the generation may change between a look at CURRENT and one at its folder
                pointer = self._stamp_of_current()
                generation = self._folder.live()
                if pointer is None or generation is None:
                    break
                try:
                    file = (self._folder.generation(generation) / "meta.json").stat()
                except FileNotFoundError:
                    continue
                commit = (file.st_ino, file.st_mtime_ns)
                if self._opened is not None and self._opened[:2] == (pointer, commit):
                    return self._opened[2:]
                index, meta = self._folder.open_index(generation), self._folder.meta(generation)
                if index is not None and meta is not None:
                    self._opened = (pointer, commit, index, meta)
                    self._followed.reads(generation, self._followed.seen)
                    return index, meta
            else:
                raise IntegrityError(
                    f"{self._folder.text}: {self._folder.current} names generation {generation}, of which files are "
                    f"missing in {self._folder.path / f'g{generation}'}",
                    hint="put them back, or rebuild the projection as a new generation",
                )
            raise nothing_live_error(self._projection)

    def _stamp_of_current(self) -> Stamp | None:
        try:
            file = self._folder.current.stat()
        except FileNotFoundError:
            return None
        return file.st_ino, file.st_mtime_ns


def _highlights(row: Row, marks: Mapping[str, tantivy.SnippetGenerator]) -> dict[str, str]:
    found = {}
    for name, generator in marks.items():
        text = tantivy.Document()
        cells = row[name]
        for cell in cells if isinstance(cells, list) else [cells]:
            text.add_text(name, cell or "")
        snippet = generator.snippet_from_doc(text)
        if snippet.highlighted():
            found[name] = snippet.to_html()
    return found
