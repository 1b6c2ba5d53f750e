"""Which table is a topic's, when tables were renamed and dropped."""

from __future__ import annotations

from pathlib import Path

from tailrace.cdc.topics import Topics
from tailrace.eventstore.log.sources import register_source, register_topic
from tailrace.eventstore.model.epoch import EpochBatch
from tailrace.eventstore.model.schema import Column, TopicSchema
from tailrace.eventstore.model.topic import TopicId
from tailrace.eventstore.settings import StoreSettings
from tailrace.eventstore.store import Store

COLUMNS = (Column(1, "id", 23, type_name="integer", key=True),)


def test_a_table_renamed_to_the_name_of_another_is_that_topics_and_the_first_one_has_none(
    tmp_path: Path,
) -> None:
    with Store.open(StoreSettings(), create=True, root=tmp_path) as store:
        register_source(store.catalog, "shop", slot="s", publication="p", system_id="1")
        first, second = (TopicId.table("shop", "public", name) for name in ("items", "goods"))
        register_topic(store, first, TopicSchema(1, COLUMNS, relid=7))
        register_topic(store, second, TopicSchema(1, COLUMNS, relid=7, from_lsn=100))
        topics = Topics.read(store, "shop")
        assert (topics.relid(first), topics.relid(second)) == (0, 7)
        assert topics.schema(first).relid == topics.schema(second).relid == 7
        assert topics.schemas[7][0] == second


def test_a_table_is_that_topics_whose_version_of_it_the_log_got_later(tmp_path: Path) -> None:
    """Versions that a session takes from the catalog hold from the start, those of the stream from their commit on."""
    with Store.open(StoreSettings(), create=True, root=tmp_path) as store:
        register_source(store.catalog, "shop", slot="s", publication="p", system_id="1")
        first, second = (TopicId.table("shop", "public", name) for name in ("items", "goods"))
        register_topic(store, first, TopicSchema(1, COLUMNS, relid=7))
        register_topic(store, second, TopicSchema(1, COLUMNS, relid=8))
        writer = store.take_over("shop")
        renamed = TopicSchema(2, COLUMNS, relid=7, from_lsn=500)
        for lsn, version in ((500, (first, renamed)), (600, (second, TopicSchema(2, COLUMNS, relid=7)))):
            writer.append(EpochBatch("shop", lsn, lsn + 1, lsn + 1, new_schemas=[version]))
        topics = Topics.read(store, "shop")
        assert (topics.relid(first), topics.relid(second)) == (0, 7)
