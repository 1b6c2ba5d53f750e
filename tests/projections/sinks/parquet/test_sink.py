"""What holds for Parquet folders beside the contract: any tool reads them, little is written anew, files stay few."""

from __future__ import annotations

import os
import re
import stat
import time
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import pandas as pd
import pyarrow as pa
import pytest
from pyarrow import dataset

from tailrace.eventstore.errors import (
    DifferenceFound,
    IntegrityError,
    OperatorError,
    TransientError,
    UsageError,
)
from tailrace.eventstore.settings import Settings, SinkSettings
from tailrace.projections.sinks.contract import Sink
from tailrace.projections.sinks.open import open_reader, open_sink
from tailrace.projections.sinks.parquet.reader import ParquetReader
from tailrace.projections.sinks.parquet.sink import ParquetLoad
from tailrace.projections.sinks.parquet.snapshot import MANIFEST
from tailrace.projections.sinks.specs import ParquetFolder
from tailrace.testing.sink_steps import SinkStep, pieces
from tests.projections.sinks.sink_data import ANNA, BERT, apply, fence, fill, rows_of, target

CARL = {"customer_id": 3, "name": None, "total": Decimal("7.00")}
LIVE = "acme/customer_totals/live"


def settings_at(path: Path) -> Settings:
    return Settings(sinks={"lake": SinkSettings(kind="parquet", path=path)})


def sink_at(path: Path, *partition_by: str, keep_seconds: float = 600) -> Sink:
    return open_sink(ParquetFolder("lake", partition_by, keep_seconds), settings_at(path))


def reader_at(path: Path, *partition_by: str) -> ParquetReader:
    reader = open_reader(settings_at(path), "acme", "customer_totals", ParquetFolder("lake", partition_by))
    assert isinstance(reader, ParquetReader)
    return reader


def of(customer: int, name: str = "x") -> dict[str, Any]:
    return {"customer_id": customer, "name": name, "total": None}


def files_of(path: Path) -> dict[str, int]:
    """The files of the one generation, and which they are."""
    now = (path / "acme/customer_totals/g1/current").resolve()
    return {str(file.relative_to(now)): file.stat().st_ino for file in now.rglob("*.parquet")}


def test_duckdb_and_arrow_read_the_live_generation(tmp_path: Path) -> None:
    sink = sink_at(tmp_path, "name")
    odd = {"customer_id": 4, "name": "a/b=ü %", "total": Decimal("0.01")}
    fill(sink, target(), [ANNA, BERT])
    apply(sink, target(), 10, 11, [CARL, odd], [{"customer_id": 2}])
    sink.promote(target(), None)
    found = duckdb.read_parquet(f"{tmp_path}/{LIVE}/**/*.parquet", hive_partitioning=True)
    rows: list[dict[str, Any]] = [ANNA, CARL, odd]
    ordered = found.select("customer_id", "name", "total").order("customer_id")
    assert ordered.fetchall() == [tuple(row.values()) for row in rows]
    table = dataset.dataset(tmp_path / LIVE, partitioning="hive").to_table(columns=list(ANNA))
    assert table.sort_by("customer_id").to_pylist() == rows


def test_files_without_a_changed_key_stay_as_they_are(tmp_path: Path) -> None:
    sink = sink_at(tmp_path, "name")
    fill(sink, target(), [of(number, f"n{number % 10}") for number in range(200)])
    before = files_of(tmp_path)
    apply(sink, target(), 10, 11, [of(13, "n3")], [{"customer_id": 25}])
    after = files_of(tmp_path)
    touched = {path.partition("/")[0] for path in before.keys() ^ after.keys()}
    assert touched == {"name=n3", "name=n5"}
    assert all(before[path] == after[path] for path in before.keys() & after.keys())
    assert len(rows_of(sink, target())) == 199


def test_a_row_moves_to_the_folder_of_its_new_value(tmp_path: Path) -> None:
    sink = sink_at(tmp_path, "name")
    fill(sink, target(), [of(1, "old"), of(2, "kept")])
    apply(sink, target(), 10, 11, [of(1, "new")])
    assert {path.partition("/")[0] for path in files_of(tmp_path)} == {"name=new", "name=kept"}
    assert rows_of(sink, target()) == [of(1, "new"), of(2, "kept")]


def test_files_stay_few_over_many_small_steps(tmp_path: Path) -> None:
    sink = sink_at(tmp_path, keep_seconds=0)
    fill(sink, target(), [of(number) for number in range(64)], epoch=1)
    for epoch in range(2, 42):
        apply(sink, target(), epoch - 1, epoch, [of(100 + epoch)])
    assert len(rows_of(sink, target())) == 104
    assert len(files_of(tmp_path)) <= 2 * 5  # of two buckets, each with files that double in size
    assert len(list((tmp_path / "acme/customer_totals/g1").glob("s*"))) == 1


def test_readers_of_the_files_keep_those_of_the_step_before(tmp_path: Path) -> None:
    sink = sink_at(tmp_path)
    fill(sink, target(), [ANNA, BERT])
    sink.promote(target(), None)
    reader = reader_at(tmp_path)
    before = reader.files()
    apply(sink, target(), 10, 11, [CARL], [{"customer_id": 1}])
    assert sum(pd.read_parquet(file).shape[0] for file in before) == 2
    assert sum(pd.read_parquet(file).shape[0] for file in reader.files()) == 2
    apply(sink_at(tmp_path, keep_seconds=0), target(), 11, 12, [ANNA])
    assert not any(file.exists() for file in before)
    assert reader.many([3, (2,), 9, 1]) == [CARL, BERT, None, ANNA]


def test_a_key_that_names_folders_is_found(tmp_path: Path) -> None:
    sink = sink_at(tmp_path, "customer_id")
    fill(sink, target(), [ANNA, BERT])
    apply(sink, target(), 10, 11, [ANNA | {"name": "Anna"}], [{"customer_id": 2}])
    sink.promote(target(), None)
    assert reader_at(tmp_path, "customer_id").many([1, 2]) == [ANNA | {"name": "Anna"}, None]


def test_a_second_writer_is_told_to_wait_and_the_first_goes_on(tmp_path: Path) -> None:
    sink = sink_at(tmp_path)
    fill(sink, target(), [ANNA])
    with sink.load(target(), fence(target(), 10), fence(target(), 11)) as load:
        with pytest.raises(TransientError, match="another process writes"):
            apply(sink_at(tmp_path), target(), 10, 11, [BERT])
        load.commit()
    apply(sink_at(tmp_path), target(), 11, 12, [BERT])
    assert rows_of(sink, target()) == [ANNA, BERT]


@pytest.mark.parametrize(
    ("partition_by", "said"),
    [
        (["absent"], "'absent', which is not in the output"),
        (["total"], "'total' of type decimal"),
        (["name", "name"], "one column twice"),
        (["customer_id", "name", "total"], "all columns"),
    ],
)
def test_folders_that_cannot_be_named_so_are_said_before_building(
    tmp_path: Path, partition_by: list[str], said: str
) -> None:
    with pytest.raises(OperatorError, match=said):
        sink_at(tmp_path, *partition_by).check(target())
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("value", ["", "__HIVE_DEFAULT_PARTITION__", "x" * 300])
def test_a_value_that_no_folder_can_have_is_refused_and_nothing_changes(tmp_path: Path, value: str) -> None:
    sink = sink_at(tmp_path, "name")
    fill(sink, target(), [ANNA])
    with pytest.raises(UsageError, match="column 'name' partitions the folder"):
        apply(sink, target(), 10, 11, [BERT | {"name": value}])
    assert rows_of(sink, target()) == [ANNA]
    apply(sink, target(), 10, 11, [BERT])
    assert rows_of(sink, target()) == [ANNA, BERT]


def test_files_that_are_not_what_was_written_are_named(tmp_path: Path) -> None:
    sink = sink_at(tmp_path)
    fill(sink, target(), [ANNA, BERT])
    now = (tmp_path / "acme/customer_totals/g1/current").resolve()
    (now / "more.parquet").write_bytes(b"PAR1")
    with pytest.raises(DifferenceFound, match=r"more\.parquet"):
        rows_of(sink, target())
    (now / "more.parquet").unlink()
    file = next(now.glob("b*.parquet"))
    data = file.read_bytes()
    file.write_bytes(data[:20] + bytes([data[20] ^ 1]) + data[21:])
    with pytest.raises(IntegrityError, match=file.name):
        rows_of(sink, target())
    file.unlink()
    with pytest.raises(IntegrityError, match=file.name):
        rows_of(sink, target())
    (now / "_manifest.json").write_text("{}")
    with pytest.raises(IntegrityError, match="rebuild"):
        rows_of(sink, target())


def test_other_columns_need_another_generation(tmp_path: Path) -> None:
    sink = sink_at(tmp_path)
    fill(sink, target(), [ANNA])
    other = target(schema=pa.schema([*target().schema, pa.field("more", pa.int64())]))
    with pytest.raises(OperatorError, match="with other columns"):
        sink.create(other)


def test_what_was_replaced_goes_only_so_long_after(tmp_path: Path) -> None:
    sink = sink_at(tmp_path, keep_seconds=600)
    fill(sink, target(), [ANNA])
    current = tmp_path / "acme/customer_totals/g1/current"
    first = current.resolve()
    apply(sink, target(), 10, 11, [BERT])
    assert first.exists()
    long_ago = time.time() - 601
    os.utime(current / MANIFEST, (long_ago, long_ago))  # when it replaced the first
    apply(sink, target(), 11, 12, [CARL])
    assert not first.exists()


@pytest.mark.parametrize(
    "moved",
    ["acme", "acme/customer_totals", "acme/customer_totals/g1", "g1/s*", "_manifest.json", "b0*.parquet"],
)
def test_a_link_that_leads_out_of_the_sinks_folder_is_not_followed(tmp_path: Path, moved: str) -> None:
    sink = sink_at(tmp_path / "lake")
    fill(sink, target(), [ANNA])
    sink.promote(target(), None)
    place = next((tmp_path / "lake").rglob(moved))
    place.rename(tmp_path / "outside")
    place.symlink_to(tmp_path / "outside")
    reader = reader_at(tmp_path / "lake")
    for use in (lambda: reader.many([1]), reader.files, lambda: rows_of(sink, target())):
        with pytest.raises(IntegrityError, match="leads out of") as caught:
            use()
        assert str(tmp_path / "lake/acme/customer_totals") in caught.value.message
    place.unlink()
    (tmp_path / "outside").rename(place)
    assert reader_at(tmp_path / "lake").many([1]) == [ANNA]


@pytest.mark.parametrize("way", ["up", "absolute"])
def test_a_manifest_that_names_a_file_outside_of_its_folder_is_refused(tmp_path: Path, way: str) -> None:
    """A file of the same form, with the checksum that the manifest says."""
    sink = sink_at(tmp_path / "lake")
    fill(sink, target(), [ANNA])
    sink.promote(target(), None)
    place = (tmp_path / "lake/acme/customer_totals/g1/current").resolve()
    file = next(place.glob("b*.parquet"))
    outside = file.rename(tmp_path / file.name)
    named = str(outside) if way == "absolute" else os.path.relpath(outside, place)
    manifest = (place / MANIFEST).read_text()
    (place / MANIFEST).write_text(manifest.replace(f'"{file.name}"', f'"{named}"'))
    reader = reader_at(tmp_path / "lake")
    for use in (
        lambda: reader.many([1]),
        reader.files,
        lambda: rows_of(sink, target()),
        lambda: apply(sink, target(), 10, 11, [BERT]),
    ):
        with pytest.raises(
            IntegrityError, match=f"names '{re.escape(named)}', which is not below its folder"
        ):
            use()


@pytest.mark.parametrize("by", ["name", "link"])
def test_a_load_that_somebody_else_began_changes_no_file_outside_of_its_folder(
    tmp_path: Path, by: str
) -> None:
    """What an earlier load left is gone on with: its files are merged with new ones, and removed."""
    sink = sink_at(tmp_path / "lake")
    sink.create(target())
    with sink.load(target(), None, fence(target(), 10)) as load:
        for bucket, *rows in pieces(target(), SinkStep(fence(target(), 10), (ANNA,), ())):
            load.write(bucket, *rows)
            assert isinstance(load, ParquetLoad)
            load.bucket_done(bucket)
    staging = tmp_path / "lake/acme/customer_totals/g1/.step"
    victim = tmp_path / "victim.parquet"
    if by == "name":
        file = next(staging.glob("b*.parquet"))
        file.rename(victim)
        begun = staging / "loading.json"
        named = os.path.relpath(victim, staging)
        begun.write_text(begun.read_text().replace(f'\\"{file.name}\\"', f'\\"{named}\\"'))
        assert named in begun.read_text()
    else:
        victim.write_text("somebody else's")
        (staging / MANIFEST).symlink_to(victim)
    held = victim.read_bytes()
    apply(sink, target(), None, 10, [ANNA, BERT])
    assert victim.read_bytes() == held
    assert rows_of(sink, target()) == [ANNA, BERT]


def test_a_step_is_on_the_disk_whole_before_it_is_current(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files: dict[int, int] = {}  # bytes at the last fsync, by inode
    folders: dict[int, list[set[str]]] = {}  # and names at each fsync
    fsync = os.fsync

    def synced(fd: int) -> None:
        found = os.fstat(fd)
        if stat.S_ISDIR(found.st_mode):
            folders.setdefault(found.st_ino, []).append(set(os.listdir(fd)))
        else:
            files[found.st_ino] = found.st_size
        fsync(fd)

    monkeypatch.setattr(os, "fsync", synced)
    fill(sink_at(tmp_path, "name"), target(), [ANNA, BERT])
    generation = tmp_path / "acme/customer_totals/g1"
    step = (generation / "current").resolve()
    of_step = [path for path in step.rglob("*") if path.is_file()]
    assert len(of_step) == 3 and all(files[path.stat().st_ino] == path.stat().st_size for path in of_step)
    for folder in {path.parent for path in of_step} | {step}:
        assert folders[folder.stat().st_ino][-1] >= {path.name for path in folder.iterdir()}
    assert any(step.name in names and "current" not in names for names in folders[generation.stat().st_ino])
