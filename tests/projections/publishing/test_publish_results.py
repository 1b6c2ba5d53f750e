"""A projection's result is in Kafka: whoever keeps the last record of each key has what readers of its sink see, and
nothing comes twice."""

from __future__ import annotations

import json
import secrets
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tailrace.embedded import KafkaServer
from tailrace.eventstore.errors import HistoryGone, OperatorError, UsageError
from tailrace.eventstore.failpoints import VARIABLE
from tailrace.eventstore.metadata.publications import forget
from tailrace.eventstore.publishing.publisher import Publisher
from tailrace.eventstore.settings import StoreSettings
from tailrace.projections.context import ProjectionContext
from tailrace.projections.lifecycle.build import rebuild
from tailrace.projections.lifecycle.catch_up import refresh
from tailrace.projections.lifecycle.collect import gc
from tailrace.projections.lifecycle.promote import rollback
from tailrace.projections.publishing.result_feed import ResultFeed
from tailrace.projections.refresh import prune as pruning
from tailrace.status import publication_status
from tests.eventstore.publishing.publications import Publication, committed
from tests.projections.conftest import Deploy
from tests.projections.shoplog import ShopLog
from tests.tailrace.conftest import Project

pytestmark = pytest.mark.servers
TOTALS = """
    from pyspark.sql import functions as F
    from tailrace.projections import ParquetFolder, State, projection

    @projection(
        key="customer_id", sink=ParquetFolder("lake"),
        orders=State("shop.public.orders", affects="customer_id"))
    def totals(orders):
        return orders.groupBy("customer_id").agg(F.sum("amount").alias("total"))
"""
OTHERS = TOTALS.replace(
    'F.sum("amount")',
    'F.when(F.col("customer_id") % 2 == 0, F.sum("amount")).otherwise(F.lit("0").cast("decimal(22,2)"))',
)
LARGE = "aggregate(sequence(1, cast(count(amount) as int) * 150), '', (text, n) -> concat(text, sha2(string(n), 512)))"
STEPS = ["portion_read", "portion_sent", "publication_committing", "portion_published"]


class Totals(Publication):
    """The publication of ``totals``."""

    @classmethod
    def of(cls, server: KafkaServer, **settings: Any) -> Publication:
        name = f"p{secrets.token_hex(4)}"
        wanted = {"topics": (), "projection": "totals", "topic": f"{name}.{{projection}}", **settings}
        return Publication.new(server, **wanted)


def publisher(feed: Publication, ctx: ProjectionContext, **more: Any) -> Publisher:
    return feed.publisher(ctx.store, feed=ResultFeed(ctx.store, feed.name, feed.settings), **more)


def publish(feed: Publication, ctx: ProjectionContext) -> int:
    """How many records came of it."""
    reports: list[int] = []
    publisher(feed, ctx, report=lambda counts: reports.append(counts.records)).run_once()
    return sum(reports)


def topic_of(feed: Publication) -> str:
    return feed.settings.topic.replace("{projection}", "totals")


def kept(feed: Publication) -> dict[int, Any]:
    """What a compacted topic keeps, by key."""
    found: dict[int, Any] = {}
    for record in committed(feed.cluster, topic_of(feed)):
        key = json.loads(record.key or b"")["customer_id"]
        found.pop(key, None)
        if record.value is not None:
            found[key] = json.loads(record.value)["total"]
    return found


def shown(ctx: ProjectionContext) -> dict[int, Any]:
    """What readers of the sink see."""
    live = ctx.live("totals")
    assert live is not None
    rows = [row for batch in ctx.sink(live).scan(ctx.target(live)) for row in batch.to_pylist()]
    return {row["customer_id"]: str(row["total"]) for row in rows}


def test_all_rows_come_first_then_what_each_refresh_changed(
    shop: ShopLog, deploy: Deploy, kafka: KafkaServer
) -> None:
    ctx, feed = deploy(TOTALS), Totals.of(kafka, partitions=3, compact=True)
    refresh(ctx)
    assert publish(feed, ctx) == len(shown(ctx))
    assert kept(feed) == shown(ctx)
    assert publish(feed, ctx) == 0
    shop.commit({"orders": [("c", shop.order(900, customer_id=1))]})
    refresh(ctx)
    assert publish(feed, ctx) == 1
    gone = [row for row in shop.state["orders"].values() if row["customer_id"] == 1]
    shop.commit({"orders": [("d", row) for row in gone]})
    refresh(ctx)
    assert publish(feed, ctx) == 1
    assert kept(feed) == shown(ctx) and 1 not in kept(feed)


def test_status_says_how_many_steps_are_not_published(
    shop: ShopLog, deploy: Deploy, kafka: KafkaServer
) -> None:
    ctx, feed = deploy(TOTALS), Totals.of(kafka)
    settings = ctx.settings.model_copy(
        update={
            "store": ctx.settings.store.model_copy(update={"name": StoreSettings().name}),
            "destinations": {"bus": feed.cluster},
            "publish": {feed.name: feed.settings},
        }
    )
    found = []
    for number in (900, 901, 902):
        refresh(ctx)
        status = publication_status(ctx.store, feed.name, settings)
        found.append((status.state, status.waiting, status.epoch))
        publish(feed, ctx)
        shop.commit({"orders": [("c", shop.order(number, customer_id=1))]})
    status = publication_status(ctx.store, feed.name, settings)
    assert found[0] == ("nothing is published yet", 1, 0)
    assert [each[:2] for each in found[1:]] == [("behind", 1)] * 2
    assert (status.state, status.waiting) == ("up to date", 0)


def test_a_promotion_and_its_way_back_send_only_what_differs(
    shop: ShopLog, deploy: Deploy, kafka: KafkaServer
) -> None:
    ctx, feed = deploy(TOTALS), Totals.of(kafka)
    refresh(ctx)
    publish(feed, ctx)
    before = shown(ctx)
    other = deploy(OTHERS)
    rebuild(other, "totals")
    changed = sum(before[key] != value for key, value in shown(other).items())
    assert 0 < changed < len(before)
    assert publish(feed, other) == changed
    assert kept(feed) == shown(other)
    assert [each.generation for each in gc(other, "totals", keep=0)] == [1], "it is not needed any more"
    rebuild(ctx, "totals")
    rollback(other, "totals")
    assert publish(feed, other) == 0
    assert kept(feed) == shown(other)


@pytest.mark.parametrize("step", STEPS)
def test_a_publisher_killed_at_any_step_repeats_and_loses_nothing(
    shop: ShopLog, deploy: Deploy, kafka: KafkaServer, tmp_path: Path, step: str
) -> None:
    ctx, feed = deploy(TOTALS), Totals.of(kafka, partitions=2, transaction_bytes=1)
    refresh(ctx)
    project = of_store(feed, ctx, tmp_path)
    killed = project.run("publish", feed.name, "--once", environment={VARIABLE: f"{step}:3"})
    assert killed.code == -9, killed.err
    project.ok("publish", feed.name, "--once")
    records = list(committed(feed.cluster, topic_of(feed)))
    assert len(records) == len({each.key for each in records}) == len(shown(ctx))
    assert kept(feed) == shown(ctx)


def of_store(feed: Publication, ctx: ProjectionContext, folder: Path) -> Project:
    folder = folder / "project"
    folder.mkdir()
    project = feed.project(folder)
    text = (folder / "tailrace.toml").read_text()
    store = ctx.settings.store
    text = text.replace("sqlite:///catalog.db", str(store.catalog)).replace(
        "segments = 'segments'", f"segments = '{store.segments}'\nname = '{store.name}'"
    )
    (folder / "tailrace.toml").write_text(text)
    return project


def test_what_began_is_finished_although_another_generation_was_promoted_meanwhile(
    shop: ShopLog, deploy: Deploy, kafka: KafkaServer
) -> None:
    ctx, feed = deploy(TOTALS), Totals.of(kafka, transaction_bytes=1)
    refresh(ctx)
    first = publisher(feed, ctx)
    first._report = lambda _: first._stop.set()  # after the first of its transactions
    first.run_once()
    assert len(kept(feed)) == 1
    other = deploy(OTHERS)
    rebuild(other, "totals")
    assert gc(other, "totals", keep=0) == [], "the publication goes on from it"
    with pytest.raises(UsageError, match="goes on from generation 1") as refused:
        gc(other, "totals", number=1)
    assert f"tailrace publish --forget {feed.name}" in (refused.value.hint or "")
    publish(feed, other)
    assert kept(feed) == shown(other)


def test_steps_stay_until_they_are_published_or_the_publication_is_forgotten(
    shop: ShopLog, deploy: Deploy, kafka: KafkaServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pruning, "_STEPS_RETAINED", 2)
    ctx, feed = deploy(TOTALS), Totals.of(kafka)
    refresh(ctx)
    publish(feed, ctx)
    for number in range(900, 906):
        shop.commit({"orders": [("c", shop.order(number, customer_id=number % 3 + 1))]})
        refresh(ctx)
    assert len(ctx.store.steps.list("totals", 1)) == 7
    assert publish(feed, ctx) == 3, "one for each key"
    assert kept(feed) == shown(ctx)
    forget(ctx.store.groups_database, feed.name)
    for number in range(906, 912):
        shop.commit({"orders": [("c", shop.order(number, customer_id=1))]})
        refresh(ctx)
    assert len(ctx.store.steps.list("totals", 1)) < 4
    with pytest.raises(HistoryGone, match="was passed by retention"):
        publish(feed, ctx)


def test_a_row_that_is_too_large_waits_until_it_has_become_smaller(
    shop: ShopLog, deploy: Deploy, kafka: KafkaServer
) -> None:
    source = TOTALS.replace('F.sum("amount")', f'F.expr("{LARGE}")')
    ctx, feed = deploy(source), Totals.of(kafka)
    topic = topic_of(feed)
    make_small(feed, topic)
    shop.commit({"orders": [("c", shop.order(900 + n, customer_id=700)) for n in range(4)]})
    shop.commit({"orders": [("c", shop.order(950, customer_id=701))]})
    refresh(ctx)
    publish(feed, ctx)
    status = publisher(feed, ctx)
    status.run_once()
    assert status.progress.parked >= 1 and 700 not in kept(feed) and 701 in kept(feed)
    waiting = status.progress.parked
    shop.commit({"orders": [("d", shop.state["orders"][900 + n]) for n in range(3)]})
    refresh(ctx)
    publish(feed, ctx)
    again = publisher(feed, ctx)
    again.run_once()
    assert again.progress.parked == waiting - 1
    assert kept(feed)[700] == shown(ctx)[700]


def make_small(feed: Publication, topic: str) -> None:
    from kafka.admin import KafkaAdminClient

    admin = KafkaAdminClient(bootstrap_servers=list(feed.cluster.brokers))
    admin.create_topics(
        {topic: {"num_partitions": 1, "configs": {"max.message.bytes": "50000"}}}, wait_for_metadata=True
    )
    admin.close()


def test_what_cannot_be_published_is_said(shop: ShopLog, deploy: Deploy, kafka: KafkaServer) -> None:
    ctx, feed = deploy(TOTALS), Totals.of(kafka)
    with pytest.raises(UsageError, match="projection 'totals' was never built"):
        publish(feed, ctx)
    refresh(ctx)
    wrong = replace(feed, settings=feed.settings.model_copy(update={"projection": "totls"}))
    with pytest.raises(UsageError, match="'totls' was never built") as refused:
        publish(wrong, ctx)
    assert "totals" in (refused.value.hint or "")
    publish(feed, ctx)
    topics = feed.settings.model_copy(update={"projection": None, "topics": ("shop.public.*",)})
    with pytest.raises(OperatorError, match="holds the position of a projection"):
        replace(feed, settings=topics).once(ctx.store)
