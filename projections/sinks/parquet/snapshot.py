"""A generation as folders of Parquet files, one for each step, and the manifests that name the files.

``<path>/<store>/<projection>/g42/`` holds ``s000000000123-…/``: files in Hive-style folders (``day=2026-11-20/``) and
``_manifest.json``. Files that a step did not change are hard links to those of the step before. ``g42/current`` is a
symbolic link to the latest of these folders, and ``live``, beside the generations, one to the ``current`` of the live
generation. Each is replaced by a single rename, so ``live/**/*.parquet`` is always the result at one position.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import shutil
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self
from urllib.parse import quote

import pyarrow as pa

from tailrace.eventstore.errors import IntegrityError, UsageError
from tailrace.eventstore.model.position import Fence
from tailrace.projections.sinks.columns import from_texts
from tailrace.projections.sinks.contract import Target
from tailrace.projections.sinks.folder import GenerationsFolder, point, replace_file
from tailrace.projections.sinks.rows import schema_from_text, schema_to_text

MANIFEST = "_manifest.json"  # tools pass over names that begin so
STAGING = ".step"
_CURRENT, _LIVE = "current", "live"
_NO_VALUE = "__HIVE_DEFAULT_PARTITION__"
_NAME_BYTES = 255
_POINTS_TO = re.compile(rf"g(\d+)/{_CURRENT}")


@dataclass(frozen=True, slots=True)
class PlacedFile:
    """Rows of one bucket with the same ``values`` (texts) in the columns that name folders."""

    path: str
    bucket: int
    rows: int
    bytes: int
    checksum: str
    values: tuple[str | None, ...] = ()


@dataclass(frozen=True, slots=True)
class Manifest:
    """The result of one step: its fence, how rows are placed, and the files."""

    log_id: str
    epoch: int
    epoch_hash: str
    key: tuple[str, ...]
    schema: pa.Schema
    partition_by: tuple[str, ...]
    partitions: int
    split: int
    files: tuple[PlacedFile, ...]

    def to_text(self) -> str:
        shape = {"key": self.key, "schema": schema_to_text(self.schema), "partition_by": self.partition_by}
        place = {"partitions": self.partitions, "split": self.split}
        files = [asdict(file) for file in self.files]
        stands = {"log_id": self.log_id, "epoch": self.epoch, "epoch_hash": self.epoch_hash}
        return json.dumps({**stands, **shape, **place, "files": files}, ensure_ascii=False, indent=1)

    @classmethod
    def from_text(cls, text: str) -> Self:
        data: dict[str, Any] = json.loads(text)
        files = [PlacedFile(**{**file, "values": tuple(file["values"])}) for file in data.pop("files")]
        if foreign := [file.path for file in files if not _is_below(file.path)]:
            raise ValueError(f"it names {foreign[0]!r}, which is not below its folder")
        shape = {
            "key": tuple(data.pop("key")),
            "schema": schema_from_text(data.pop("schema")),
            "partition_by": tuple(data.pop("partition_by")),
        }
        return cls(**data, **shape, files=tuple(files))

    def fence(self, target: Target) -> Fence:
        return Fence(self.log_id, target.projection, target.generation, self.epoch, self.epoch_hash)

    def is_of(self, target: Target, partition_by: Sequence[str]) -> bool:
        """Whether its rows have the target's schema and placement."""
        mine = (self.key, self.schema, self.partition_by, self.partitions, self.split)
        return mine == (target.key, target.schema, tuple(partition_by), target.partitions, target.split)

    def complete_rows(self, rows: pa.Table, file: PlacedFile) -> pa.Table:
        """The rows of a file with the columns that its folder's name stands for, in the schema's order."""
        for name, value in zip(self.partition_by, file.values, strict=True):
            column = from_texts(pa.array([value], pa.string()), self.schema.field(name).type)
            rows = rows.append_column(name, pa.repeat(column[0], rows.num_rows))
        names = [name for name in self.schema.names if name in rows.column_names]
        return rows.select(names).cast(pa.schema([self.schema.field(name) for name in names]))


def _is_below(path: object) -> bool:
    return isinstance(path, str) and not {"", ".", ".."} & {*path.split("/")} and "\0" not in path


def generation_at(place: Path) -> int:
    """The generation that a step's folder belongs to."""
    return int(place.parent.name.removeprefix("g"))


class SnapshotFolder(GenerationsFolder):
    """The files of one projection. Raises IntegrityError for files that Tailrace did not write."""

    def current(self, generation: int) -> tuple[Path, Manifest] | None:
        """The folder of a generation's last step, and its manifest; None when there was no step."""
        return self._read_link(self.generation(generation) / _CURRENT)

    def live_snapshot(self) -> tuple[Path, Manifest] | None:
        """The same of the live generation."""
        return self._read_link(self.path / _LIVE)

    def _read_link(self, link: Path) -> tuple[Path, Manifest] | None:
        with self.translate_errors():
            for _ in range(3):  # a link may be replaced, and where it pointed removed, between two looks
                if not link.is_symlink():
                    return None
                folder = self.require_inside(link)
                try:
                    text = self.require_inside(folder / MANIFEST).read_text("utf-8")
                except FileNotFoundError:
                    continue
                return folder, self._parse(folder, text)
        raise IntegrityError(
            f"{self.text}: {link} points to a folder without {MANIFEST}",
            hint="rebuild the projection as a new generation",
        )

    def _parse(self, folder: Path, text: str) -> Manifest:
        try:
            return Manifest.from_text(text)
        except (ValueError, KeyError, TypeError, pa.ArrowException) as error:
            raise IntegrityError(
                f"{self.text}: {folder / MANIFEST} is not what Tailrace wrote: {error}",
                hint="rebuild the projection as a new generation",
            ) from error

    def make_current(self, generation: int, folder: Path) -> None:
        point(self.generation(generation) / _CURRENT, folder.name)

    def live(self) -> int | None:
        with self.translate_errors():
            try:
                at = os.readlink(self.path / _LIVE)
            except FileNotFoundError:
                return None
        found = _POINTS_TO.fullmatch(at)
        if found is None:
            raise IntegrityError(
                f"{self.text}: {self.path / _LIVE} points to {at!r}, which is no generation",
                hint="remove that link; the next tailrace run or verify makes it again",
            )
        return int(found[1])

    def set_live(self, generation: int) -> None:
        point(self.path / _LIVE, f"g{generation}/{_CURRENT}")

    def prune(self, generation: int, keep_seconds: float) -> None:
        """Remove the folders of earlier steps, each so long after the next one replaced it."""
        with self.translate_errors():
            place = self.generation(generation)
            now = (place / _CURRENT).resolve()
            steps = sorted(folder for folder in place.glob("s*") if folder.is_dir() and folder != now)
            for folder, following in itertools.pairwise([*steps, now]):
                if time.time() - (following / MANIFEST).stat().st_mtime >= keep_seconds:
                    shutil.rmtree(folder)


def folder_name(column: str, value: str | None) -> str:
    """``day=2026-11-20``, as Hive, Spark, DuckDB and pandas read it. Raises UsageError for a value that such a name
    cannot express."""
    name = f"{quote(column, safe='')}={_NO_VALUE if value is None else quote(value, safe='')}"
    if value in ("", _NO_VALUE):
        raise UsageError(
            f"column {column!r} partitions the folder and holds {value!r}, which readers would take for NULL",
            hint=f"give such rows another value of {column!r} in the projection",
        )
    if len(name) > _NAME_BYTES:
        raise UsageError(
            f"column {column!r} partitions the folder and holds a value of {len(value or ''):,} characters",
            hint=f"a folder's name has at most {_NAME_BYTES} bytes; partition by a shorter column",
        )
    return name


_NAME = "loading.json"


@dataclass(frozen=True, slots=True)
class StagedLoad:
    """A first load under way: the manifest as far as it is known, with the files of the buckets that are ``done``."""

    manifest: Manifest
    done: Sequence[int]


def read_loading(staging: Path) -> StagedLoad | None:
    """None where there is none, it cannot be read, or there are links, of which we make none: then the load begins
    again."""
    if any(path.is_symlink() for path in staging.rglob("*")):
        return None
    with suppress(FileNotFoundError, ValueError, KeyError, TypeError, pa.ArrowException):
        data = json.loads((staging / _NAME).read_text("utf-8"))
        return StagedLoad(Manifest.from_text(data["manifest"]), data["done"])
    return None


def write_loading(staging: Path, loading: StagedLoad) -> None:
    """Replace the file durably."""
    text = json.dumps(
        {"manifest": loading.manifest.to_text(), "done": list(loading.done)}, ensure_ascii=False
    )
    replace_file(staging / _NAME, text)


def forget_loading(staging: Path) -> None:
    """Remove the file before the folder is shown."""
    for path in staging.glob(f"{_NAME}*"):  # also what a killed process had begun to write
        path.unlink()
