"""A table loaded beside the stream: what completes it, and when, step by step on a real log."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tailrace.cdc.context import Task
from tailrace.cdc.postgres.slot import ExportedSnapshot
from tailrace.cdc.snapshot.added_tables import AddedTablesLoad
from tailrace.cdc.snapshot.load import LoadResult
from tailrace.cdc.snapshot.topic_load import LoadOutput
from tailrace.cdc.status import CaptureProgress
from tailrace.cdc.stream.append import AppendContext, Appender
from tailrace.cdc.stream.assemble import Assembler
from tailrace.cdc.stream.own_messages import OwnMessages
from tailrace.cdc.stream.queue import Handover
from tailrace.cdc.topics import Topics, TopicsChanged
from tailrace.cdc.wire import authentic, ddl_message
from tailrace.cdc.wire import pgoutput as pg
from tailrace.eventstore.log.sources import register_source, register_topic
from tailrace.eventstore.model.epoch import EpochBatch
from tailrace.eventstore.settings import PostgresSourceSettings, StoreSettings
from tailrace.eventstore.store import Store
from tests.cdc.messages import HUGE, INT4, INT8, SOURCE, TEXT, Stream, Table, decoder, encode, trigger_message
from tests.support.capturing import rows

NOW = datetime(2026, 11, 21, tzinfo=UTC)
LATER = Table(500, "later", [("id", INT8, -1, True), ("n", INT4, -1, False)])
RETYPED = replace(LATER, columns=[LATER.columns[0], ("n", TEXT, -1, False)])
OTHER = Table(501, "other", [("id", INT8, -1, True)])


@dataclass
class AddedTable:
    """The append side of a session that loads ``public.later`` while ``public.other`` is complete."""

    store: Store
    load: AddedTablesLoad
    appender: Appender
    progress: CaptureProgress
    stream: Stream
    assembler: Assembler

    def finish_load(self, point: int) -> None:
        """The load's thread has read the (empty) table at a point."""
        self.load._point = point
        self.load._result = (
            ExportedSnapshot("slot", point, "snapshot"),
            LoadResult((), {LATER.topic: LATER.topic_schema}, 0, NOW),
        )

    def append(self, frames: int | None = None) -> None:
        self.stream.give_to(self.assembler, self.appender, frames)

    def complete(self) -> bool:
        return self.store.topic(LATER.topic).complete_since is not None

    def ids(self) -> list[int]:
        return [row["key"]["id"] for row in rows(self.store, LATER.topic)]


SECRET = bytes(32)


def signed(stream: Stream, message: pg.Message) -> pg.Message:
    """As the trigger signs it in the stream's next transaction."""
    return replace(
        message, content=authentic.sign(SECRET, ddl_message.PREFIX, stream.xid + 1, 0, message.content)
    )


@pytest.fixture
def added(store_dir: Path) -> Iterator[AddedTable]:
    with Store.open(StoreSettings(), create=True, root=store_dir) as store:
        register_source(store.catalog, SOURCE, slot="s", publication="p", system_id="1")
        for table in (LATER, OTHER):
            register_topic(store, table.topic, table.topic_schema)
        writer = store.take_over(SOURCE)
        writer.append(EpochBatch(SOURCE, 0x100, 0x101, 0x101, completes=[OTHER.topic]))
        settings = PostgresSourceSettings(dsn="postgresql://127.0.0.1:1/nobody")
        wanted = {LATER.topic: LATER.topic_schema}
        task = Task.of(store, SOURCE, settings)
        load = AddedTablesLoad(task, writer, wanted)
        context = AppendContext(
            store=store,
            writer=writer,
            decoder=decoder(LATER, OTHER, described=[RETYPED, OTHER]),
            progress=task.progress,
            topics=Topics.read(store, SOURCE),
            own_messages=OwnMessages(
                lambda: ({ddl_message.PREFIX: SECRET}, "9000:9000:"), lambda content: False
            ),
            filled_unseen=lambda relid, column: False,
            loads=[load],
        )
        appender = Appender(context, Handover(HUGE))
        yield AddedTable(store, load, appender, task.progress, Stream(), Assembler(HUGE, HUGE, 0))
        load.close()


def test_rows_since_the_point_follow_the_loaded_ones(added: AddedTable) -> None:
    before = added.stream.transaction(LATER.relation, pg.Insert(500, (b"1", b"5")))
    added.stream.transaction(pg.Insert(500, (b"2", b"6")))
    added.append()
    assert not added.complete()
    added.finish_load(before + 1)
    added.appender.take(None)
    assert added.complete() and added.ids() == [2]


def test_a_load_that_is_ready_waits_for_no_block(added: AddedTable, caplog: pytest.LogCaptureFixture) -> None:
    added.finish_load(0x101)
    added.progress.set_load([LATER.topic.text])
    with caplog.at_level("INFO"):
        added.appender.take(None)
    assert "shop.public.later complete" in caplog.text and added.progress.status().loading == ()
    assert added.complete() and added.ids() == []
    status = added.progress.status()
    assert (status.epochs, status.transactions, status.changes) == (1, 0, 0), "the epoch of no transaction"


def test_many_relations_in_front_of_a_transaction_make_no_epoch_of_their_own(added: AddedTable) -> None:
    added.assembler = Assembler(1, HUGE, 0)
    head = added.store.source(SOURCE)
    added.stream.frames.append(encode(OTHER.relation))
    added.append()
    assert added.assembler.pending_bytes == 0 and added.store.source(SOURCE) == head
    added.assembler = Assembler(HUGE, HUGE, 0)
    added.stream.transaction(pg.Insert(501, (b"1",)))
    added.append()
    assert [row["key"]["id"] for row in rows(added.store, OTHER.topic)] == [1]


def test_rows_held_back_for_many_topics_have_one_limit(added: AddedTable) -> None:
    tables = [replace(RETYPED, relid=600 + number, name=f"held{number}") for number in range(10)]
    for table in tables:
        register_topic(added.store, table.topic, table.topic_schema)
        added.stream.transaction(table.relation, pg.Insert(table.relid, (b"1", b"x" * (10 << 20))))
    task = Task.of(added.store, SOURCE, PostgresSourceSettings(dsn="postgresql://127.0.0.1:1/nobody"))
    wanted = {table.topic: table.topic_schema for table in tables}
    load = AddedTablesLoad(task, added.store.take_over(SOURCE), wanted)
    load.take(decoder(*tables).decode(added.stream.block()).rows, (), LoadOutput())
    assert sum(held.bytes for held in load._held_back.values()) <= 64 << 20
    load.close()


def test_a_load_is_not_completed_inside_a_transaction(added: AddedTable) -> None:
    """One larger than memory comes in parts: half of it must not become visible, nor come twice after a crash."""
    added.stream.transaction(OTHER.relation, pg.Insert(501, (b"1",)))
    added.append()
    point = added.stream.lsn + 1
    added.stream.transaction(LATER.relation, *(pg.Insert(500, (b"%d" % n, b"0")) for n in range(8)))
    added.append(5)
    added.finish_load(point)
    added.appender.take(None)
    assert not added.complete() and added.ids() == []
    added.append()
    assert added.complete() and sorted(added.ids()) == list(range(8))
    assert len({row["_epoch"] for row in rows(added.store, LATER.topic)}) == 1
    added.stream.transaction(*(pg.Insert(500, (b"%d" % n, b"0")) for n in range(8, 16)))
    added.append(5)
    added.append()
    assert sorted(added.ids()) == list(range(16)), "once it is complete, its rows are the log's"


def test_a_table_rewritten_after_its_load_began_is_read_again(added: AddedTable) -> None:
    """The loaded rows have other values since, and no row of the stream says so."""
    point = added.stream.lsn + 1
    added.stream.transaction(RETYPED.relation, pg.Insert(500, (b"1", b"five")))
    added.append()
    added.finish_load(point)
    with pytest.raises(TopicsChanged, match="later"):
        added.appender.take(None)
    assert not added.complete() and added.ids() == []


def test_a_table_rewritten_before_its_load_began_is_complete(added: AddedTable) -> None:
    lsn = added.stream.transaction(RETYPED.relation, pg.Insert(500, (b"1", b"five")))
    added.append()
    added.finish_load(lsn + 1)
    added.appender.take(None)
    assert added.complete() and added.ids() == []


def test_a_version_announced_during_the_load_is_there_when_it_completes(added: AddedTable) -> None:
    """No row needs to follow. What was announced before the point is in the rows that were read."""
    renamed = replace(LATER, columns=[LATER.columns[0], ("before", INT4, -1, False)])
    again = replace(LATER, columns=[LATER.columns[0], ("after", INT4, -1, False)])
    point = added.stream.transaction(signed(added.stream, trigger_message(renamed))) + 1
    added.stream.transaction(signed(added.stream, trigger_message(again)))
    added.append()
    added.finish_load(point)
    added.appender.take(None)
    assert added.complete()
    assert [schema.columns[1].name for schema in added.store.schemas(LATER.topic)] == ["n", "after"]
    added.stream.transaction(again.relation, pg.Insert(500, (b"1", b"5")))
    added.append()
    assert added.ids() == [1] and len(added.store.schemas(LATER.topic)) == 2


def test_a_column_that_only_the_stream_knows_makes_the_topic_be_read_again(added: AddedTable) -> None:
    """Added and dropped again before the catalog could be asked what older rows had in it."""
    wider = replace(OTHER, columns=[*OTHER.columns, ("gone", INT4, -1, False)])
    added.stream.transaction(wider.relation, pg.Insert(501, (b"1", b"5")))
    with pytest.raises(TopicsChanged, match="other"):
        added.append()
    info = added.store.topic(OTHER.topic)
    assert info.complete_since is None and info.reason.startswith("read again")
