"""A store moves whole or not at all, is in one place at any time, and what is left behind takes nothing more."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

from tailrace.eventstore import failpoints
from tailrace.eventstore.catalog import tables
from tailrace.eventstore.errors import (
    Fenced,
    IntegrityError,
    MissingFile,
    OperatorError,
    TailraceError,
    UsageError,
)
from tailrace.eventstore.log.sources import register_topic
from tailrace.eventstore.maintenance.move.move import MoveResult, open_move
from tailrace.eventstore.metadata import named_files
from tailrace.eventstore.metadata.run_records import RunRecord
from tailrace.eventstore.model.topic import TopicId
from tailrace.eventstore.settings import StoreSettings
from tailrace.eventstore.store import Store
from tests.eventstore.maintenance.files.test_seal import everything, fill
from tests.eventstore.shop import CUSTOMERS, ORDERS, SCHEMA, at, batch, content
from tests.support.folders import segments_folder
from tests.support.object_store import S3Server

RUN = RunRecord("totals", 1, at(0), at(1), 0, 1, "full", "first build", 1, 0)
HERE = StoreSettings(catalog="sqlite:///catalog.db", segments="segments", inline_bytes=3500)


def move(settings: StoreSettings, target: StoreSettings, root: Path) -> MoveResult:
    with open_move(settings, target, root) as found:
        return found.run(lambda text: None, lambda *done: None)


def abandon(settings: StoreSettings, target: StoreSettings, root: Path) -> None:
    with open_move(settings, target, root) as found:
        found.abandon()


@pytest.fixture
def remote(store_dir: Path, database: str, s3: S3Server, bucket: str) -> StoreSettings:
    """Where to: Postgres and an object store."""
    return HERE.model_copy(update={"catalog": database, "segments": f"s3://{bucket}/moved"})


def other_store(number: int = 2) -> StoreSettings:
    """Another embedded store in the same folder."""
    return HERE.model_copy(
        update={"catalog": f"sqlite:///catalog{number}.db", "segments": Path(f"segments{number}")}
    )


def contents_of(store: Store) -> dict[str, Any]:
    """What must be the same in every place."""
    with store.catalog.read() as connection:
        names = [each.path for each in named_files.named_files(connection)]
    group = store.group("invoicing")
    return {
        "log": store.log_id,
        "epochs": store.epochs(limit=10_000),
        "rows": everything(store),
        "topics": store.topics(),
        "schemas": store.schemas(ORDERS),
        "sources": store.sources(),
        "files": names,
        "group": [replace(each, lag_seconds=0.0) for each in group.progress()],
        "runs": store.run_records.latest("totals"),
        "parts": store.cut(7),
    }


def fill_all(store: Store) -> None:
    """Small and large epochs, sealed ones, schema versions, a group in the middle, a generation of a projection."""
    fill(store)
    store.seal(12)
    store.run_records.add(RUN)
    group = store.group("invoicing", ["shop.public.*"], start="earliest")
    with group.join("pod") as member:
        each = member.poll()
        assert each is not None
        each.commit()


def test_a_store_moves_to_postgres_and_objects_and_back_and_goes_on(
    store_dir: Path, remote: StoreSettings
) -> None:
    with Store.open(HERE, create=True, root=store_dir) as store:
        fill_all(store)
        store.collect_orphans()
        before = contents_of(store)
    moved = move(HERE, remote, store_dir)
    assert moved.files.files == moved.files.written == len(before["files"]) > 2
    assert moved.rows["epochs"] == len(before["epochs"])
    with Store.open(remote, root=store_dir) as store:
        assert contents_of(store) == before
        again = store.take_over("shop")
        again.append(batch(1000, orders=[("c", 1000)]))
        register_topic(
            store, TopicId.table("shop", "public", "later"), SCHEMA
        )  # numbered behind those that came
        assert store.maintain().sealed_epochs
        assert store.verify().findings == ()
        after = contents_of(store)
    back = other_store()
    move(remote, back, store_dir)
    with Store.open(back, root=store_dir) as store:
        assert contents_of(store) == after
        assert [row["_lsn"] for row in content(store)][-1] == 1000
        store.take_over("shop").append(batch(1001, customers=[("c", 1)]))
        assert content(store, CUSTOMERS)[-1]["_lsn"] == 1001
        assert store.verify().findings == ()


def test_what_is_left_behind_takes_nothing_more_and_says_where_the_store_went(
    store_dir: Path, remote: StoreSettings
) -> None:
    with Store.open(HERE, create=True, root=store_dir) as store:
        fill_all(store)
        capture = store.take_over("shop")
        group = store.group("invoicing")
        with ExitStack() as joined:
            member = joined.enter_context(group.join("pod"))
            given = member.poll()
            assert given is not None
            move(HERE, remote, store_dir)
            late: list[Any] = [
                lambda: capture.append(batch(2000, orders=[("c", 1)])),
                lambda: store.take_over("shop"),
                lambda: store.seal(),
                lambda: store.maintain(),
                lambda: store.run_records.add(RUN),
                given.commit,
                lambda: joined.close(),
                lambda: store.group("another", ["shop.*"]),
                lambda: next(store.follow(after_epoch=10_000, timeout=5)),
                lambda: Store.open(HERE, root=store_dir),
                lambda: Store.open(HERE, create=True, root=store_dir),
                lambda: Store.open(remote.model_copy(update={"segments": HERE.segments}), root=store_dir),
            ]
            for attempt in late:
                with pytest.raises(TailraceError, match=r"moved to|log-id"):
                    attempt()
    with Store.open(remote, root=store_dir) as store:
        assert store.group("invoicing").progress()


def test_an_old_postgres_catalog_is_closed_as_well(store_dir: Path, remote: StoreSettings) -> None:
    with Store.open(remote, create=True, root=store_dir) as store:
        fill_all(store)
        capture = store.take_over("shop")
        move(remote, other_store(), store_dir)
        with pytest.raises(Fenced, match=r"moved to catalog .*catalog2.db, segments in .*segments2"):
            capture.append(batch(2000, orders=[("c", 1)]))
    with pytest.raises(OperatorError, match=r"was moved to catalog .*catalog2.db"):
        Store.open(remote, root=store_dir)


def test_a_move_that_cannot_be_is_refused_before_anything_is_closed(store_dir: Path) -> None:
    with Store.open(HERE, create=True, root=store_dir) as store:
        fill_all(store)
        with pytest.raises(UsageError, match="there already"):
            move(HERE, other_store().model_copy(update={"catalog": HERE.catalog}), store_dir)
        Store.open(other_store(3), create=True, root=store_dir).close()
        for target, what in (
            (other_store(2).model_copy(update={"segments": Path("segments3")}), "belong to another log"),
            (other_store(2).model_copy(update={"segments": Path(".")}), "holds other files"),
        ):
            with pytest.raises(OperatorError, match=what):
                move(HERE, target, store_dir)
        with Store.open(other_store(4), create=True, root=store_dir) as other:
            fill(other, 2)
        with pytest.raises(OperatorError, match="holds another log"):
            move(HERE, other_store(5).model_copy(update={"catalog": other_store(4).catalog}), store_dir)
        with store.pinned("verifying"), pytest.raises(OperatorError, match="in use: verifying by"):
            move(HERE, other_store(6), store_dir)
        store.take_over("shop").append(batch(2000, orders=[("c", 1)]))
        with pytest.raises(OperatorError, match="a log is being moved here from"):
            Store.open(other_store(6), root=store_dir)


@pytest.mark.parametrize("harm", ["damaged", "missing"])
def test_a_damaged_file_stops_a_move_which_can_be_given_up_or_ended_when_it_is_mended(
    store_dir: Path, harm: str
) -> None:
    with Store.open(HERE, create=True, root=store_dir) as store:
        fill_all(store)
        before = contents_of(store)
        file = segments_folder(store) / before["files"][1]
        content_of_it = file.read_bytes()
        file.unlink() if harm == "missing" else file.write_bytes(content_of_it[:-1] + b"?")
        with pytest.raises(MissingFile if harm == "missing" else IntegrityError, match=file.name):
            move(HERE, other_store(), store_dir)
        with pytest.raises(OperatorError, match="is being moved to"):
            Store.open(HERE, root=store_dir)
        abandon(HERE, other_store(), store_dir)
        store.take_over("shop")
        file.write_bytes(content_of_it)
        before = contents_of(store)
    move(HERE, other_store(), store_dir)
    with pytest.raises(OperatorError, match="already"):
        abandon(HERE, other_store(), store_dir)
    with Store.open(other_store(), root=store_dir) as store:
        assert contents_of(store) == before


@pytest.mark.slow
def test_of_two_movers_the_one_that_was_overtaken_changes_nothing_in_the_new_place(
    store_dir: Path, remote: StoreSettings
) -> None:
    """Its copy of the catalog would take away what was written there since."""
    with Store.open(HERE, create=True, root=store_dir) as store:
        fill_all(store)
    be_overtaken(HERE, other_store(), store_dir)
    be_overtaken(other_store(), remote, store_dir)


def be_overtaken(source: StoreSettings, target: StoreSettings, root: Path) -> None:
    after: list[dict[str, Any]] = []

    def overtaken(step: str) -> None:
        if step == "copying the catalog":
            move(source, target, root)
            with Store.open(target, root=root) as store:
                store.take_over("shop").append(batch(5000 + store.cut().epoch, orders=[("c", 1)]))
                after.append(contents_of(store))

    with open_move(source, target, root) as slower, pytest.raises(Fenced, match="another process continued"):
        slower.run(overtaken, lambda *done: None)
    with Store.open(target, root=root) as store:
        assert [contents_of(store)] == after
        assert store.verify().findings == ()


def test_a_mover_from_before_an_abandoned_move_does_not_open_the_new_place(
    store_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was written to the old place since is not in its copy."""
    with Store.open(HERE, create=True, root=store_dir) as store:
        fill_all(store)
    passed = failpoints.hit

    def overtaken(name: str) -> None:
        passed(name)
        if name != "move_rows_copied":
            return
        monkeypatch.setattr(failpoints, "hit", passed)
        abandon(HERE, other_store(), store_dir)
        with Store.open(HERE, root=store_dir) as store:
            store.take_over("shop").append(batch(2000, orders=[("c", 2000)]))
        with open_move(HERE, other_store(), store_dir) as later:
            later._close()

    monkeypatch.setattr(failpoints, "hit", overtaken)
    with pytest.raises(Fenced, match="abandoned, and begun again"):
        move(HERE, other_store(), store_dir)
    with pytest.raises(OperatorError, match="not complete"):
        Store.open(other_store(), root=store_dir)
    move(HERE, other_store(), store_dir)
    with Store.open(other_store(), root=store_dir) as store:
        assert content(store)[-1]["_lsn"] == 2000


def test_every_table_that_names_files_is_known_to_the_move() -> None:
    naming = {table.name for table in tables.metadata.sorted_tables if "path" in table.c}
    others = {tables.retired.name, tables.archived.name, tables.archiving.name}
    assert naming == {table.name for table in named_files.NAMING} | others
    assert select(tables.derived.c.files) is not None
