"""A store with a shop in it, and contexts that work on its projections with real sinks."""

from __future__ import annotations

import itertools
import textwrap
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tailrace.eventstore.log.sources import register_topic
from tailrace.eventstore.metadata.projection_steps import DerivedRun
from tailrace.eventstore.model.position import Cut
from tailrace.eventstore.model.schema import Column, TopicSchema
from tailrace.eventstore.settings import Settings
from tailrace.eventstore.store import Store
from tailrace.projections import Projection, load_projections
from tailrace.projections.analysis.analyse import Analysis, analyse
from tailrace.projections.analysis.followed import followed
from tailrace.projections.context import ProjectionContext
from tailrace.projections.generations.generation import Generation
from tailrace.projections.refresh.plan import Full
from tailrace.projections.refresh.step import take_step
from tailrace.projections.refresh.step_input import StepInput
from tests.projections.shoplog import ShopLog, settings_in, standing_still, topic

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Deploy = Callable[..., ProjectionContext]
Analyse = Callable[[Projection], Analysis]
_numbers = itertools.count()
READINGS = TopicSchema(
    1,
    (
        Column(1, "id", 20, type_name="bigint", key=True),
        Column(2, "meter", 20, type_name="bigint"),
        Column(3, "level", 701, type_name="double precision"),
        Column(4, "price", 1700, type_name="numeric"),
    ),
)


def commit_step(
    ctx: ProjectionContext, projection: Projection, generation: Generation, cut: Cut
) -> DerivedRun:
    """Compute the whole result and commit it as the next step, without bringing it to the sink."""
    last = ctx.store.steps.last(generation.projection, generation.number)
    decided = Full(last.to_epoch if last else 0, cut.epoch, "asked for")
    return take_step(StepInput(ctx, projection, generation, cut), decided).run


@pytest.fixture
def settings(tmp_path: Path, database: str, redis_url: str) -> Settings:
    return settings_in(tmp_path, dsn=database, redis_url=redis_url)


@pytest.fixture
def store(settings: Settings) -> Iterator[Store]:
    with Store.open(settings.store, create=True) as opened:
        yield opened


@pytest.fixture
def shop(store: Store) -> ShopLog:
    """A loaded shop with some rows."""
    shop = ShopLog.start(store)
    shop.fill()
    return shop


@pytest.fixture
def define(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Mapping[str, Projection]]:
    """Loads projections from source text, as a deploy of that text would: each time as a module of its own."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def load(source: str) -> Mapping[str, Projection]:
        module = f"deployed_{next(_numbers)}"
        (tmp_path / f"{module}.py").write_text(textwrap.dedent(source))
        return load_projections([module], root=tmp_path)

    return load


@pytest.fixture
def deploy(
    store: Store, settings: Settings, spark: SparkSession, define: Callable[[str], Mapping[str, Projection]]
) -> Deploy:
    """A context with the demo's projections, or with those of a source text."""

    def context(source: str | None = None) -> ProjectionContext:
        projections = define(source) if source else load_projections(["tailrace.demo.shop.projections"])
        return ProjectionContext(store, settings, projections, clock=standing_still)

    return context


@pytest.fixture(scope="session")
def empty_shop(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProjectionContext]:
    """A shop whose tables are known and empty; beside them one of readings. Nothing is written to it."""
    settings = settings_in(
        tmp_path_factory.mktemp("shop"), dsn="postgresql:///nowhere", redis_url="redis://no"
    )
    with Store.open(settings.store, create=True) as store:
        ShopLog.start(store)
        register_topic(store, topic("readings"), READINGS)
        yield ProjectionContext(store, settings, {})


@pytest.fixture(scope="session")
def analysed(spark: SparkSession, empty_shop: ProjectionContext) -> Analyse:
    """What the plan of a projection of that shop says."""
    store = empty_shop.store
    return lambda defined: analyse(spark, store, followed(store, defined))
