"""Archives: what retention removes is elsewhere first, whole and looked at, or it is not removed."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tailrace.eventstore import failpoints
from tailrace.eventstore.errors import Fenced, IntegrityError, OperatorError, UsageError
from tailrace.eventstore.integrity.findings import LogProblem
from tailrace.eventstore.maintenance.redaction.redact import RedactionRequest, redact
from tailrace.eventstore.maintenance.retention import apply, plan
from tailrace.eventstore.model.time import to_micros
from tailrace.eventstore.segment import segment
from tailrace.eventstore.settings import StoreSettings, TopicSettings, UpkeepSettings
from tailrace.eventstore.state.state import state
from tailrace.eventstore.storage.open import MARKER
from tailrace.eventstore.store import Store
from tests.eventstore.shop import CUSTOMERS, ORDERS, at, batch, content, writer
from tests.support import forking

LAST = 24
COLUMNS = ["_partition", "_offset", "_epoch", "_op", "_lsn", "key", "after"]


def settings(archive: str, orders: str = "10s", **more: Any) -> StoreSettings:
    """Retention of orders goes into an archive; that of customers does not."""
    kept = {
        ORDERS.text: TopicSettings.model_validate(
            {
                "retention": orders,
                "archive": archive,
                **({"compact_after": 10} if orders == "compact" else {}),
            }
        ),
        CUSTOMERS.text: TopicSettings.model_validate({"retention": "10s"}),
    }
    return StoreSettings(topics=kept, upkeep=UpkeepSettings(keep_seconds=0), inline_bytes=2500, **more)


def fill(store: Store, first: int, last: int) -> None:
    """An epoch a second, every fifth large enough for a file of its own."""
    capture = store.take_over("shop") if store.source("shop") else writer(store)
    for lsn in range(first, last + 1):
        orders = [("u", key) for key in range(60 if lsn % 5 == 0 else 3)]
        more: dict[str, Any] = {"completes": [ORDERS, CUSTOMERS]} if lsn == 1 else {}
        capture.append(batch(lsn, orders, [("c", lsn)], **more))


@pytest.fixture
def clock_at_last_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Retention's clock stands at the last epoch: rows up to epoch 14 are older than 10 seconds."""
    monkeypatch.setattr(plan, "now_micros", lambda: to_micros(at(LAST)))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path


@pytest.fixture
def store(root: Path) -> Iterator[Store]:
    with closing(Store.open(settings("cold"), create=True, root=root)) as store:
        fill(store, 1, LAST)
        yield store


def archived_rows(store: Store) -> list[dict[str, Any]]:
    """What is archived of orders, read as anybody's Parquet through its catalog's reference."""
    found = []
    for each in store.archived_files(ORDERS):
        rows = segment.read_segment(store.archive(each.archive), each.ref)
        assert rows.num_rows == each.rows
        found += rows.select(COLUMNS).to_pylist()
    return sorted(found, key=lambda row: (row["_partition"], row["_offset"]))


def live_rows(store: Store) -> list[dict[str, Any]]:
    found = [{name: row[name] for name in COLUMNS} for row in content(store)]
    return sorted(found, key=lambda row: (row["_partition"], row["_offset"]))


def test_what_goes_is_in_the_archive_first_as_parquet_and_archive_and_log_are_all_there_was(
    store: Store, root: Path, clock_at_last_epoch: None
) -> None:
    before = live_rows(store)
    (removed, _) = sorted(store.maintain().removed, key=lambda each: each.archive, reverse=True)
    assert (removed.topic, removed.epoch, removed.archive) == (ORDERS.text, 14, "cold")
    assert 0 < len(live_rows(store)) < len(before)
    assert {row["_epoch"] for row in archived_rows(store)} == set(range(1, 15))  # the cut went through a file
    both = sorted(
        archived_rows(store) + live_rows(store), key=lambda row: (row["_partition"], row["_offset"])
    )
    assert both == before
    files = [each.place for each in store.archived_files(ORDERS)]
    assert sum(pq.ParquetFile(file).metadata.num_rows for file in files) == removed.events
    assert {str(path) for path in (root / "cold").rglob("*.parquet")} == set(files)
    assert store.archived_files(CUSTOMERS) == []
    assert store.verify(archives=True).findings == ()
    store.maintain()
    assert [each.place for each in store.archived_files(ORDERS)] == files


def test_a_compacted_topics_archive_has_every_row(root: Path, clock_at_last_epoch: None) -> None:
    with closing(Store.open(settings("cold", "compact"), create=True, root=root)) as store:
        fill(store, 1, LAST)
        before, known = live_rows(store), state_rows(store)
        (step,) = [each for each in store.maintain().removed if each.topic == ORDERS.text]
        assert step.kept_events < step.events
        assert archived_rows(store) == [row for row in before if row["_epoch"] <= step.epoch]
        assert state_rows(store) == known


def state_rows(store: Store) -> list[dict[str, Any]]:
    found = state(store, ORDERS, store.cut(), on_unreadable="null")
    return sorted((row for table in found for row in table.to_pylist()), key=lambda row: row["id"])


def test_an_archive_in_an_object_store(root: Path, bucket: str, clock_at_last_epoch: None) -> None:
    with closing(Store.open(settings(f"s3://{bucket}/cold"), create=True, root=root)) as store:
        fill(store, 1, LAST)
        before = live_rows(store)
        store.maintain()
        assert archived_rows(store) == [row for row in before if row["_epoch"] <= 14]
        assert store.verify(archives=True).findings == ()
        assert {each.place.rpartition("/")[0] for each in store.archived_files(ORDERS)} == {
            f"s3://{bucket}/cold/{ORDERS.text}"
        }


def test_erasing_rows_names_the_archive_that_still_has_them(store: Store, clock_at_last_epoch: None) -> None:
    store.maintain()
    receipt = redact(store, RedactionRequest(ORDERS, ["1"]))
    (left,) = [each for each in receipt.remnants if each.place == "archive cold"]
    assert left.detail.startswith(f"{len(store.archived_files(ORDERS))} file")


MAINTAINER = """
import sys
from pathlib import Path
from tailrace.eventstore.store import Store
from tests.eventstore.maintenance.retention.test_archive import settings
with Store.open(settings("cold", "1d"), root=Path(sys.argv[1])) as store:
    store.maintain()
"""


@pytest.mark.parametrize("place", ["archive_copied", "retention_written"])
def test_killed_it_has_archived_and_removed_or_removed_nothing_and_the_next_finishes(
    store: Store, root: Path, place: str
) -> None:
    before = live_rows(store)
    environment = {**os.environ, failpoints.VARIABLE: place}
    died = forking.run([sys.executable, "-c", MAINTAINER, str(root)], env=environment, timeout=60)
    assert died.returncode == -9
    assert archived_rows(store) + live_rows(store) == before
    with Store.open(settings("cold", "1d"), root=root) as again:
        again.maintain()
        again.maintain()
        assert live_rows(again) == []
        assert archived_rows(again) == before
        assert again.verify(archives=True).findings == ()
        named = {each.place for each in again.archived_files(ORDERS)}
        assert {str(path) for path in (root / "cold").rglob("*.parquet")} == named
        assert again.verify().unregistered == 0


@pytest.mark.parametrize("way", ["overtaken", "killed"])
def test_a_copy_that_rows_were_erased_behind_is_named_by_the_receipt_and_removed(
    store: Store, root: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    receipts = []

    def erase() -> None:
        receipts.append(redact(store, RedactionRequest(ORDERS, ["1"])))

    with Store.open(settings("cold", "1d"), root=root) as upkeep:
        upkeep.seal()
        if way == "killed":
            environment = {**os.environ, failpoints.VARIABLE: "archive_copied"}
            died = forking.run([sys.executable, "-c", MAINTAINER, str(root)], env=environment, timeout=60)
            assert died.returncode == -9
            erase()
        else:
            with monkeypatch.context() as patched:
                patched.setattr(
                    failpoints, "hit", lambda name, times=1: erase() if name == "archive_copied" else None
                )
                with pytest.raises(Fenced, match="another retain began"):
                    list(apply.retain(upkeep))
        (copy,) = (root / "cold").rglob("*.parquet")
        assert any(row["after"]["note"] for row in rows_of_one(copy))
        copy.with_name(f"{copy.name}.partial").write_bytes(b"of one who was killed while it was copied")
        (left,) = [each for each in receipts[0].remnants if each.place == "archive cold, unfinished"]
        assert left.detail.startswith("1 file") and "store maintain" in left.remedy
        upkeep.maintain()
        upkeep.maintain()
        named = {each.place for each in upkeep.archived_files(ORDERS)}
        assert {str(path) for path in (root / "cold").rglob("*.parquet*")} == named
        assert str(copy) not in named
        notes = [row["after"]["note"] for path in named for row in rows_of_one(Path(path))]
        assert len(notes) > 1 and {*notes} == {None}
        assert upkeep.verify(archives=True).findings == ()


def rows_of_one(file: Path) -> list[dict[str, Any]]:
    """Of order 1 in a file."""
    return [row for row in pq.read_table(file).to_pylist() if row["key"] == {"id": 1}]


def test_nothing_is_removed_while_the_archive_is_out_of_reach_and_other_topics_go_on(
    store: Store, root: Path, clock_at_last_epoch: None
) -> None:
    (root / "cold").write_text("no folder")
    before, others = live_rows(store), content(store, CUSTOMERS)
    with pytest.raises(OperatorError, match=f"nothing was removed from {ORDERS.text}: .*archive cold"):
        store.maintain()
    assert live_rows(store) == before and store.archived_files(ORDERS) == []
    assert len(content(store, CUSTOMERS)) < len(others)
    (root / "cold").unlink()
    store.maintain()
    assert len(live_rows(store)) < len(before)
    (root / "cold").rename(root / "unmounted")
    (root / "cold").mkdir()
    with pytest.raises(OperatorError, match=f"it has no {MARKER}"):
        store.verify(archives=True)
    assert store.verify().findings == ()


def test_a_folder_that_is_empty_all_at_once_is_no_archive_to_go_on_in(
    store: Store, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan, "now_micros", lambda: to_micros(at(16)))
    store.maintain()
    start = store.log_start(ORDERS).epoch
    (root / "cold").rename(root / "unmounted")
    monkeypatch.setattr(plan, "now_micros", lambda: to_micros(at(LAST + 9)))
    with pytest.raises(OperatorError, match="mount it"):
        store.maintain()
    assert store.log_start(ORDERS).epoch == start > 0
    (root / "unmounted").rename(root / "cold")
    store.maintain()
    assert store.log_start(ORDERS).epoch > start
    assert store.verify(archives=True).findings == ()


def test_places_that_cannot_be_archives_are_refused(
    store: Store, root: Path, clock_at_last_epoch: None
) -> None:
    before = live_rows(store)
    inside = settings(".tailrace/segments/cold")
    with Store.open(inside, root=root) as other, pytest.raises(UsageError, match="the log's own files"):
        other.maintain()
    (root / "cold").mkdir()
    (root / "cold" / MARKER).write_text("another\n")
    with pytest.raises(OperatorError, match="belongs to another log"):
        store.maintain()
    assert live_rows(store) == before
    with pytest.raises(ValueError, match="archive is for rows that retention removes"):
        TopicSettings.model_validate({"archive": "cold"})


def test_what_is_wrong_in_an_archive_is_found(store: Store, root: Path, clock_at_last_epoch: None) -> None:
    store.maintain()
    with Store.open(settings("cold", "1s"), root=root) as later:
        later.maintain()
    first, second, *_ = (Path(each.place) for each in store.archived_files(ORDERS))
    first.write_bytes(first.read_bytes()[:-1] + b"?")
    second.unlink()
    found = store.verify([ORDERS], archives=True).findings
    assert [(each.problem, each.place) for each in found] == [
        (LogProblem.DAMAGED, str(first)), (LogProblem.MISSING, str(second)),
    ]  # fmt: skip
    (only,) = store.verify([ORDERS], quick=True, archives=True).findings
    assert (only.problem, only.place) == (LogProblem.MISSING, str(second))


def test_a_file_under_the_name_of_one_to_archive_is_not_trusted(
    store: Store, root: Path, clock_at_last_epoch: None
) -> None:
    before = live_rows(store)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(apply, "_swap", refuse)
        with pytest.raises(ZeroDivisionError):
            store.maintain()
    (copy,) = (root / "cold").rglob("*.parquet")
    whole = copy.read_bytes()
    copy.write_bytes(whole[:-1] + b"?")
    with pytest.raises(
        IntegrityError, match=f"{copy.name} is not the file that was archived under this name"
    ):
        store.maintain()
    assert live_rows(store) == before
    copy.unlink()
    store.maintain()
    assert copy.read_bytes() == whole  # the name follows from the content
    assert archived_rows(store) == [row for row in before if row["_epoch"] <= 14]


def refuse(*_: Any) -> None:
    raise ZeroDivisionError
