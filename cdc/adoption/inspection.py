"""What stands in the way of taking a source over from Debezium, and which of its topics go on as they are."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from tailrace.cdc.adoption.carried import difference
from tailrace.cdc.adoption.refusals import (
    publication_findings,
    server_findings,
    slot_findings,
    snapshot_findings,
)
from tailrace.cdc.kafka.topics.discovery import Discovery, discover
from tailrace.cdc.postgres.check import Server, read_server
from tailrace.cdc.postgres.connect import Address, connect, quote
from tailrace.cdc.postgres.ownership import require_own
from tailrace.cdc.postgres.publication import Publication, read_publication
from tailrace.cdc.postgres.slot import SlotInfo, read_slot
from tailrace.cdc.postgres.tables import Table, apply_publication, read_tables, written_tables
from tailrace.cdc.setup.adopted import unconfirmed
from tailrace.cdc.setup.continuity import require_source
from tailrace.cdc.setup.table_choice import Level, SetupFinding, own_tables, problem_of
from tailrace.cdc.topics import Topics
from tailrace.eventstore.errors import NotOwner, OperatorError, UsageError
from tailrace.eventstore.kafka.cluster import Cluster
from tailrace.eventstore.kafka.reader import Partition
from tailrace.eventstore.log.sources import chained_partitions
from tailrace.eventstore.metadata.kafka_progress import parked
from tailrace.eventstore.model.info import SourceState
from tailrace.eventstore.model.kafka import PartitionProgress
from tailrace.eventstore.model.position import format_lsn
from tailrace.eventstore.model.topic import TopicId
from tailrace.eventstore.settings import KafkaSourceSettings
from tailrace.eventstore.store import Store

Row = tuple[object, ...]
NOT_WHOLE = "no snapshot of it by Debezium was read whole"
PARKED = "records of it are parked"
NAMED = "asked for"


@dataclass(frozen=True, slots=True)
class Request:
    """What is to be taken over: the source, its topics of Kafka, and slot and publication of its Postgres.
    ``read_again``: topics of the log whose records a transform changed, masked or left out."""

    source: str
    settings: KafkaSourceSettings
    address: Address
    slot: str
    publication: str
    read_again: Collection[TopicId] = ()


@dataclass(frozen=True, slots=True)
class Inspection:
    """``carried``: the topics that go on, with their tables. ``again``: those whose tables are read again, and why.
    ``behind``: records of Kafka that are not in the log. ``checked``: in words, what was found in order."""

    request: Request
    state: SourceState
    cluster: str
    server: Server
    slot: SlotInfo | None
    publication: Publication | None
    topics: Topics
    progress: Sequence[PartitionProgress]
    routes: Mapping[str, TopicId]
    carried: Mapping[TopicId, Table]
    again: Mapping[TopicId, str]
    behind: int
    findings: Sequence[SetupFinding] = field(default=())
    checked: Sequence[str] = field(default=())

    @property
    def blocking(self) -> list[SetupFinding]:
        return [each for each in self.findings if each.level is Level.BLOCKING]

    def require_possible(self) -> None:
        """Raises OperatorError with all that stands in the way."""
        if self.blocking:
            raise OperatorError(
                f"source {self.request.source} cannot be taken over: "
                + "; ".join(f"{each.subject}: {each.what}" for each in self.blocking),
                hint="; ".join(dict.fromkeys(each.hint for each in self.blocking if each.hint)),
            )


def inspect(store: Store, request: Request) -> Inspection:
    """Look at log, Kafka and Postgres; nothing is changed. Raises UsageError for what is no question of the servers,
    TransientError (out of reach), OperatorError, IntegrityError."""
    state = _require_kafka(store, request)
    progress = chained_partitions(store, request.source)
    with Cluster(request.settings) as cluster:
        cluster_id = cluster.id()
        if cluster_id != state.system_id:
            raise OperatorError(
                f"source {request.source} was read from cluster {state.system_id}, these brokers are of cluster "
                f"{cluster_id}",
                hint="point its brokers back",
            )
        found = discover(cluster, request.source, request.settings)
        behind = _records_behind(cluster, found, progress)
    with connect(request.address, "tailrace adopt") as connection:
        server = read_server(connection, request.address)
        slot = read_slot(connection, request.slot, request.address)
        publication = read_publication(connection, request.publication, request.address)
        tables = apply_publication(read_tables(connection, request.address), publication)
        schema = store.catalog.schema if store.catalog.kind == "postgres" else None
        own = own_tables(tables, schema, written_tables(connection, request.address, tables))
    topics = Topics.read(store, request.source)
    unknown = [each.text for each in request.read_again if each not in topics.tables]
    if unknown and not behind:  # a topic comes with its first record
        raise UsageError(
            f"{', '.join(unknown)} is no topic of source {request.source}",
            hint="`tailrace topic list` has their names",
        )
    incomplete = {name: topic for name, topic in found.routes.items() if topic in topics.incomplete}
    carried, again, notes = _sort_topics(store, request, topics, tables, publication)
    findings = [
        *server_findings(server, progress, _system_of_catalog(request)),
        *slot_findings(request.slot, slot, server.database),
        *publication_findings(request.publication, publication, own),
        *_owner_findings(store, request, publication, server),
        *snapshot_findings(progress, incomplete if not behind else {}),  # what is behind may hold its end
        *notes,
    ]
    return Inspection(
        request, state, cluster_id, server, slot, publication, topics, progress, found.routes, carried, again, behind,
        findings, _checked(slot, server, publication, carried),
    )  # fmt: skip


def _require_kafka(store: Store, request: Request) -> SourceState:
    state = require_source(store, request.source)
    if unconfirmed(store, state) is not None:
        raise UsageError(
            f"source {request.source} was taken over already",
            hint="`tailrace adopt --confirm` makes it final, `tailrace adopt --undo` takes it back",
        )
    if request.settings.plain or request.settings.outbox:
        raise UsageError(
            f"source {request.source} has topics that hold no tables of Debezium: plain ones, or an outbox",
            hint="native capture has no such topics: give them to a source of another name",
        )
    return state


def _records_behind(cluster: Cluster, found: Discovery, progress: Sequence[PartitionProgress]) -> int:
    known = {Partition(each.topic, each.partition): each.next_offset for each in progress}
    mine = [each for each in found.partitions if each.topic in found.routes]
    offsets = cluster.offsets(mine)
    return sum(max(0, ends.last_stable - known.get(each, ends.earliest)) for each, ends in offsets.items())


def _sort_topics(
    store: Store,
    request: Request,
    topics: Topics,
    tables: Sequence[Table],
    publication: Publication | None,
) -> tuple[dict[TopicId, Table], dict[TopicId, str], list[SetupFinding]]:
    by_label = {table.label: table for table in tables}
    published = publication.entries if publication else {}
    parked_topics = {each.place.topic for each in parked(store.catalog, request.source)}
    carried, again, findings = dict[TopicId, Table](), dict[TopicId, str](), list[SetupFinding]()
    for topic, info in topics.tables.items():
        table = by_label.get((topic.parts[1], topic.parts[2]))
        name = f"{topic.parts[1]}.{topic.parts[2]}"
        if table is None or table.relid not in published:
            what = "there is no such table" if table is None else f"{request.publication} does not publish it"
            findings.append(
                SetupFinding(Level.SKIPPED, topic.text, f"{what}: its history stays, its state is not known")
            )
            continue
        if problem := problem_of(table):
            findings.append(SetupFinding(Level.BLOCKING, topic.text, *problem))
        elif any(column.policy for column in topics.latest[topic].key):
            what = "its key has a column policy, so rows that come again cannot be known"
            hint = "capture the database as a source of another name, which reads its tables"
            findings.append(SetupFinding(Level.BLOCKING, topic.text, what, hint))
        elif topic in request.read_again:
            again[topic] = NAMED
        elif info.complete_since is None:
            again[topic] = NOT_WHOLE
        elif any(each.endswith(f".{name}") for each in parked_topics):
            again[topic] = PARKED
        elif reason := difference(topics.latest[topic], table.topic_schema(1)):
            again[topic] = reason
        else:
            carried[topic] = table
        if not table.readable:
            findings.append(
                SetupFinding(
                    Level.BLOCKING,
                    topic.text,
                    f"the user may not read {name}",
                    f"GRANT SELECT ON {quote(table.schema)}.{quote(table.name)}",
                )
            )
    return carried, again, findings


def _system_of_catalog(request: Request) -> str:
    if request.settings.catalog_dsn is None:
        return ""
    address = Address.parse(request.settings.catalog_dsn.get_secret_value())
    with connect(address, "tailrace adopt") as connection:
        return read_server(connection, address).system_id


def _owner_findings(
    store: Store, request: Request, publication: Publication | None, server: Server
) -> list[SetupFinding]:
    """Another store may have taken it over."""
    try:
        require_own(publication, None, store.log_id, request.address, database=server.database, loaded=True)
    except NotOwner as error:
        subject = f"publication {request.publication}"
        return [SetupFinding(Level.BLOCKING, subject, error.message, error.hint)]
    return []


def _checked(
    slot: SlotInfo | None,
    server: Server,
    publication: Publication | None,
    carried: Mapping[TopicId, Table],
) -> list[str]:
    found = [f"server: system {server.system_id}, database {server.database}"]
    if slot is not None:
        found.append(f"slot {slot.name}: {slot.plugin}, confirmed up to {format_lsn(slot.confirmed_flush)}")
    if publication is not None:
        found.append(f"publication {publication.name}: {len(publication.entries):,} tables")
    return [*found, *(f"{topic.text}: goes on" for topic in carried)]
