"""Looking rows up in a projection's Parquet files. Each look-up reads whole files: it is for tools, not for a service
under load. ``files`` is for programs that read the files themselves."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa

from tailrace.eventstore.model.keys import bucket_of, column_texts
from tailrace.eventstore.settings import SinkSettings
from tailrace.projections.sinks.contract import join_key
from tailrace.projections.sinks.keys import key_name
from tailrace.projections.sinks.parquet.sink import read_file
from tailrace.projections.sinks.parquet.snapshot import Manifest, SnapshotFolder, generation_at
from tailrace.projections.sinks.reader import (
    Hit,
    KeyReader,
    Row,
    SeenGeneration,
    cannot_search,
    nothing_live_error,
    python_rows,
)
from tailrace.projections.sinks.specs import ParquetFolder


class ParquetReader(KeyReader):
    """Follows promotions and refreshes: every call looks up the current step of the live generation."""

    def __init__(self, spec: ParquetFolder, settings: SinkSettings, store: str, projection: str) -> None:
        path = settings.path
        assert path is not None, "sink_settings has checked it"
        self._folder = SnapshotFolder(f"sink {spec.sink!r}", path, store, projection)
        self._projection = projection
        self._followed = SeenGeneration(projection)

    def files(self) -> list[Path]:
        """The live generation's files as they are now. They stay for ``keep_seconds`` after the next step."""
        place, manifest = self._live()
        return [self._folder.require_inside(place / file.path) for file in manifest.files]

    def many(self, keys: Sequence[object]) -> list[Row | None]:
        place, manifest = self._live()
        names = [key_name(key, manifest.key, manifest.schema, self._projection) for key in keys]
        buckets = {bucket_of(hashed, manifest.partitions, manifest.split) for hashed, _ in names}
        wanted = {text for _, text in names}
        found: dict[str, Row] = {}
        for file in manifest.files:
            if file.bucket in buckets:
                rows = manifest.complete_rows(read_file(self._folder, place, file), file)
                columns = [
                    column_texts(rows.column(name).combine_chunks()).to_pylist() for name in manifest.key
                ]
                texts = [join_key(cells) for cells in zip(*columns, strict=True)]
                at = [number for number, text in enumerate(texts) if text in wanted]
                taken = python_rows(rows.take(pa.array(at, pa.int64())))
                found |= {texts[number]: row for number, row in zip(at, taken, strict=True)}
        return [found.get(text) for _, text in names]

    def search(self, query: str, limit: int = 10) -> list[Hit]:
        raise cannot_search(self._projection, "add a projection into a search index")

    def close(self) -> None:
        """Nothing is held."""

    def _live(self) -> tuple[Path, Manifest]:
        seen = self._followed.seen
        live = self._folder.live_snapshot()
        if live is None:
            raise nothing_live_error(self._projection)
        place, _ = live
        self._followed.reads(generation_at(place), seen)
        return live
