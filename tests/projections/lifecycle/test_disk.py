"""A disk that is full or read-only, under catalog, log or sink: refreshes and rebuilds stop by name, readers keep what
they have, and it goes on where it stopped when the disk is mended."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, TypeVar

import pytest
from pydantic import SecretStr

from tailrace.eventstore.errors import OperatorError, TailraceError
from tailrace.eventstore.settings import Settings, SinkSettings
from tailrace.eventstore.store import Store
from tailrace.projections import Projection
from tailrace.projections.context import ProjectionContext
from tailrace.projections.generations.generation import files_of
from tailrace.projections.lifecycle.build import Rebuilt, rebuild
from tailrace.projections.lifecycle.catch_up import refresh
from tailrace.projections.lifecycle.verify import verify
from tailrace.projections.sinks.open import open_sink
from tailrace.projections.sinks.specs import PostgresTable
from tests.fixtures.servers import ServerFactory
from tests.projections.lifecycle.test_lifecycle import TOTALS
from tests.projections.shoplog import ShopLog, settings_in
from tests.projections.sinks.sink_data import apply, fence, rows_of, target
from tests.projections.sinks.sink_data import fill as fill_sink
from tests.support.disks import filled, mounted, read_only

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.servers
T = TypeVar("T")
Trouble = Callable[[Path], AbstractContextManager[None]]
TROUBLES = [pytest.param(filled, id="full"), pytest.param(read_only, id="read-only")]
SINKS = {
    "parquet": 'ParquetFolder("lake")',
    "search": 'SearchIndex("search", fields={"customer_id": "i64"})',
}


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with mounted(tmp_path / "disk") as folder:
        yield folder


@pytest.fixture
def settings(tmp_path: Path, disk: Path, database: str, redis_url: str, part: str) -> Settings:
    """That part of it all is on the disk."""
    given = settings_in(tmp_path, dsn=database, redis_url=redis_url)

    def place(name: str) -> Path:
        return disk if name == part else tmp_path

    store = {
        "catalog": f"sqlite:///{place('catalog')}/catalog.db",
        "segments": place("segments") / "segments",
    }
    sinks = {
        "lake": SinkSettings(kind="parquet", path=place("parquet") / "lake"),
        "search": SinkSettings(kind="search", path=place("search") / "search"),
    }
    return given.model_copy(
        update={"store": given.store.model_copy(update=store), "sinks": {**given.sinks, **sinks}}
    )


@pytest.fixture
def totals(define: Callable[[str], Mapping[str, Projection]], part: str) -> Mapping[str, Projection]:
    sink = SINKS.get(part, 'PostgresTable("mart", "totals")')
    source = TOTALS.replace('PostgresTable("mart", "totals")', sink)
    return define(source.replace("PostgresTable,", f"{sink.partition('(')[0]},"))


class Process:
    """What opens the store anew each time, as a process of its own does."""

    def __init__(self, settings: Settings, projections: Mapping[str, Projection]) -> None:
        self._settings, self._projections = settings, projections

    def does(self, work: Callable[[ProjectionContext], T]) -> T:
        with Store.open(self._settings.store) as store:
            return work(ProjectionContext(store, self._settings, self._projections))

    def refreshes(self) -> None:
        def work(ctx: ProjectionContext) -> None:
            (outcome,) = refresh(ctx)
            if outcome.error is not None:
                raise outcome.error

        self.does(work)

    def rebuilds(self) -> Rebuilt:
        return self.does(lambda ctx: rebuild(ctx, "totals"))

    def shows(self) -> tuple[int, int]:
        """Generation and epoch of what readers have, which is right."""
        found = self.does(lambda ctx: verify(ctx, "totals"))
        assert found.equal
        return found.generation, found.epoch

    def stops(self, work: Callable[[], object], disk: Path) -> None:
        with pytest.raises(TailraceError) as caught:
            work()
        said = f"{caught.value.message} {caught.value.hint}"
        assert str(disk) in said and caught.value.hint, said
        assert any(
            word in said.lower() for word in ("space", "disk is full", "read-only", "readonly", "writ")
        ), said
        assert "tailrace rebuild" not in said and "as a new generation" not in said, said


@pytest.mark.parametrize("trouble", TROUBLES)
@pytest.mark.parametrize("part", ["catalog", "segments", "parquet", "search"])
def test_refresh_and_rebuild_stop_by_name_and_go_on(
    settings: Settings, totals: Mapping[str, Projection], disk: Path, spark: SparkSession, trouble: Trouble
) -> None:
    process = Process(settings, totals)
    with Store.open(settings.store, create=True) as store:
        shop = ShopLog.start(store)
        shop.fill()
        head = refresh(ProjectionContext(store, settings, totals))[0].epoch
        newest = shop.commit({"orders": [("c", shop.order(100))]})

    with trouble(disk):
        process.stops(process.refreshes, disk)
    assert process.shows() == (1, head)
    process.refreshes()
    assert process.shows() == (1, newest)

    with trouble(disk):
        process.stops(process.rebuilds, disk)
    assert process.shows() == (1, newest)
    assert process.rebuilds().generation == 2
    assert process.shows() == (2, newest)

    def leftovers(ctx: ProjectionContext) -> set[str]:
        steps = [step for number in (1, 2) for step in ctx.store.steps.list("totals", number)]
        named = set().union(*(files_of(step).paths() for step in steps))
        return set(ctx.store.storage.list("derived")) - named

    assert process.does(leftovers) == set()


def test_a_postgres_sink_whose_server_has_no_room_says_so_and_goes_on(postgres_server: ServerFactory) -> None:
    rows = [{"customer_id": n, "name": "x" * 1000, "total": None} for n in range(5000)]
    changed = [row | {"name": "y" * 1000} for row in rows[:2000]]
    # Where the server's user, who is not root, can reach it.
    with TemporaryDirectory(dir="/var/tmp") as folder:
        Path(folder).chmod(0o755)
        with mounted(Path(folder) / "data", mib=256) as disk, ExitStack() as stack:
            server = postgres_server(data_dir=disk)
            stack.callback(server.stop)
            sinks = {"mart": SinkSettings(kind="postgres", dsn=SecretStr(server.dsn()))}
            sink = open_sink(PostgresTable("mart", "totals"), Settings(sinks=sinks))
            fill_sink(sink, target(1), rows)
            sink.promote(target(1), None)

            def refused(work: Callable[[], object]) -> None:
                with filled(disk), pytest.raises(OperatorError, match="No space left on device") as caught:
                    work()
                assert "sink 'mart'" in caught.value.message
                assert caught.value.hint == "make room on the server"

            refused(lambda: apply(sink, target(1), 10, 11, changed))
            assert sink.fence(target(1)) == fence(target(1), 10) and rows_of(sink, target(1)) == rows
            apply(sink, target(1), 10, 11, changed)
            assert rows_of(sink, target(1)) == changed + rows[2000:]

            refused(lambda: fill_sink(sink, target(2), rows))
            assert sink.fence(target(2)) is None
            assert sink.live("acme", "customer_totals") == 1
            fill_sink(sink, target(2), rows)
            sink.promote(target(2), 1)
            assert rows_of(sink, target(2)) == rows
