"""The first load of a source: its slot, its snapshot, one epoch with everything, the position to stream from."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress

from psycopg import Connection

from tailrace.cdc.context import Task, transaction_wait
from tailrace.cdc.postgres.check import read_server
from tailrace.cdc.postgres.connect import Address, connect, connect_replication, translate_errors
from tailrace.cdc.postgres.liveness import end_sessions
from tailrace.cdc.postgres.ownership import require_own
from tailrace.cdc.postgres.publication import Publication, read_publication
from tailrace.cdc.postgres.slot import (
    ExportedSnapshot,
    create_exported,
    drop_slot,
    read_slot,
    require_idle,
    require_usable,
)
from tailrace.cdc.snapshot.load import LoadResult, LoadTarget, SnapshotLoad
from tailrace.cdc.status import CapturePhase
from tailrace.cdc.topics import Topics
from tailrace.eventstore.errors import OperatorError, TailraceError, TransientError
from tailrace.eventstore.log.sources import register_topic
from tailrace.eventstore.model.epoch import EpochBatch
from tailrace.eventstore.model.event_schema import EVENTS_TABLE
from tailrace.eventstore.model.info import SourceState
from tailrace.eventstore.model.position import format_lsn
from tailrace.eventstore.model.schema import TopicSchema
from tailrace.eventstore.model.topic import TopicId
from tailrace.eventstore.store import Store

Row = tuple[object, ...]
_DROP_SECONDS = 5


def first_load(task: Task, state: SourceState, publication: Publication, tick: Callable[[], None]) -> int:
    """Create the slot, load every registered table at its consistent point, commit all of it as one epoch.

    A slot left by a load that did not finish is replaced. Returns the writer's term, 0 when another capture took the
    load since ``state`` was read. Raises NotOwner, OperatorError (another load runs, privileges, no free slot, the slot
    was lost), TransientError (begin again), Fenced.
    """
    store, address, progress = task.store, task.address, task.progress
    progress.set_phase(CapturePhase.LOADING)
    with (
        connect(address, "tailrace load") as control,
        _end_on_failure(address, control.info.backend_pid) as sessions,
        only_one(control, state.slot, address),
    ):
        if _is_loaded(store, state.name):  # then the slot is what its stream goes on from
            return 0
        _drop_unfinished(task, state, control)
        replication = connect_replication(address, f"tailrace {state.slot}")
        sessions.append(replication.backend_pid)
        exported: ExportedSnapshot | None = None
        try:
            exported = create_exported(
                replication, state.slot, address, waiting=transaction_wait(task, control)
            )
            writer = store.take_over(state.name)
            writer.set_timeline(read_server(control, address).timeline)
            store.collect_orphans()  # of attempts before this one: they may be many, and large
            topics = Topics.read(store, state.name)
            target = LoadTarget(
                writer.prepare,
                lambda topic, schema: register_topic(store, topic, schema, reason=""),
            )
            load = SnapshotLoad(task, exported, state.publication, target, tick)
            wanted = _published_topics(topics, publication)
            loaded = load.run(wanted, events_table(publication, task.settings.events_schema))
        except TailraceError:
            replication.finish()
            if exported is not None:
                _drop_made(exported, address)
            raise
        finally:
            replication.finish()
        require_slot_unmoved(control, exported, address)
        writer.append(_epoch(state.name, exported, loaded, topics))
        store.collect_orphans()
    progress.set_load(())
    progress.add_epochs(epochs=1, transactions=0, changes=loaded.rows, commit_ts=loaded.commit_ts)
    progress.note(
        f"first load of {loaded.rows} rows at {format_lsn(exported.consistent_point)} is in the log"
    )
    return writer.term


@contextmanager
def _end_on_failure(address: Address, *pids: int) -> Iterator[list[int]]:
    """End the load's sessions when a connection breaks: the server may keep them, and with them the lock and the slot
    that the next attempt needs."""
    sessions = list(pids)
    try:
        yield sessions
    except TransientError:
        end_sessions(address, sessions)
        raise


def events_table(publication: Publication, schema: str) -> int | None:
    """The oid of the table of domain events, when it is published."""
    label = schema, EVENTS_TABLE
    return next((oid for oid, each in publication.tables.items() if each == label), None)


def _published_topics(topics: Topics, publication: Publication) -> dict[TopicId, TopicSchema]:
    """Topics whose table is published under the oid they were registered with; the others stay incomplete."""
    return {
        topic: topics.schema(topic) for topic in topics.tables if topics.relid(topic) in publication.tables
    }


def _epoch(source: str, exported: ExportedSnapshot, loaded: LoadResult, topics: Topics) -> EpochBatch:
    """Loaded rows carry the LSN just below the consistent point, so streamed transactions come after them."""
    return EpochBatch(
        source=source,
        commit_lsn=exported.consistent_point - 1,
        end_lsn=exported.consistent_point,
        through_lsn=exported.consistent_point,
        commit_ts=loaded.commit_ts,
        files=loaded.files,
        new_schemas=[
            (topic, schema)
            for topic, schema in loaded.schemas.items()
            if schema.version != topics.schema(topic).version
        ],
        completes=list(loaded.schemas),
        published=list(loaded.published.items()),
        begins=True,
    )


def _is_loaded(store: Store, name: str) -> bool:
    state = store.source(name)
    return state is not None and state.loaded


def require_slot_unmoved(control: Connection[Row], exported: ExportedSnapshot, address: Address) -> None:
    """The slot must still be where the loaded rows end: after the commit, lost changes would not be noticed.

    Raises SlotLost when it was invalidated meanwhile, TransientError when it is gone or another one."""
    slot = read_slot(control, exported.slot, address)
    if slot is not None:
        require_usable(slot, str(control.info.dbname), address)
    if slot is None or slot.confirmed_flush != exported.consistent_point:
        raise TransientError(
            f"the replication slot {exported.slot} of {address.text} was dropped or moved during the first load",
            hint="the load is begun again; end whatever else uses or drops that slot",
        )


@contextmanager
def only_one(control: Connection[Row], slot: str, address: Address) -> Iterator[None]:
    """Take an advisory lock that ends with the connection: two first loads would drop each other's slot."""
    with translate_errors("taking the lock of the first load", address):
        row = control.execute(
            "SELECT pg_catalog.pg_try_advisory_lock(pg_catalog.hashtextextended(%s, 0))", [f"tailrace {slot}"]
        ).fetchone()
    if row is None or not row[0]:
        raise OperatorError(
            f"another capture is taking the first load of {slot} from {address.text}",
            hint="wait for it, or end it: SELECT pid FROM pg_locks WHERE locktype = 'advisory'",
        )
    yield


def _drop_made(exported: ExportedSnapshot, address: Address) -> None:
    """Drop the slot of a load that failed, if we can: where nothing marks it, only this process knows whose it is. By a
    new connection: those of the load may be why it failed, and answer no more."""
    quick = Address({**address.conninfo, "connect_timeout": str(_DROP_SECONDS)})
    with suppress(TailraceError), closing(connect(quick)) as connection:
        slot = read_slot(connection, exported.slot, address)
        if slot is not None and slot.confirmed_flush == exported.consistent_point:
            drop_slot(connection, exported.slot, address)


def _drop_unfinished(task: Task, state: SourceState, control: Connection[Row]) -> None:
    """Drop what a load of this store's left. Raises NotOwner for the slot of another store of this name."""
    address, database = task.address, str(control.info.dbname)
    slot = read_slot(control, state.slot, address)
    if slot is None:
        return
    publication = read_publication(control, state.publication, address)
    require_own(publication, slot, task.store.log_id, address, database=database, loaded=False)
    require_idle(slot, address)
    drop_slot(control, slot.name, address)
    task.progress.report("a first load before this one did not finish; it is begun again")
