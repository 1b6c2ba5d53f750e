"""A disk that is full or read-only: upkeep, consumers, backups, redactions and moves stop by name, lose nothing, and
then go on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from tailrace.eventstore.errors import OperatorError
from tailrace.eventstore.maintenance.files import fold, merge, seal, tiers
from tailrace.eventstore.maintenance.move.backup import backup
from tailrace.eventstore.maintenance.redaction.receipts import receipts
from tailrace.eventstore.maintenance.redaction.redact import RedactionRequest, redact
from tailrace.eventstore.maintenance.retention import apply
from tailrace.eventstore.settings import StoreSettings, TopicSettings, UpkeepSettings
from tailrace.eventstore.storage import PARTIAL
from tailrace.eventstore.store import Store
from tests.eventstore.maintenance.move.test_backup import copy_of
from tests.eventstore.maintenance.move.test_move import move
from tests.eventstore.maintenance.retention.test_retention import state_at
from tests.eventstore.shop import CUSTOMERS, ORDERS, batch, content, writer
from tests.support.disks import filled, mounted, read_only

pytestmark = pytest.mark.servers
Trouble = Callable[[Path], AbstractContextManager[None]]
TROUBLES = [pytest.param(filled, "space", id="full"), pytest.param(read_only, "", id="read-only")]


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with mounted(tmp_path / "disk") as folder:
        yield folder


def settings_of(catalog: Path, segments: Path) -> StoreSettings:
    return StoreSettings(
        catalog=f"sqlite:///{catalog / 'catalog.db'}",
        segments=segments / "segments",
        upkeep=UpkeepSettings(keep_seconds=0, keep_epochs=1),
        topics={ORDERS.text: TopicSettings.model_validate({"retention": "1 s"})},
    )


def make(settings: StoreSettings) -> None:
    """Ten epochs, files of most of them; a group that is to read all customers."""
    with Store.open(settings, create=True) as store:
        capture = writer(store)
        for lsn in range(1, 11):
            more: dict[str, Any] = {"completes": [ORDERS, CUSTOMERS]} if lsn == 1 else {}
            changes = [("c", lsn * 10 + i) for i in range(9)]
            capture.append(batch(lsn, orders=changes, customers=changes, **more))
        store.group("g", [CUSTOMERS.text], start="earliest")


def with_store(settings: StoreSettings, work: Callable[[Store], object]) -> None:
    with Store.open(settings) as store:
        work(store)


STEPS: dict[str, Callable[[Store], object]] = {
    "seal": lambda store: store.seal(),
    "merge": lambda store: list(merge.merge(store, store.settings.upkeep.memory_bytes)),
    "state runs": lambda store: store.compact(),
    "retention": lambda store: list(apply.retain(store)),
    "fold": lambda store: list(fold.fold(store, 1)),
    "all": lambda store: store.maintain(),
}


@pytest.mark.parametrize(("trouble", "said"), TROUBLES)
@pytest.mark.parametrize("part", ["catalog", "segments", "all"])
def test_upkeep_stops_by_name_changes_nothing_and_goes_on(
    tmp_path: Path, disk: Path, part: str, trouble: Trouble, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tiers, "FAN_IN", 2)
    monkeypatch.setattr(seal, "CHUNK_EPOCHS", 3)
    monkeypatch.setattr(fold, "CHUNK", 2)
    settings = settings_of(tmp_path if part == "segments" else disk, tmp_path if part == "catalog" else disk)
    make(settings)
    for name, step in STEPS.items():
        head = 11 if name == "all" else 10
        with Store.open(settings) as store:
            if name == "all":  # the steps before have left nothing to do
                store.take_over("shop").append(batch(11, orders=[("c", 1)]))
            before = state_at(store, head), content(store, CUSTOMERS)
        with trouble(disk), pytest.raises(OperatorError) as caught:
            with_store(settings, step)
        assert str(disk) in caught.value.message and said in f"{caught.value.message} {caught.value.hint}"
        with Store.open(settings) as store:
            assert (state_at(store, head), content(store, CUSTOMERS)) == before
            assert store.verify().findings == ()
            step(store)
            assert (state_at(store, head), content(store, CUSTOMERS)) == before
    with Store.open(settings) as store:
        assert store.log_start(ORDERS).epoch == 11
        store.maintain()
        assert store.verify().findings == ()
    assert list(disk.rglob(f"*{PARTIAL}")) == []


@pytest.mark.parametrize(("trouble", "said"), TROUBLES)
def test_a_consumer_stops_by_name_and_goes_on_behind_what_it_committed(
    tmp_path: Path, disk: Path, trouble: Trouble, said: str
) -> None:
    settings = settings_of(disk, tmp_path)
    make(settings)
    seen: list[tuple[int, int]] = []

    def consume(store: Store, batches: int) -> None:
        with store.group("g").join("pod", batch_rows=7) as member:
            for _ in range(batches):
                found = member.poll()
                if found is None:
                    return
                found.commit()
                seen.extend((found.partition, offset) for offset in found.rows["_offset"].to_pylist())

    with Store.open(settings) as store:
        consume(store, 3)
    with trouble(disk), pytest.raises(OperatorError) as caught:
        with_store(settings, lambda store: consume(store, 1))
    assert str(disk) in caught.value.message and said in f"{caught.value.message} {caught.value.hint}"
    with Store.open(settings) as store:
        consume(store, 100)
        assert sorted(seen) == sorted(
            (row["_partition"], row["_offset"]) for row in content(store, CUSTOMERS)
        )


@pytest.mark.parametrize(("trouble", "said"), TROUBLES)
def test_a_backup_stops_by_name_leaves_the_one_before_and_is_finished_by_the_next(
    tmp_path: Path, disk: Path, trouble: Trouble, said: str
) -> None:
    settings = settings_of(tmp_path, tmp_path)
    make(settings)
    with Store.open(settings) as store:
        backup(store, disk)
        store.take_over("shop").append(batch(11, orders=[("c", i) for i in range(500)]))
        with trouble(disk), pytest.raises(OperatorError) as caught:
            backup(store, disk)
        assert str(disk) in caught.value.message and said in f"{caught.value.message} {caught.value.hint}"
        with copy_of(disk) as copy:
            assert (copy.verify().findings, len(copy.epochs())) == ((), 10)
        assert backup(store, disk).epoch == 11
        with copy_of(disk) as copy:
            assert copy.verify().findings == () and content(copy) == content(store)


@pytest.mark.parametrize(("trouble", "said"), TROUBLES)
@pytest.mark.parametrize("part", ["catalog", "segments"])
def test_a_redaction_stops_by_name_has_erased_nothing_and_goes_on(
    tmp_path: Path, disk: Path, part: str, trouble: Trouble, said: str
) -> None:
    settings = settings_of(tmp_path if part == "segments" else disk, tmp_path if part == "catalog" else disk)
    make(settings)
    request = RedactionRequest(CUSTOMERS, ["10"])
    with Store.open(settings) as store:
        store.seal()
        before = content(store, CUSTOMERS)
    with trouble(disk), pytest.raises(OperatorError) as caught:
        with_store(settings, lambda store: redact(store, request))
    assert str(disk) in caught.value.message and said in f"{caught.value.message} {caught.value.hint}"
    with Store.open(settings) as store:
        assert content(store, CUSTOMERS) == before and receipts(store) == []
        assert redact(store, request).rows == 1
        assert store.verify().findings == ()
    assert list(disk.rglob(f"*{PARTIAL}")) == []


@pytest.mark.parametrize(("trouble", "said"), TROUBLES)
@pytest.mark.parametrize("part", ["catalog", "segments"])
def test_a_move_stops_by_name_and_goes_on(
    tmp_path: Path, disk: Path, part: str, trouble: Trouble, said: str
) -> None:
    """The disk is that of the new place."""
    here = settings_of(tmp_path, tmp_path)
    there = settings_of(
        disk if part == "catalog" else tmp_path / "there", disk if part == "segments" else tmp_path / "there"
    )
    (tmp_path / "there").mkdir()
    make(here)
    with Store.open(here) as store:
        store.seal()
        before = content(store), content(store, CUSTOMERS)
    with trouble(disk), pytest.raises(OperatorError) as caught:
        move(here, there, tmp_path)
    assert str(disk) in caught.value.message and said in f"{caught.value.message} {caught.value.hint}"
    move(here, there, tmp_path)
    with Store.open(there) as store:
        assert (content(store), content(store, CUSTOMERS)) == before
        assert store.verify().findings == ()
