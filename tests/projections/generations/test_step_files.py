"""A bucket's result is its run with the deltas since laid over it: read as one, and few and small beside the run."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tailrace.eventstore.errors import IntegrityError
from tailrace.eventstore.metadata.projection_steps import DerivedRun
from tailrace.eventstore.model.keys import hash_texts
from tailrace.eventstore.segment.kept_answers import KeptAnswers
from tailrace.eventstore.storage import LocalStorage
from tailrace.projections.compute.bucket import BucketTask, Placement
from tailrace.projections.generations import result_file, step_files
from tailrace.projections.generations.difference import HASH, Mask, TableDifference, difference
from tailrace.projections.generations.generation import files_of
from tailrace.projections.generations.key_subset import KeySubset
from tailrace.projections.generations.step_files import (
    NO_FILES,
    OVERLAYS_MOST,
    BucketFiles,
    DerivedFile,
    StepFiles,
    next_files,
    read_delta,
    read_result,
    read_results,
    write_run,
    write_small_deltas,
)
from tests.fixtures.scale import Scale

SCHEMA = pa.schema({"id": pa.int64(), "text": pa.string()})
KEY = ("id",)


class Bucket:
    """One bucket of a generation, and what must be in it."""

    def __init__(self, folder: Path) -> None:
        self.storage = LocalStorage(folder)
        self.files = NO_FILES
        self.rows: dict[int, str] = {}
        self.steps = 0

    def step(self, changes: dict[int, str | None], *, afresh: bool = False, whole: bool = False) -> None:
        """Changes by key (None: gone), given as the rows of these keys alone or of all."""
        placement = Placement(SCHEMA, KEY, partitions=1, split=1)
        self.steps += 1
        task = BucketTask(
            self.storage, placement, {0: self.files}, {}, "derived/p/1", f"{self.steps}-0", afresh
        )
        for key, text in changes.items():
            self.rows.pop(key, None)
            if text is not None:
                self.rows[key] = text
        asked = pa.array([hash_texts([str(key)]) for key in changes], pa.int64())
        given = self.rows if whole or afresh else {key: self.rows[key] for key in changes if key in self.rows}
        rows = placement.rows(self.table(given))
        some = KeySubset(
            lambda t: pa.compute.is_in(t[HASH], value_set=asked).to_numpy(), np.sort(asked.to_numpy())
        )
        outcome = task.compare(0, rows) if whole or afresh else task.compare_keys(rows, some, [0])[0]
        if outcome.files is not None:
            (self.files,) = StepFiles(*next_files({}, {0: outcome.files}), (), "", 0).buckets.values() or [
                NO_FILES
            ]

    @staticmethod
    def table(rows: dict[int, str]) -> pa.Table:
        hashes = [hash_texts([str(key)]) for key in rows]
        return pa.table({HASH: pa.array(hashes, pa.int64()), "id": pa.array(rows, pa.int64()),
                         "text": pa.array(rows.values(), pa.string())})  # fmt: skip

    def read(self, files: BucketFiles | None = None) -> dict[int, str]:
        table = read_result(self.storage, files or self.files, SCHEMA, KEY)
        assert table[HASH].to_pylist() == sorted(table[HASH].to_pylist())
        assert len(set(table["id"].to_pylist())) == table.num_rows
        return dict(zip(table["id"].to_pylist(), table["text"].to_pylist(), strict=True))


@pytest.mark.parametrize("keys", [12, 3000])
def test_after_any_steps_the_bucket_is_what_the_steps_made_of_it(
    tmp_path: Path, scale: Scale, keys: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tailrace.projections.generations.result_file._GROUP_ROWS", 50)
    random = Random(keys)
    bucket = Bucket(tmp_path)
    for _ in range(scale.pick(smoke=25, full=600)):
        some = random.sample(range(keys), random.randint(1, min(keys, 40)))
        changes = {key: random.choice([None, "x" * random.randint(0, 300)]) for key in some}
        earlier, before = bucket.files, dict(bucket.rows)
        bucket.step(changes, whole=random.random() < 0.2)
        assert bucket.read() == bucket.rows
        assert len(bucket.files.overlays) <= OVERLAYS_MOST
        assert not bucket.files.outgrown
        if earlier != NO_FILES:
            assert bucket.read(earlier) == before, "files of earlier steps stay as they were"


def test_a_small_change_of_a_large_bucket_leaves_the_run_alone(tmp_path: Path) -> None:
    bucket = Bucket(tmp_path)
    random = Random(1)
    bucket.step({key: random.randbytes(40).hex() for key in range(20_000)})
    run = bucket.files.run
    assert run is not None and not bucket.files.overlays
    written = [set(bucket.storage.list("derived"))]
    for number in range(3 * OVERLAYS_MOST):
        bucket.step({number: "changed", 20_000 + number: "new", 100 + number: None})
        written.append(set(bucket.storage.list("derived")))
    assert bucket.files.run == run
    assert 0 < sum(file.bytes for file in bucket.files.overlays) < run.bytes // 4
    assert bucket.read() == bucket.rows
    merges = sum(len(after - before) > 1 for before, after in pairwise(written))
    assert 0 < merges <= 6, "overlays become one now and then, not at every step"


@pytest.fixture
def of_many_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bucket:
    monkeypatch.setattr("tailrace.projections.generations.result_file._PIECE_ROWS", 100)
    bucket = Bucket(tmp_path)
    bucket.step({key: f"row {key}" for key in range(5000)})
    return bucket


def test_of_a_large_run_only_the_rows_with_the_hashes_are_read(
    of_many_groups: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket = of_many_groups
    decoded, decode = list[int](), result_file.decode

    def noted(*arguments: Any) -> pa.Table:
        table = decode(*arguments)
        decoded.append(table.num_rows)
        return table

    monkeypatch.setattr(step_files, "decode", noted)
    monkeypatch.setattr(step_files, "_SMALL_BYTES", 0)

    def is_7_or_4000(rows: pa.Table) -> Mask:
        return np.isin(rows["id"].to_numpy(), [7, 4000])

    for hashes in (np.sort([hash_texts(["7"]), hash_texts(["4000"])]), None):
        found = read_results(bucket.storage, [bucket.files], SCHEMA, KEY, KeySubset(is_7_or_4000, hashes))
        assert sorted(found["text"].to_pylist()) == ["row 4000", "row 7"]
    assert decoded == [2, 5000]


def test_rows_that_are_kept_are_those_that_were_compared_whatever_becomes_of_the_file(tmp_path: Path) -> None:
    bucket = Bucket(tmp_path)
    bucket.step({key: f"row {key}" for key in range(100)})
    assert bucket.read() == bucket.rows
    assert bucket.files.run is not None
    path = Path(bucket.storage.place(bucket.files.run.path))
    path.chmod(0o600)
    with path.open("r+b") as file:
        file.write(bytes(bucket.files.run.bytes))
    assert bucket.read() == bucket.rows


def test_small_deltas_of_a_step_share_a_file_and_each_is_read_and_checked_by_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(step_files, "_SMALL", KeptAnswers(0))
    storage = LocalStorage(tmp_path)
    keys = {0: {1: "a", 2: "b"}, 3: {}, 5: {7: "c" * 100}}

    def differences(text: str) -> dict[int, TableDifference]:
        return {
            bucket: difference(
                Bucket.table({90 + bucket: "gone"}), Bucket.table({k: t + text for k, t in rows.items()}), KEY
            )
            for bucket, rows in keys.items()
        }

    files = write_small_deltas(storage, "derived/p/1/0000-a.deltas.arrow", differences(""), KEY)

    assert [*storage.list()] == ["derived/p/1/0000-a.deltas.arrow"]
    assert sum(file.bytes for file in files.values()) == sum(file.bytes for file in storage.files())
    for bucket, rows in keys.items():
        upserts, deletes = read_delta(storage, files[bucket], SCHEMA, KEY)
        assert dict(zip(upserts["id"].to_pylist(), upserts["text"].to_pylist(), strict=True)) == rows
        assert deletes["id"].to_pylist() == [90 + bucket]
    with (tmp_path / files[5].path).open("r+b") as there:
        there.seek(files[5].start + files[5].bytes // 2)
        there.write(b"damaged")
    assert read_delta(storage, files[0], SCHEMA, KEY)[0].num_rows == 2
    with pytest.raises(IntegrityError, match="is damaged"):
        read_delta(storage, files[5], SCHEMA, KEY)
    with pytest.raises(IntegrityError, match="is damaged"):
        read_delta(storage, replace(files[5], start=10**6), SCHEMA, KEY)

    assert write_small_deltas(storage, "derived/p/1/0000-b.deltas.arrow", differences("d" * 10**6), KEY) == {}
    assert [*storage.list()] == ["derived/p/1/0000-a.deltas.arrow"], "large ones get their own"


def test_a_step_of_few_keys_writes_one_file_for_all_buckets(tmp_path: Path) -> None:
    storage, placement = LocalStorage(tmp_path), Placement(SCHEMA, KEY, partitions=4, split=1)
    rows = dict.fromkeys(range(100), "first")

    def task(previous: dict[int, BucketFiles], attempt: str) -> BucketTask:
        return BucketTask(storage, placement, previous, {}, "derived/p/1", attempt)

    def table(wanted: dict[int, str]) -> pa.Table:
        return placement.rows(Bucket.table(wanted))

    def by_bucket(wanted: dict[int, str]) -> dict[int, pa.Table]:
        whole = table(wanted)
        places = placement.buckets_of(whole[HASH].combine_chunks())
        return {bucket: whole.filter(pa.array(places == bucket)) for bucket in range(4)}

    built = {bucket: task({}, "1-0").compare(bucket, part).files for bucket, part in by_bucket(rows).items()}
    previous = {bucket: files for bucket, files in built.items() if files is not None}
    assert len([*storage.list()]) == 4

    changed = dict.fromkeys(range(0, 100, 5), "second")
    hashes = np.sort(np.array([hash_texts([str(key)]) for key in changed], np.int64))
    some = KeySubset(lambda t: pa.compute.is_in(t[HASH], value_set=pa.array(hashes)).to_numpy(), hashes)
    outcomes = task(previous, "2-0").compare_keys(table(changed), some, range(4))

    assert len({outcome.delta.path for outcome in outcomes if outcome.delta}) == 1
    assert len([*storage.list()]) == 5
    after = {outcome.bucket: outcome.files for outcome in outcomes if outcome.files is not None}
    found = read_results(storage, [*after.values()], SCHEMA, KEY)
    assert dict(zip(found["id"].to_pylist(), found["text"].to_pylist(), strict=True)) == rows | changed


def test_merged_overlays_are_in_order_so_that_their_parts_are_found_too(of_many_groups: Bucket) -> None:
    bucket = of_many_groups
    for number in range(OVERLAYS_MOST + 1):
        bucket.step({key: f"row {key} of {number}" for key in range(40 * number, 40 * number + 40)})
    (merged, *_) = bucket.files.overlays
    assert merged.upserts > 300, "several row groups"
    hashes = pa.ipc.open_file(bucket.storage.open(merged.path)).read_all()["_hash"].to_pylist()
    assert hashes == sorted(hashes)


def test_afresh_no_file_keeps_a_value_of_before(tmp_path: Path) -> None:
    bucket = Bucket(tmp_path)
    bucket.step({key: f"row {key}" for key in range(2000)})
    bucket.step({7: "secret"})
    bucket.step({7: None})
    assert bucket.files.overlays
    bucket.step({}, afresh=True)
    assert bucket.files.overlays == () and bucket.files.run is not None
    assert bucket.read() == bucket.rows


def test_a_step_names_files_of_its_own_generation_alone() -> None:
    """Files of forgotten steps are removed: a record that names others must not have the log's removed."""
    for path in (
        "log/shop/1/t1-0a.parquet",
        "derived/totals/2/a.run.arrow",
        "derived/totals/1/../2/a.parquet",
    ):
        named = StepFiles((DerivedFile(0, path, 1, 1, "c"),), (), (), "h", 1)
        run = DerivedRun("totals", 1, 0, 5, "full", (named.to_data(),), 1, "h", None)
        with pytest.raises(
            IntegrityError, match=f"derived: projection totals, generation 1.*{path} is not in"
        ):
            files_of(run)


def test_a_column_may_have_any_name_that_is_not_reserved(tmp_path: Path) -> None:
    storage, schema = LocalStorage(tmp_path), pa.schema([("id", pa.int64()), ("_gone", pa.bool_())])
    table = pa.table({HASH: [1, 2], "id": [1, 2], "_gone": [True, False]})
    run = write_run(storage, "derived/p/1/a", 0, table)
    assert read_result(storage, BucketFiles(run), schema, KEY).equals(table)
