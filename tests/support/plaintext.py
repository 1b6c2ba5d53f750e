"""Looks for a text in all that a store holds: file by file, and inside what is compressed there."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from tailrace.eventstore.store import Store


def places_of(store: Store, root: Path, *texts: str) -> list[str]:
    """Where a store (closed or not) holds one of the texts."""
    wanted = [text.encode() for text in texts]
    return sorted({where for where, data in _contents(store, root) if any(text in data for text in wanted)})


def _contents(store: Store, root: Path) -> Iterator[tuple[str, bytes]]:
    for path in (path for path in root.rglob("*") if path.is_file()):
        yield path.name, path.read_bytes()
        if path.suffix == ".parquet":
            for column in pq.read_table(path).columns:
                for chunk in column.chunks:
                    yield from ((f"inside {path.name}", data) for data in _buffers(chunk))
    for info in store.topics():
        for batch in store.read(info.id):
            for column in batch.columns:
                yield from ((f"rows of {info.id}", data) for data in _buffers(column))


def _buffers(array: pa.Array) -> Iterator[bytes]:
    """All memory of an array, also below nulls."""
    return (buffer.to_pybytes() for buffer in array.buffers() if buffer is not None)


def nameless_files(folder: Path) -> list[bytes]:
    """What this process holds open in a folder without a name there."""
    found = []
    for link in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # the one that lists them
            if str(link.readlink()).startswith(f"{folder}/") and not link.resolve().exists():
                found.append(link.read_bytes())
    return found
