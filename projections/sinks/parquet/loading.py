"""Which buckets of a first load are whole, in a file beside theirs: what a load that was cut off is gone on with by."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from tailrace.projections.sinks.folder import replace_file
from tailrace.projections.sinks.parquet.snapshot import Manifest

_NAME = "loading.json"


@dataclass(frozen=True, slots=True)
class Loading:
    """The step as its manifest will be, with the files of the buckets that are ``done``."""

    manifest: Manifest
    done: Sequence[int]


def read_loading(staging: Path) -> Loading | None:
    """None where there is none, or none that can be read: then the load begins again."""
    with suppress(FileNotFoundError, ValueError, KeyError, TypeError, pa.ArrowException):
        data = json.loads((staging / _NAME).read_text("utf-8"))
        return Loading(Manifest.from_text(data["manifest"]), data["done"])
    return None


def write_loading(staging: Path, loading: Loading) -> None:
    """In place of the one before, durably."""
    text = json.dumps(
        {"manifest": loading.manifest.to_text(), "done": list(loading.done)}, ensure_ascii=False
    )
    replace_file(staging / _NAME, text)


def forget_loading(staging: Path) -> None:
    """Before the folder is shown."""
    for path in staging.glob(f"{_NAME}*"):  # also what a killed process had begun to write
        path.unlink()
