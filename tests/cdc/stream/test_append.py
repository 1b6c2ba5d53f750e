"""The append side of a session on a real log, without a server: what of a block becomes visible, and what does not."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tailrace.cdc.columnar.decode import BlockDecoder
from tailrace.cdc.columnar.schema_change import ChangeKind, SchemaChange
from tailrace.cdc.context import Task
from tailrace.cdc.policy.patterns import parse_pattern
from tailrace.cdc.policy.policies import Policies
from tailrace.cdc.snapshot.chunk_apply import BEGIN_PREFIX
from tailrace.cdc.snapshot.chunk_load import ChunkedLoad
from tailrace.cdc.status import CaptureProgress
from tailrace.cdc.stream.append import AppendContext, Appender, _describe
from tailrace.cdc.stream.assemble import Assembler
from tailrace.cdc.stream.own_messages import OwnMessages
from tailrace.cdc.stream.queue import ForgedMessages, Handover, ThroughPosition
from tailrace.cdc.stream.redecode import Redecoding
from tailrace.cdc.topics import Topics, TopicsChanged
from tailrace.cdc.wire import authentic, ddl_message
from tailrace.cdc.wire import pgoutput as pg
from tailrace.eventstore import failpoints
from tailrace.eventstore.log.sources import register_source, register_topic
from tailrace.eventstore.metadata import quarantine
from tailrace.eventstore.metadata.generations import InputNeed, NewGeneration
from tailrace.eventstore.metadata.refused_messages import refused_messages
from tailrace.eventstore.model.epoch import EpochBatch, Load, LoadRange, QuarantinedTopic
from tailrace.eventstore.model.topic import TopicId
from tailrace.eventstore.settings import PostgresSourceSettings, StoreSettings
from tailrace.eventstore.store import Store
from tests.cdc.columnar.test_ddl import change_message
from tests.cdc.messages import EVENT_ROW, EVENTS, HUGE, INT4, INT8, SOURCE, Stream, Table, trigger_message
from tests.support.capturing import rows

A = Table(500, "a", [("id", INT8, -1, True)])
B = Table(501, "b", [("id", INT8, -1, True)])
WIDER = replace(A, columns=[*A.columns, ("n", INT4, -1, False)])
SECRET = bytes(32)


@dataclass
class Rig:
    """The append side of a session that captures ``public.a`` and ``public.b``."""

    store: Store
    appender: Appender
    progress: CaptureProgress
    stream: Stream
    assembler: Assembler

    def give(self, frames: int | None = None) -> None:
        self.stream.give_to(self.assembler, self.appender, frames)

    def ids(self, table: Table) -> list[int]:
        return [row["key"]["id"] for row in rows(self.store, table.topic)]

    def signed(self, message: pg.Message) -> pg.Message:
        """As the trigger signs it in the stream's next transaction."""
        content = authentic.sign(SECRET, ddl_message.PREFIX, self.stream.xid + 1, 0, message.content)
        return replace(message, content=content)

    def counts(self) -> tuple[int, int, int]:
        status = self.progress.status()
        return status.epochs, status.transactions, status.changes


@pytest.fixture
def store(store_dir: Path) -> Iterator[Store]:
    with Store.open(StoreSettings(), create=True, root=store_dir) as store:
        register_source(store.catalog, SOURCE, slot="s", publication="p", system_id="1")
        for table in (A, B):
            register_topic(store, table.topic, table.topic_schema)
        yield store


def rig_of(
    store: Store,
    complete: Sequence[Table] = (A, B),
    quarantined: Sequence[QuarantinedTopic] = (),
    handover: Handover | None = None,
    policies: Policies = Policies(),  # noqa: B008
    retry: bool = False,
    loads: Sequence[ChunkedLoad] = (),
) -> Rig:
    writer = store.take_over(SOURCE)
    done = [table.topic for table in complete]
    writer.append(EpochBatch(SOURCE, 0x100, 0x101, 0x101, completes=done, quarantined=quarantined))
    known = {table.topic: table.topic_schema for table in (A, B)}
    catalog = {table.relid: table.topic_schema for table in (A, B, EVENTS)}
    away = [each.topic for each in quarantined]
    progress = CaptureProgress(SOURCE)

    def decoder(away: Sequence[TopicId] = ()) -> BlockDecoder:
        return BlockDecoder(
            SOURCE, known, lambda relation: catalog.get(relation.relid), policies, quarantined=away
        )

    retried = [each.topic for each in quarantined if each.keeps] if retry else []
    context = AppendContext(
        store=store,
        writer=writer,
        decoder=decoder(away),
        progress=progress,
        topics=Topics.read(store, SOURCE),
        own_messages=OwnMessages(
            lambda: ({ddl_message.PREFIX: SECRET}, "9000:9000:"),
            lambda content: any(load.waits_for(content) for load in loads),
        ),
        filled_unseen=lambda relid, column: False,
        loads=loads,
        redecoding=Redecoding(store, writer, retried, decoder, progress),
    )
    return Rig(
        store, Appender(context, handover or Handover(HUGE)), progress, Stream(), Assembler(HUGE, HUGE, 0)
    )


def insert(table: Table, key: int) -> pg.Insert:
    return pg.Insert(table.relid, (str(key).encode(), *[b"1"] * (len(table.columns) - 1)))


def test_a_block_of_transactions_is_one_epoch_and_is_counted(store: Store) -> None:
    rig = rig_of(store)
    rig.stream.transaction(A.relation, insert(A, 1), insert(A, 2))
    last = rig.stream.transaction(B.relation, insert(B, 3))
    rig.give()
    assert sorted(rig.ids(A)) == [1, 2] and rig.ids(B) == [3]
    assert [info.epoch for info in store.epochs()] == [1, 2]
    assert rig.counts() == (1, 2, 3)
    commit_ts = datetime(2000, 1, 1, 0, 11, 42, tzinfo=UTC)
    assert rig.progress.status().commit_ts == commit_ts == store.epochs()[-1].commit_ts
    state = store.source(SOURCE)
    assert state is not None and (state.commit_lsn, state.end_lsn, state.through_lsn) == (
        last, last + 0x30, last + 0x30,
    )  # fmt: skip
    rig.appender.take(ThroughPosition(last + 0x500))
    rig.appender.take(ThroughPosition(last + 0x400))
    rig.stream.transaction(B.relation)
    block = rig.stream.block()
    rig.appender.take(block)
    assert not block.data, "its messages need no memory any more"
    state = store.source(SOURCE)
    assert state is not None and (state.commit_lsn, state.through_lsn) == (last + 0x100, last + 0x500)
    assert rig.counts() == (1, 3, 3) and len(store.epochs()) == 2, "no rows, no epoch"


def test_the_thread_appends_what_was_handed_over_until_it_is_closed(store: Store) -> None:
    handover = Handover(HUGE)
    rig = rig_of(store, handover=handover)
    last = rig.stream.transaction(A.relation, insert(A, 1))
    handover.put(rig.stream.block())

    def closing(durable_lsn: int) -> None:
        done(durable_lsn)
        handover.close()

    done, handover.task_done = handover.task_done, closing  # type: ignore[method-assign]
    get, gets = handover.get, []
    handover.get = lambda seconds: gets.append(seconds) or get(seconds)  # type: ignore[method-assign,func-returns-value]
    rig.appender.run()
    assert len(gets) == 1, "it is done as soon as it is appended"
    assert handover.durable_position() == last + 0x30 and handover.idle
    handover.release()
    assert rig.ids(A) == [1]


def test_a_transaction_that_comes_in_parts_is_visible_whole_with_its_commit(store: Store) -> None:
    rig = rig_of(store)
    rig.stream.transaction(A.relation, insert(A, 1), B.relation, insert(B, 2), EVENTS.relation,
                           pg.Insert(EVENTS.relid, EVENT_ROW), insert(A, 3))  # fmt: skip
    for frames in (3, 2, 2):
        rig.give(frames)
        assert len(store.epochs()) == 1 and rig.counts() == (0, 0, 0)
    rig.give()
    assert sorted(rig.ids(A)) == [1, 3] and rig.ids(B) == [2]
    assert len(rows(store, TopicId.events(SOURCE, "order"))) == 1
    assert rig.counts() == (1, 1, 4) and len(store.epochs()) == 2
    assert any(store.storage.list("log"))


def test_rows_of_a_table_that_is_loaded_by_chunks_are_appended_from_its_mark_on(store: Store) -> None:
    task = Task.of(store, SOURCE, PostgresSourceSettings(dsn="postgresql://127.0.0.1:1/nobody"))
    load = ChunkedLoad(task, "p", {A.topic: A.topic_schema}, {})
    rig = rig_of(store, complete=[B], loads=[load])
    (loading,) = load._applier.loading
    mark = load._applier.new_mark(loading, begins=Load(A.topic, 1, 0, 2, (LoadRange(0, None, None),)))
    rig.stream.transaction(A.relation, insert(A, 1))
    rig.give()
    assert rig.ids(A) == [] and not mark._settled.is_set()
    rig.stream.transaction(pg.Message(True, 0, BEGIN_PREFIX, mark.content), insert(A, 2))
    rig.give()
    assert rig.ids(A) == [2] and mark._settled.is_set() and mark.wait(), "it is in the log"
    rig.stream.transaction(rig.signed(change_message("rewritten", A.relid)))
    with pytest.raises(TopicsChanged, match=r"^shop.public.a must be read again"):
        rig.give()
    load.close()


def test_of_a_topic_that_is_not_complete_or_in_quarantine_no_row_is_appended(store: Store) -> None:
    entry = QuarantinedTopic(B.topic, "no such type", 0x100)
    rig = rig_of(store, complete=(), quarantined=[entry])
    rig.stream.transaction(A.relation, insert(A, 1), B.relation, insert(B, 2))
    rig.give()
    rig.stream.transaction(insert(A, 1), insert(B, 2))
    rig.give(3)
    rig.give()
    assert rig.ids(A) == rig.ids(B) == [] and rig.counts()[1:] == (2, 0)
    (kept,) = quarantine.quarantined_topics(store.catalog)
    assert kept.topic == B.topic and kept.frames > 0
    files = [path for path in store.storage.list() if path.endswith(".frames")]
    assert len(files) == 1, "only what came before its commit"


def test_frames_in_quarantine_are_decoded_again_between_transactions(store: Store) -> None:
    rig = rig_of(store, quarantined=[QuarantinedTopic(B.topic, "no such type", 0x100)], retry=True)
    rig.stream.transaction(A.relation, insert(A, 1), B.relation, insert(B, 2), insert(B, 3))
    rig.give(5)
    assert rig.ids(B) == [], "it is in the midst of a transaction"
    with pytest.raises(TopicsChanged, match=r"^shop.public.b is not in quarantine any more"):
        rig.give()
    assert sorted(rig.ids(B)) == [2, 3] and rig.ids(A) == [1]
    assert quarantine.quarantined_topics(store.catalog) == []


def test_changes_that_become_no_row_are_counted_by_reason(store: Store) -> None:
    rig = rig_of(store)
    other = replace(B, relid=502, name="other")
    rig.stream.transaction(other.relation, insert(other, 1), insert(other, 2), B.relation, insert(B, 3))
    rig.give()
    assert rig.ids(B) == [3] and dict(rig.progress.status().ignored) == {"table public.other": 2}


def test_of_a_topic_that_is_lost_nothing_is_kept(store: Store) -> None:
    rig = rig_of(
        store, complete=(A,), quarantined=[QuarantinedTopic(B.topic, "no such type", 1, keeps=False)]
    )
    rig.stream.transaction(A.relation, insert(A, 1), B.relation, insert(B, 2))
    rig.give()
    assert rig.ids(A) == [1] and rig.ids(B) == []
    assert [each.frames for each in quarantine.quarantined_topics(store.catalog)] == [0]


def test_of_a_topic_whose_frames_cannot_be_kept_nothing_is_kept_from_then_on(store: Store) -> None:
    rule = ("public.b.n", parse_pattern("public.b.n", 3), "hash:1")
    entry = QuarantinedTopic(B.topic, "no such type", 0x100)
    rig = rig_of(store, quarantined=[entry], policies=Policies((rule,), key=b"k"))
    rig.stream.transaction(B.relation, insert(B, 1))
    rig.give()
    wider = replace(B, columns=[*B.columns, ("n", INT4, -1, False)])
    rig.stream.transaction(rig.signed(trigger_message(wider)), A.relation, insert(A, 1))
    with pytest.raises(TopicsChanged, match=r"^shop.public.b put in quarantine"):
        rig.give()
    (kept,) = quarantine.quarantined_topics(store.catalog)
    assert (kept.topic, kept.keeps) == (B.topic, False) and "without plain values" in kept.error
    assert rig.ids(A) == [1]


@pytest.mark.parametrize("complete", [True, False])
def test_a_table_that_cannot_be_decoded_is_put_in_quarantine_and_the_others_go_on(
    store: Store, monkeypatch: pytest.MonkeyPatch, complete: bool
) -> None:
    rig = rig_of(store, complete=(A, B) if complete else (A,))
    monkeypatch.setattr(failpoints, "_armed", {})
    failpoints.arm("table_decoded=shop.public.b")
    lsn = rig.stream.transaction(A.relation, insert(A, 1), B.relation, insert(B, 2))
    with pytest.raises(TopicsChanged, match=r"^shop.public.b put in quarantine"):
        rig.give()
    assert rig.ids(A) == [1] and rig.ids(B) == [] and rig.counts() == (1, 1, 1)
    (entry,) = quarantine.quarantined_topics(store.catalog)
    assert (entry.topic, entry.lsn, entry.keeps) == (B.topic, lsn, complete)
    assert (entry.frames > 0) == complete
    (said,) = rig.progress.status().messages
    assert said.startswith("shop.public.b is in quarantine, the others go on: its rows could not be built")
    assert said.endswith("`tailrace source snapshot shop.public.b`")
    assert ("`tailrace source retry shop.public.b`" in said) == complete
    rig.stream.transaction(insert(A, 3), insert(B, 4))
    rig.give()
    assert rig.ids(A) == [1, 3] and rig.ids(B) == []
    rig.appender._enter_quarantine(entry)
    assert len(rig.progress.status().messages) == 2, "it is said each time"


def test_a_topic_that_must_be_read_again_is_incomplete_with_the_epoch_that_says_so(store: Store) -> None:
    rig = rig_of(store)
    rewritten = rig.signed(change_message("rewritten", A.relid))
    rig.stream.transaction(rewritten, A.relation, insert(A, 1), B.relation, insert(B, 2))
    with pytest.raises(TopicsChanged, match=r"^shop.public.a must be read again"):
        rig.give()
    assert rig.ids(B) == [2] and store.topic(A.topic).reason == "read again: its rows were rewritten"
    assert store.topic(B.topic).complete_since is not None
    assert any("rewritten" in said for said in rig.progress.status().messages)


def test_of_one_that_is_read_again_anyway_nothing_is_put_in_quarantine(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = rig_of(store)
    rewritten = rig.signed(change_message("rewritten", A.relid))
    rig.stream.transaction(rewritten, A.relation, insert(A, 1))
    rig.give(2)
    monkeypatch.setattr(failpoints, "_armed", {})
    failpoints.arm("table_decoded=shop.public.a")
    with pytest.raises(TopicsChanged, match="must be read again"):
        rig.give()
    assert quarantine.quarantined_topics(store.catalog) == []


def test_a_version_begins_with_its_ddl_whether_or_not_rows_follow(store: Store) -> None:
    rig = rig_of(store)
    rig.stream.transaction(rig.signed(trigger_message(WIDER)))
    rig.give()
    assert [schema.version for schema in store.schemas(A.topic)] == [1, 2] and rig.counts() == (1, 1, 0)
    assert any("shop.public.a has schema version 2" in said for said in rig.progress.status().messages)
    rig.stream.transaction(WIDER.relation, insert(WIDER, 1))
    rig.give()
    assert rig.ids(A) == [1] and store.schemas(B.topic)[-1].version == 1


def test_columns_of_another_table_of_the_name_are_not_said_to_be_renamed() -> None:
    other = replace(A, relid=502, columns=[("number", INT8, -1, True)], version=2)
    change = SchemaChange(
        A.topic, A.topic_schema, other.topic_schema, frozenset({ChangeKind.REPLACED}), ("public", "a"), 1
    )
    said = "shop.public.a has schema version 2: another table under the same name"
    assert _describe(change, []) == said


def test_a_change_of_names_is_reported_with_what_reads_them(store: Store) -> None:
    need = InputNeed(A.topic.text, "changes", 0)
    number = store.derived.create_generation(
        NewGeneration("totals", "f", "{}", ("id",), b"", 1, 1, inputs=[need])
    )
    store.derived.promote("totals", number, None)
    rig = rig_of(store)
    renamed = replace(WIDER, columns=[A.columns[0], ("m", INT4, -1, False)])
    for table in (WIDER, renamed):
        rig.stream.transaction(rig.signed(trigger_message(table)))
        rig.give()
    added, renames = rig.progress.status().messages
    assert added == "shop.public.a has schema version 2: column added"
    assert re.fullmatch(
        "shop.public.a has schema version 3: .* \\(n is m now\\); it is read by .*totals.*", renames
    )


def test_a_message_that_nobody_signed_is_counted_and_changes_nothing(store: Store) -> None:
    rig = rig_of(store)
    rig.stream.transaction(trigger_message(WIDER), A.relation, insert(A, 1))
    rig.give()
    assert rig.ids(A) == [1] and [schema.version for schema in store.schemas(A.topic)] == [1]
    assert sum(count for _, count in rig.progress.status().refused) == 1
    assert [each.number for each in refused_messages(store.catalog, SOURCE)] == [1]
    rig.appender.take(ForgedMessages(3))
    assert sorted(each.number for each in refused_messages(store.catalog, SOURCE)) == [1, 3]


def test_a_command_that_the_trigger_could_not_describe_is_reported(store: Store) -> None:
    rig = rig_of(store)
    rig.stream.transaction(rig.signed(change_message("failed", A.relid, error="no memory")))
    rig.give()
    assert any("could not describe a command: no memory" in said for said in rig.progress.status().messages)
