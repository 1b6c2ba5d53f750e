"""Preparing a source: which tables are taken, what stands in the way, the SQL and registrations that take them.

Everything is checked before anything is written. Topics are registered before their tables are published, so that the
stream never brings a table that the log does not know; a topic is loaded only once its table is published, so that a
crash between the two leaves nothing wrong and the next run goes on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from psycopg import Connection, sql

from tailrace.cdc.columnar.relations import EVENTS_TABLE
from tailrace.cdc.policy.patterns import TablePatterns
from tailrace.cdc.policy.policies import Policies
from tailrace.cdc.postgres.check import Server, read_server, server_problems
from tailrace.cdc.postgres.connect import Address, connect, quote, translated
from tailrace.cdc.postgres.ddl_trigger import Trigger, install_trigger, read_trigger, remove_trigger
from tailrace.cdc.postgres.locks import Lock, lock_together
from tailrace.cdc.postgres.publication import Publication, add_statement, create_statement, read_publication
from tailrace.cdc.postgres.slot import slot_name
from tailrace.cdc.postgres.tables import Table, as_published, leaf_problems, read_tables, written_tables
from tailrace.cdc.setup.table_choice import Finding, Level, choose_tables, own_tables, problem_of
from tailrace.cdc.topics import Topics
from tailrace.eventstore.errors import OperatorError
from tailrace.eventstore.log.sources import register_source, register_topic
from tailrace.eventstore.model.info import TopicInfo
from tailrace.eventstore.model.schema import TopicSchema
from tailrace.eventstore.model.topic import TopicId
from tailrace.eventstore.settings import SourceSettings
from tailrace.eventstore.store import Store
from tailrace.migrations.source.ddl import install_script, remove_script

Row = tuple[object, ...]
_LOCKED_SECONDS = 30.0  # how long `init` tries for tables that other sessions have locked


@dataclass(frozen=True, slots=True)
class Preparation:
    """What `init` found and did (``dry_run``: would do). ``new`` are topics registered now, ``known`` those that were
    there, ``statements`` the SQL for the source, in order, ``trigger`` the script that changes the DDL trigger."""

    source: str
    publication: str
    slot: str
    statements: tuple[str, ...]
    new: tuple[TopicId, ...]
    known: tuple[TopicId, ...]
    findings: tuple[Finding, ...]
    dry_run: bool
    trigger: str = ""

    @property
    def blocking(self) -> tuple[Finding, ...]:
        return tuple(finding for finding in self.findings if finding.level is Level.BLOCKING)


def prepare_source(
    store: Store,
    name: str,
    settings: SourceSettings,
    *,
    dry_run: bool = False,
    events: bool = False,
    ddl: bool | None = None,
) -> Preparation:
    """Check and prepare a source; a second run takes up new tables.

    ``events`` installs the tables of domain events first. ``ddl`` installs (False: removes) the trigger that tells of
    DDL; a user who may not goes on without, and a finding says so. With ``dry_run`` nothing is written anywhere and
    blocking findings are returned; otherwise they are raised as one OperatorError. Also raises UsageError (patterns,
    dsn) and TransientError (out of reach).
    """
    address = Address.of(settings)
    patterns = TablePatterns.parse(settings.tables)
    policies = Policies.of(settings)
    with connect(address, "tailrace init") as connection:
        plan = _Plan(store, name, address, connection, patterns, policies, events=events)
        preparation = plan.prepare(dry_run)
        if dry_run:
            return _with_trigger(preparation, connection, address, ddl)
        if preparation.blocking:
            raise OperatorError(
                f"source {name} cannot be prepared: "
                + "; ".join(f"{finding.subject}: {finding.what}" for finding in preparation.blocking),
                hint="; ".join(finding.hint for finding in preparation.blocking if finding.hint),
            )
        if events:
            install_events(settings)
            plan = _Plan(store, name, address, connection, patterns, policies)
            preparation = plan.prepare(dry_run)
        plan.carry_out(preparation)
        return _with_trigger(preparation, connection, address, ddl)


def _with_trigger(
    preparation: Preparation, connection: Connection[Row], address: Address, wanted: bool | None
) -> Preparation:
    """Put the DDL trigger in or take it out; on a dry run only say how."""
    found = read_trigger(connection, address)
    findings = list(preparation.findings)
    script = ""
    if wanted is None and found is Trigger.INACTIVE:
        findings.append(
            Finding(
                Level.NOTE,
                "DDL trigger",
                f"it {found.value}",
                "install it with --ddl, or remove it with --no-ddl",
            )
        )
    elif wanted is not None and found is not (Trigger.ACTIVE if wanted else Trigger.ABSENT):
        script = install_script() if wanted else remove_script()
        if not preparation.dry_run:
            try:
                (install_trigger if wanted else remove_trigger)(connection, address)
            except OperatorError as error:
                script = ""
                findings.append(Finding(Level.SKIPPED, "DDL trigger", error.message, error.hint))
    return replace(preparation, trigger=script, findings=tuple(findings))


def install_events(settings: SourceSettings) -> None:
    """Create or migrate schema ``tailrace`` with the tables of domain events in the source."""
    from tailrace.migrations.source import install

    install(settings.dsn.get_secret_value())


class _Plan:
    """One run of ``prepare_source``."""

    def __init__(
        self,
        store: Store,
        name: str,
        address: Address,
        connection: Connection[Row],
        patterns: TablePatterns,
        policies: Policies,
        *,
        events: bool = False,
    ) -> None:
        self._policies = policies
        self._events_wanted = events
        self._store = store
        self._name = name
        self._address = address
        self._connection = connection
        self._slot = self._publication_name = slot_name(store.settings.name, name)
        self._server = read_server(connection, address)
        self._publication = read_publication(connection, self._publication_name, address)
        self._tables = as_published(read_tables(connection, address), self._publication)
        schema = store.catalog.schema if store.catalog.kind == "postgres" else None
        self._own = own_tables(self._tables, schema, written_tables(connection, address, self._tables))
        self._taken, self._skipped = choose_tables(self._tables, patterns, self._publication, self._own)
        self._leaf_problems = leaf_problems(connection, address, self._taken)
        self._adds_events = False
        self._add: list[tuple[str, str]] = []
        state = store.source(name)
        self._loaded = state is not None and state.loaded
        self._topics = Topics.read(store, name) if state is not None else None

    def prepare(self, dry_run: bool) -> Preparation:
        findings = [
            Finding(Level.BLOCKING, "server", problem.what, problem.hint)
            for problem in server_problems(self._server, self._connection, self._slot, self._address)
        ]
        findings += self._publication_findings()
        findings += self._skipped
        published = self._publication.tables if self._publication else {}
        wanted = [table for table in self._taken if self._may_take(table, findings)]
        missing = [table for table in wanted if table.relid not in published and not self._publishes_all]
        refused = [table for table in missing if not self._may_add(table, findings)]
        missing = [table for table in missing if table not in refused]
        if self._publication is not None and not self._publication.owned:
            wanted = [table for table in wanted if table not in refused]
        findings += _ownership(missing, self._server)
        self._add = add = [table.label for table in missing] + self._events(findings, published)
        infos = self._infos()
        new = [self._topic(table) for table in wanted if self._is_new(table, findings)]
        findings += self._left_over(wanted, infos)
        findings += self._policy_findings(wanted)
        if not (wanted or add or published or self._events_wanted):
            findings.append(
                Finding(
                    Level.BLOCKING,
                    "tables",
                    "no table that can be captured matches the source's patterns",
                    "correct `tables` of the source, or mend what is said of the skipped ones",
                )
            )
        return Preparation(
            source=self._name,
            publication=self._publication_name,
            slot=self._slot,
            statements=tuple(self._statements(add)),
            new=tuple(new),
            known=tuple(infos),
            findings=tuple(findings),
            dry_run=dry_run,
        )

    def carry_out(self, preparation: Preparation) -> None:
        register_source(
            self._store.catalog,
            self._name,
            slot=self._slot,
            publication=self._publication_name,
            system_id=self._server.system_id,
        )
        for table in self._taken:
            if self._topic(table) in preparation.new:
                register_topic(self._store, self._topic(table), self._schema(table))
        with translated("preparing the publication", self._address), self._connection.transaction():
            quiet = self._loaded and self._adds_events
            lock_together(self._connection, self._address, self._locks(quiet=quiet), _LOCKED_SECONDS)
            if quiet:
                self._require_no_events()
            for statement in preparation.statements:
                self._connection.execute(sql.SQL(statement))

    def _schema(self, table: Table) -> TopicSchema:
        return self._policies.schema(table.label, table.topic_schema(1))

    def _topic(self, table: Table) -> TopicId:
        return TopicId.table(self._name, *table.label)

    def _is_new(self, table: Table, findings: list[Finding]) -> bool:
        """Whether a table needs a topic; one that was renamed keeps the topic it has."""
        owner = self._topics.schemas.get(table.relid) if self._topics else None
        if owner is not None and owner[0] != self._topic(table):
            findings.append(
                Finding(Level.NOTE, table.text, f"it was renamed; its topic is still {owner[0].text}")
            )
        return owner is None and self._topic(table) not in self._infos()

    def _infos(self) -> Mapping[TopicId, TopicInfo]:
        return self._topics.tables if self._topics else {}

    def _publication_findings(self) -> list[Finding]:
        if self._publication is None:
            if self._server.may_create:
                return []
            return [
                Finding(
                    Level.BLOCKING,
                    "publication",
                    f"user {self._server.user} may not create one",
                    f'GRANT CREATE ON DATABASE "{self._server.database}" TO "{self._server.user}"',
                )
            ]
        name = self._publication_name
        found = []
        if self._publication.mismatch:
            mend = f"ALTER PUBLICATION {quote(name)} SET (publish = 'insert, update, delete, truncate')"
            found.append(Finding(Level.BLOCKING, f"publication {name}", self._publication.mismatch, mend))
        own = sorted(
            {
                table.schema
                for table in self._tables
                if table.relid in self._publication.entries and table.relid in self._own
            }
        )
        if own:
            found.append(
                Finding(
                    Level.BLOCKING,
                    f"publication {name}",
                    f"it publishes what Tailrace writes in {', '.join(own)}: capturing it would never end",
                    "publish the tables one by one (init does that when there is no publication), or keep catalog and "
                    "sinks in another database",
                )
            )
        return found

    def _policy_findings(self, wanted: Sequence[Table]) -> list[Finding]:
        """Policies that cannot be, that protect nothing because of a wrong name, or that differ from before."""
        findings = []
        for table in wanted:
            try:
                self._schema(table)
            except OperatorError as error:
                findings.append(Finding(Level.BLOCKING, table.text, error.message, error.hint))
                continue
            _, latest = self._topics.schemas.get(table.relid, (None, None)) if self._topics else (None, None)
            findings += [
                Finding(Level.NOTE, table.text, change, "capture reads the table again when it starts")
                for change in (self._policies.changed(table.label, latest) if latest else ())
            ]
        columns = [(*table.label, column.name) for table in self._taken for column in table.columns]
        for rule, close in self._policies.unused(columns):
            level = Level.NOTE if {"*", "?"} & set(rule) else Level.BLOCKING
            hint = f"did you mean {close}? " if close else ""
            hint += f"for a column that is still to come write a pattern: {rule}*"
            what = "this policy names no column that is captured, so it protects nothing"
            findings.append(Finding(level, rule, what, hint))
        return findings

    def _may_take(self, table: Table, findings: list[Finding]) -> bool:
        """Whether a table can be captured; says why not, and what is left out of one that can."""
        problem = problem_of(table) or self._leaf_problems.get(table.relid)
        if problem:
            findings.append(Finding(Level.SKIPPED, table.text, problem[0], problem[1]))
            return False
        if not table.readable:
            grant = f"GRANT USAGE ON SCHEMA {quote(table.schema)} TO {quote(self._server.user)}; "
            grant += (
                f"GRANT SELECT ON {quote(table.schema)}.{quote(table.name)} TO {quote(self._server.user)}"
            )
            findings.append(
                Finding(Level.BLOCKING, table.text, f"user {self._server.user} may not read it", grant)
            )
        if table.filtered:
            findings.append(
                Finding(
                    Level.BLOCKING,
                    table.text,
                    "row level security would hide rows from the first load",
                    f"ALTER ROLE {quote(self._server.user)} BYPASSRLS",
                )
            )
        if table.generated:
            columns = ", ".join(column.name for column in table.generated)
            findings.append(Finding(Level.NOTE, table.text, f"generated columns are not captured: {columns}"))
        if table.row_filter:
            findings.append(
                Finding(
                    Level.NOTE, table.text, f"only rows with {table.row_filter} are published and captured"
                )
            )
        if table.bag:
            findings.append(
                Finding(Level.NOTE, table.text, "it has no key: its rows are a bag, equal ones are counted")
            )
        if table.kind == "p":
            findings.append(
                Finding(
                    Level.NOTE,
                    table.text,
                    "partitioned: captured as one table",
                    "a partition that is attached with rows, detached or truncated alone has it read again",
                )
            )
        return True

    @property
    def _publishes_all(self) -> bool:
        return self._publication is not None and self._publication.all_tables

    def _may_add(self, table: Table, findings: list[Finding]) -> bool:
        """Not while another table feeds the topic of its name. One that left the publication may come back: capture
        sees by its new entry that changes are lost, and reads it again."""
        if self._publication is not None and not self._publication.owned:
            findings.append(self._not_ours_to_add(table, self._publication))
            return False
        topic = self._topic(table)
        info = self._infos().get(topic)
        if info is None or info.complete_since is None or self._topics is None or self._publication is None:
            return True
        owner = self._publication.tables.get(self._topics.relid(topic))
        if owner is None:
            findings.append(
                Finding(
                    Level.NOTE,
                    table.text,
                    "it left the publication, so changes of it are lost",
                    "`tailrace init` publishes it again, and capture then reads it again",
                )
            )
            return True
        schema, name = map(quote, owner)
        findings.append(
            Finding(
                Level.SKIPPED,
                table.text,
                f"{'.'.join(owner)} had its name before, and feeds its topic still",
                f"ALTER PUBLICATION {quote(self._publication_name)} DROP TABLE {schema}.{name}; once capture has "
                "noted that, run init again: the topic is then read from the table that has the name now",
            )
        )
        return False

    def _not_ours_to_add(self, table: Table, publication: Publication) -> Finding:
        """A publication of another role, which decides what is published."""
        name = f"{quote(table.schema)}.{quote(table.name)}"
        return Finding(
            Level.SKIPPED,
            table.text,
            f"publication {publication.name} does not publish it, and belongs to {publication.owner}",
            f"as {publication.owner}: ALTER PUBLICATION {quote(publication.name)} ADD TABLE {name}; "
            f"GRANT SELECT ON {name} TO {quote(self._server.user)}",
        )

    def _events(
        self, findings: list[Finding], published: Mapping[int, tuple[str, str]]
    ) -> list[tuple[str, str]]:
        """The table of domain events, when there is one and it can be added."""
        table = next((table for table in self._tables if table.label == EVENTS_TABLE), None)
        if table is None and self._events_wanted:
            findings.append(
                Finding(Level.NOTE, ".".join(EVENTS_TABLE), "the tables of domain events will be installed")
            )
        if table is None or table.relid in published:
            return []
        findings += _ownership([table], self._server)
        if self._loaded and self._has_rows(table):
            findings.append(
                Finding(
                    Level.SKIPPED,
                    table.text,
                    "it has events from before it was published, and the source is loaded already",
                    self._repair_hint(table),
                )
            )
            return []
        self._adds_events = True
        return [table.label]

    def _locks(self, *, quiet: bool) -> list[Lock]:
        """What the server locks of tables that come into the publication, one after the other; ``quiet``: nobody may
        append events, either."""
        return [
            Lock(
                label,
                "SHARE ROW EXCLUSIVE" if quiet and label == EVENTS_TABLE else "SHARE UPDATE EXCLUSIVE",
            )
            for label in self._add
        ]

    def _require_no_events(self) -> None:
        """Nobody may append between this look and the publication: what came before it is not in the stream. The table
        is locked."""
        table = sql.Identifier(*EVENTS_TABLE)
        if self._connection.execute(sql.SQL("SELECT 1 FROM {} LIMIT 1").format(table)).fetchone() is not None:
            raise OperatorError(
                f"events were appended to {'.'.join(EVENTS_TABLE)} before it was published",
                hint="run init again, which says how they are captured, or empty the table if nobody needs them",
            )

    def _repair_hint(self, table: Table) -> str:
        """A repair adds the events that the log has not, and streams from there on."""
        return (
            f"stop capture and run: {add_statement(self._publication_name, [table.label])}; "
            f"SELECT pg_drop_replication_slot('{self._slot}'); then `tailrace source repair`, which adds these events"
        )

    def _has_rows(self, table: Table) -> bool:
        with translated("looking for events", self._address):
            query = sql.SQL("SELECT 1 FROM {} LIMIT 1").format(sql.Identifier(*table.label))
            return self._connection.execute(query).fetchone() is not None

    def _left_over(self, wanted: Sequence[Table], infos: Mapping[TopicId, TopicInfo]) -> list[Finding]:
        taken = {self._topic(table) for table in wanted}
        return [
            Finding(
                Level.NOTE, topic.text, "no table of this name matches any more; its topic stays as it is"
            )
            for topic in infos
            if topic not in taken
        ]

    def _statements(self, add: Sequence[tuple[str, str]]) -> list[str]:
        if self._publication is None:
            return [create_statement(self._publication_name, add)]
        return [add_statement(self._publication_name, add)] if add else []


def _ownership(missing: Sequence[Table], server: Server) -> list[Finding]:
    return [
        Finding(
            Level.BLOCKING,
            table.text,
            f"user {server.user} does not own it, so may not publish it",
            f"GRANT {quote(table.owner)} TO {quote(server.user)}; or let its owner make the publication: see "
            "docs/capture/setting-up-a-source.md, the user of a source",
        )
        for table in missing
        if not table.owned
    ]
