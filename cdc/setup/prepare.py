"""Prepare a source: inspect it, plan, check the plan, carry it out.

Everything is checked before anything is written. Topics are registered before their tables are published, so that the
stream never brings a table that the log does not know. A topic is loaded only once its table is published, so after a
crash between the two nothing is wrong and the next run goes on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from psycopg import Connection, sql

from tailrace.cdc.policy.history import History
from tailrace.cdc.policy.patterns import TablePatterns
from tailrace.cdc.policy.policies import Policies
from tailrace.cdc.postgres.check import Server, read_server, server_problems
from tailrace.cdc.postgres.connect import Address, connect, translate_errors
from tailrace.cdc.postgres.ddl_trigger import (
    Trigger,
    hint,
    install_script,
    install_trigger,
    read_trigger,
    remove_script,
    remove_trigger,
)
from tailrace.cdc.postgres.locks import Lock, lock_together
from tailrace.cdc.postgres.ownership import mark_statement, other_logs, owner_of, require_own
from tailrace.cdc.postgres.publication import Publication, add_statement, create_statement, read_publication
from tailrace.cdc.postgres.slot import read_slot, slot_name
from tailrace.cdc.postgres.tables import Table, apply_publication, leaf_problems, read_tables, written_tables
from tailrace.cdc.setup.checks import (
    Inspection,
    capture_problem,
    events_problem,
    left_publication,
    owner_findings,
    ownership_findings,
    policy_findings,
    publication_findings,
    publish_problem,
    rename_findings,
    table_findings,
    unmatched_topics,
)
from tailrace.cdc.setup.known_partitions import remember_partitions
from tailrace.cdc.setup.table_choice import Level, SetupFinding, choose_tables, own_tables
from tailrace.cdc.topics import Topics, is_events
from tailrace.eventstore.errors import OperatorError
from tailrace.eventstore.log.sources import register_source, register_topics
from tailrace.eventstore.metadata.partitions import known_partitions
from tailrace.eventstore.metadata.topics import all_schemas
from tailrace.eventstore.model.event_schema import EVENTS_TABLE
from tailrace.eventstore.model.topic import TopicId
from tailrace.eventstore.settings import PostgresSourceSettings
from tailrace.eventstore.store import Store
from tailrace.eventstore.streams.database.event_tables import install

Row = tuple[object, ...]
_LOCKED_SECONDS = 30.0  # how long `init` tries for tables that other sessions have locked


@dataclass(frozen=True, slots=True)
class Preparation:
    """What `init` found and did (``dry_run``: would do). ``new`` are topics registered now, ``known`` those that were
    there, ``statements`` the SQL for the source, in order, ``trigger`` the script that changes the DDL trigger.
    ``loaded``: the first load was taken before. ``took_over``: the log that slot and publication belonged to before
    ("": none that is named)."""

    source: str
    publication: str
    slot: str
    statements: tuple[str, ...]
    new: tuple[TopicId, ...]
    known: tuple[TopicId, ...]
    findings: tuple[SetupFinding, ...]
    dry_run: bool
    trigger: str = ""
    took_over: str | None = None
    loaded: bool = False

    @property
    def changes_something(self) -> bool:
        """Whether the source was not prepared as it is now."""
        return bool(self.new or self.statements or self.trigger)

    @property
    def blocking_findings(self) -> tuple[SetupFinding, ...]:
        return tuple(finding for finding in self.findings if finding.level is Level.BLOCKING)


def prepare_source(
    store: Store,
    name: str,
    settings: PostgresSourceSettings,
    *,
    dry_run: bool = False,
    events: bool = False,
    ddl: bool | None = None,
    take_over: bool = False,
) -> Preparation:
    """Check and prepare a source; a second run takes up new tables.

    ``events`` installs the tables of domain events first. ``ddl`` installs (False: removes) the trigger that writes DDL
    into the stream; a user who may not install it goes on without, and a finding says so. ``take_over`` makes slot and
    publication of another log this one's; otherwise they block. With ``dry_run`` nothing is written anywhere and
    blocking findings are returned; otherwise they are raised as one OperatorError. Also raises UsageError (patterns,
    dsn) and TransientError (out of reach).
    """
    address = Address.of(settings)
    patterns, policies = TablePatterns.parse(settings.tables), Policies.of(settings)
    with connect(address, "tailrace init") as connection:
        seen = _inspect(connection, address, store, name, settings, patterns, policies, take_over=take_over)
        plan = _plan(seen, events=events)
        preparation = _preparation(seen, plan, dry_run=dry_run)
        if dry_run:
            return _with_trigger(preparation, connection, address, seen, ddl)
        if preparation.blocking_findings:
            raise OperatorError(
                f"source {name} cannot be prepared: "
                + "; ".join(
                    f"{finding.subject}: {finding.what}" for finding in preparation.blocking_findings
                ),
                hint="; ".join(finding.hint for finding in preparation.blocking_findings if finding.hint),
            )
        if events:
            install_events(settings)
            seen = _inspect(
                connection, address, store, name, settings, patterns, policies, take_over=take_over
            )
            plan = _plan(seen, events=False)
            preparation = _preparation(seen, plan, dry_run=dry_run)
        _carry_out(store, seen, plan, connection, address)
        return _with_trigger(preparation, connection, address, seen, ddl)


def _with_trigger(
    preparation: Preparation,
    connection: Connection[Row],
    address: Address,
    seen: Inspection,
    wanted: bool | None,
) -> Preparation:
    """Install or remove the DDL trigger; on a dry run only say how. It serves all logs that read the database, so it
    stays while there are others."""
    found = read_trigger(connection, address)
    findings = list(preparation.findings)
    script = ""
    others = other_logs(connection, seen.log_id, address) if wanted is False else {}
    if others and found is not Trigger.ABSENT:
        names = ", ".join(f"publication {name} of log {owner}" for name, owner in others.items())
        findings.append(
            SetupFinding(
                Level.SKIPPED,
                "DDL trigger",
                f"it stays, for other stores read this database: {names}",
                "remove it from the last of them; a publication that nobody reads any more: DROP PUBLICATION",
            )
        )
        return replace(preparation, findings=tuple(findings))
    if wanted is None and found not in (Trigger.ABSENT, Trigger.ACTIVE):
        findings.append(
            SetupFinding(
                Level.NOTE,
                "DDL trigger",
                f"it {found.value}",
                hint(found, seen.server.user),
            )
        )
    elif wanted is not None and found is not (Trigger.ACTIVE if wanted else Trigger.ABSENT):
        script = install_script(seen.server.user) if wanted else remove_script()
        if not preparation.dry_run:
            try:
                (install_trigger if wanted else remove_trigger)(connection, address)
            except OperatorError as error:
                script = ""
                findings.append(SetupFinding(Level.SKIPPED, "DDL trigger", error.message, error.hint))
    return replace(preparation, trigger=script, findings=tuple(findings))


def install_events(settings: PostgresSourceSettings) -> None:
    """Create or migrate the tables of domain events in the source."""
    install(settings.dsn.get_secret_value(), settings.events_schema)


def _inspect(
    connection: Connection[Row],
    address: Address,
    store: Store,
    name: str,
    settings: PostgresSourceSettings,
    patterns: TablePatterns,
    policies: Policies,
    *,
    take_over: bool,
) -> Inspection:
    state = store.source(name)
    slot = publication_name = slot_name(store.settings.name, name)
    if state is not None and state.loaded and state.slot:  # it may have been taken over with other names
        slot, publication_name = state.slot, state.publication
    server, publication = (
        read_server(connection, address),
        read_publication(connection, publication_name, address),
    )
    tables = apply_publication(read_tables(connection, address), publication)
    schema = store.catalog.schema if store.catalog.kind == "postgres" else None
    own = own_tables(tables, schema, written_tables(connection, address, tables))
    taken, skipped = choose_tables(tables, patterns, publication, own, settings.events_schema)
    loaded = state is not None and state.loaded
    events = next((table for table in tables if is_events(table, settings.events_schema)), None)
    published = publication.tables if publication else {}
    late = events is not None and loaded and events.relid not in published
    return Inspection(
        source=name,
        slot=publication_name,
        server=server,
        problems=[
            SetupFinding(Level.BLOCKING, "server", problem.what, problem.hint)
            for problem in server_problems(server, connection, slot, address)
        ],
        publication=publication,
        tables=tables,
        own=own,
        taken=taken,
        skipped=skipped,
        partition_problems=leaf_problems(connection, address, taken),
        topics=Topics.read(store, name) if state is not None else None,
        loaded=loaded,
        earlier_events=late and _has_events(connection, address, settings.events_schema),
        policies=policies.remembering(
            History.of(all_schemas(store.catalog, name), known_partitions(store.catalog, name))
        ),
        log_id=store.log_id,
        events_schema=settings.events_schema,
        foreign=_foreign(connection, address, store, server, publication, slot, loaded=loaded),
        take_over=take_over,
    )


def _foreign(
    connection: Connection[Row],
    address: Address,
    store: Store,
    server: Server,
    publication: Publication | None,
    slot: str,
    *,
    loaded: bool,
) -> OperatorError | None:
    found = read_slot(connection, slot, address)
    try:
        require_own(publication, found, store.log_id, address, database=server.database, loaded=loaded)
    except OperatorError as error:
        return error
    return None


def _has_events(connection: Connection[Row], address: Address, schema: str) -> bool:
    with translate_errors("looking for events", address):
        query = sql.SQL("SELECT 1 FROM {} LIMIT 1").format(sql.Identifier(schema, EVENTS_TABLE))
        return connection.execute(query).fetchone() is not None


@dataclass(frozen=True, slots=True)
class _Plan:
    """What is to be done. ``wanted`` are the tables to capture, ``add`` the labels of those to publish."""

    wanted: Sequence[Table]
    add: Sequence[tuple[str, str]]
    findings: Sequence[SetupFinding]


def _plan(seen: Inspection, *, events: bool) -> _Plan:
    """Three questions in turn: which tables can be captured, which of those have to be published, and what else there
    is to say. ``events``: the tables of domain events will be installed."""
    findings = [*seen.problems, *owner_findings(seen), *publication_findings(seen), *seen.skipped]
    capturable = []
    for table in seen.taken:
        if problem := capture_problem(seen, table):
            findings.append(problem)
        else:
            capturable.append(table)
            findings += table_findings(seen, table)
    publishes_all = seen.publication is not None and seen.publication.all_tables
    missing = []
    for table in capturable:
        if table.relid in seen.published_tables or publishes_all:
            continue
        if problem := publish_problem(seen, table):
            findings.append(problem)
        else:
            missing.append(table)
            findings += left_publication(seen, table)
    wanted = capturable
    if seen.publication is not None and not seen.publication.owned:
        sent = {table.relid for table in missing} | seen.published_tables.keys()
        wanted = [table for table in capturable if publishes_all or table.relid in sent]
    findings += ownership_findings(seen, missing)
    add = [table.label for table in missing]
    events_table = seen.events_table
    if events_table is None and events:
        text = "the tables of domain events will be installed"
        findings.append(SetupFinding(Level.NOTE, f"{seen.events_schema}.{EVENTS_TABLE}", text))
    if events_table is not None and events_table.relid not in seen.published_tables:
        findings += ownership_findings(seen, [events_table])
        if problem := events_problem(seen, events_table):
            findings.append(problem)
        else:
            add.append(events_table.label)
    findings += rename_findings(seen, wanted)
    findings += unmatched_topics(seen, wanted)
    findings += policy_findings(seen, wanted)
    if not (wanted or add or seen.published_tables or events):
        findings.append(
            SetupFinding(
                Level.BLOCKING,
                "tables",
                "no table that can be captured matches the source's patterns",
                "correct `tables` of the source, or resolve what is reported about the skipped tables",
            )
        )
    return _Plan(wanted, add, findings)


def _preparation(seen: Inspection, plan: _Plan, *, dry_run: bool) -> Preparation:
    return Preparation(
        source=seen.source,
        publication=seen.slot,
        slot=seen.slot,
        statements=tuple(_statements(seen, plan)),
        new=tuple(seen.topic(table) for table in plan.wanted if seen.needs_topic(table)),
        known=tuple(seen.known_topics),
        findings=tuple(plan.findings),
        dry_run=dry_run,
        took_over=(seen.takes_over.owner or "") if seen.takes_over else None,
        loaded=seen.loaded,
    )


def _statements(seen: Inspection, plan: _Plan) -> list[str]:
    if seen.publication is None:
        return [create_statement(seen.slot, plan.add)]
    return [add_statement(seen.slot, plan.add)] if plan.add else []


def _carry_out(
    store: Store, seen: Inspection, plan: _Plan, connection: Connection[Row], address: Address
) -> None:
    register_source(
        store.catalog, seen.source, slot=seen.slot, publication=seen.slot, system_id=seen.server.system_id
    )
    new = [table for table in plan.wanted if seen.needs_topic(table)]
    register_topics(store, {seen.topic(table): seen.schema(table) for table in new})
    topics = Topics.read(store, seen.source)
    remember_partitions(store, seen.source, seen.policies, seen.tables, topics.schemas)
    # Nobody may append events between the check and the publication: the stream does not have what came before it.
    events = seen.events_schema, EVENTS_TABLE
    quiet = seen.loaded and events in plan.add
    locks = [
        Lock(label, "SHARE ROW EXCLUSIVE" if quiet and label == events else "SHARE UPDATE EXCLUSIVE")
        for label in plan.add
    ]
    with translate_errors("preparing the publication", address), connection.transaction():
        lock_together(connection, address, locks, _LOCKED_SECONDS)
        if quiet and _has_events(connection, address, seen.events_schema):
            raise OperatorError(
                f"events were appended to {'.'.join(events)} before it was published",
                hint="run init again, which says how they are captured, or empty the table if nobody needs them",
            )
        for statement in _statements(seen, plan):
            connection.execute(sql.SQL(statement))
        publication = seen.publication
        if owner_of(publication) != seen.log_id and (publication is None or publication.owned):
            connection.execute(sql.SQL(mark_statement(seen.slot, publication, seen.log_id)))
