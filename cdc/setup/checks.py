"""What stands in the way of a source, table by table. Every check is a function of one inspection. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tailrace.cdc.policy.policies import Policies
from tailrace.cdc.postgres.check import Server
from tailrace.cdc.postgres.connect import quote
from tailrace.cdc.postgres.ownership import mark_statement, owner_of
from tailrace.cdc.postgres.publication import Publication, add_statement
from tailrace.cdc.postgres.tables import Table
from tailrace.cdc.setup.table_choice import Level, SetupFinding, problem_of
from tailrace.cdc.topics import Topics, is_events
from tailrace.eventstore.errors import NotOwner, OperatorError, manual_page
from tailrace.eventstore.model.schema import TopicSchema
from tailrace.eventstore.model.topic import TopicId


@dataclass(frozen=True, slots=True)
class Inspection:
    """What source and log say when `init` looks. ``slot`` is also the publication's name. ``problems`` are the
    server's own. ``taken`` are the tables that the patterns take, ``skipped`` says why they leave others, ``own`` are
    oids of tables that Tailrace writes. ``topics``: None for a source that the log does not know. ``loaded``: the
    source has had its first load. ``events_schema`` has the events table. ``earlier_events``: that has rows and is not
    published yet."""

    source: str
    slot: str
    server: Server
    problems: Sequence[SetupFinding]
    publication: Publication | None
    tables: Sequence[Table]
    own: Mapping[int, str]
    taken: Sequence[Table]
    skipped: Sequence[SetupFinding]
    partition_problems: Mapping[int, tuple[str, str]]
    topics: Topics | None
    loaded: bool
    earlier_events: bool
    policies: Policies
    log_id: str
    events_schema: str
    foreign: OperatorError | None = None
    take_over: bool = False

    @property
    def published_tables(self) -> Mapping[int, tuple[str, str]]:
        return self.publication.tables if self.publication else {}

    @property
    def takes_over(self) -> NotOwner | None:
        """What makes slot and publication another's, when they can become this store's and shall."""
        return self.foreign if self.take_over and isinstance(self.foreign, NotOwner) else None

    @property
    def known_topics(self) -> Sequence[TopicId]:
        return list(self.topics.tables) if self.topics else []

    def topic(self, table: Table) -> TopicId:
        return TopicId.table(self.source, *table.label)

    def schema(self, table: Table) -> TopicSchema:
        """Raises OperatorError for a policy that its columns cannot have."""
        policies = self.policies.covering(table.relid, table.partitions)
        return policies.schema(table.label, table.topic_schema(1))

    def fed_topic(self, table: Table) -> TopicId | None:
        """The topic that gets the table's rows now; a renamed table keeps the topic it has."""
        owner = self.topics.schemas.get(table.relid) if self.topics else None
        return owner[0] if owner else None

    def needs_topic(self, table: Table) -> bool:
        known = self.topics.tables if self.topics else {}
        return self.fed_topic(table) is None and self.topic(table) not in known

    @property
    def events_table(self) -> Table | None:
        return next((table for table in self.tables if is_events(table, self.events_schema)), None)


def owner_findings(seen: Inspection) -> list[SetupFinding]:
    """Whose slot and publication are, and what only the publication's owner can do about it."""
    subject, publication = f"publication {seen.slot}", seen.publication
    if seen.foreign is not None and seen.takes_over is None:
        return [SetupFinding(Level.BLOCKING, subject, seen.foreign.message, seen.foreign.hint)]
    unmarkable = publication is not None and not publication.owned and owner_of(publication) != seen.log_id
    by_hand = ""
    if publication is not None and unmarkable:
        by_hand = f"as {publication.owner}: {mark_statement(seen.slot, publication, seen.log_id)}"
    if seen.takes_over is None:
        what = (
            "its comment does not name this log, so a first load that is cut off is not begun again by itself"
        )
        return [SetupFinding(Level.NOTE, subject, what, by_hand)] if unmarkable and seen.topics else []
    if unmarkable:
        what = "only its owner can make it this store's"
        return [SetupFinding(Level.BLOCKING, subject, what, by_hand)]
    return [SetupFinding(Level.NOTE, subject, f"taken over: {seen.takes_over.message}")]


def publication_findings(seen: Inspection) -> list[SetupFinding]:
    if seen.publication is None:
        if seen.server.may_create:
            return []
        return [
            SetupFinding(
                Level.BLOCKING,
                "publication",
                f"user {seen.server.user} may not create one",
                f'GRANT CREATE ON DATABASE "{seen.server.database}" TO "{seen.server.user}"',
            )
        ]
    subject, findings = f"publication {seen.slot}", []
    if seen.publication.mismatch:
        mend = f"ALTER PUBLICATION {quote(seen.slot)} SET (publish = 'insert, update, delete, truncate')"
        findings.append(SetupFinding(Level.BLOCKING, subject, seen.publication.mismatch, mend))
    entries = seen.publication.entries
    own = sorted({t.schema for t in seen.tables if t.relid in entries and t.relid in seen.own})
    if own:
        findings.append(
            SetupFinding(
                Level.BLOCKING,
                subject,
                f"it publishes what Tailrace writes in {', '.join(own)}: capturing it would never end",
                "publish the tables one by one (init does that when there is no publication), or keep catalog and "
                "sinks in another database",
            )
        )
    return findings


def capture_problem(seen: Inspection, table: Table) -> SetupFinding | None:
    """Why a table cannot be captured at all."""
    problem = problem_of(table) or seen.partition_problems.get(table.relid)
    return SetupFinding(Level.SKIPPED, table.text, *problem) if problem else None


def table_findings(seen: Inspection, table: Table) -> list[SetupFinding]:
    """What blocks a table that can be captured, what is left out of it, and how it is captured."""
    findings: list[SetupFinding] = []

    def add(level: Level, what: str, hint: str = "") -> None:
        findings.append(SetupFinding(level, table.text, what, hint))

    user = quote(seen.server.user)
    if not table.readable:
        schema, name = quote(table.schema), quote(table.name)
        grant = f"GRANT USAGE ON SCHEMA {schema} TO {user}; GRANT SELECT ON {schema}.{name} TO {user}"
        add(Level.BLOCKING, f"user {seen.server.user} may not read it", grant)
    if table.filtered:
        bypass = f"ALTER ROLE {user} BYPASSRLS"
        add(Level.BLOCKING, "row level security would hide rows from the first load", bypass)
    if table.generated:
        columns = ", ".join(column.name for column in table.generated)
        add(Level.NOTE, f"generated columns are not captured: {columns}")
    if table.row_filter:
        add(Level.NOTE, f"only rows with {table.row_filter} are published and captured")
    if table.bag:
        add(Level.NOTE, "it has no key: its rows are a bag, equal ones are counted")
    if table.kind == "p":
        add(
            Level.NOTE,
            "partitioned: captured as one table",
            "it is read again after a partition is attached with rows, detached or truncated alone",
        )
    return findings


def publish_problem(seen: Inspection, table: Table) -> SetupFinding | None:
    """Why a table cannot come into the publication: it is another role's, or another table still feeds the topic that
    has this table's name."""
    if seen.publication is None:
        return None
    name = f"{quote(table.schema)}.{quote(table.name)}"
    if not seen.publication.owned:
        owner = seen.publication.owner
        return SetupFinding(
            Level.SKIPPED,
            table.text,
            f"publication {seen.publication.name} does not publish it, and belongs to {owner}",
            f"as {owner}: ALTER PUBLICATION {quote(seen.publication.name)} ADD TABLE {name}; "
            f"GRANT SELECT ON {name} TO {quote(seen.server.user)}",
        )
    if not _has_complete_topic(seen, table) or (feeder := _published_feeder(seen, table)) is None:
        return None
    dropped = ".".join(map(quote, feeder))
    return SetupFinding(
        Level.SKIPPED,
        table.text,
        f"{'.'.join(feeder)} had this name before, and still feeds its topic",
        f"ALTER PUBLICATION {quote(seen.slot)} DROP TABLE {dropped}; once capture has noted that, run init again: "
        "the topic is then read from the table that has the name now",
    )


def left_publication(seen: Inspection, table: Table) -> list[SetupFinding]:
    """A note on a table that comes back into the publication. Capture sees its new entry and reads it again."""
    if seen.publication is None or not _has_complete_topic(seen, table) or _published_feeder(seen, table):
        return []
    return [
        SetupFinding(
            Level.NOTE,
            table.text,
            "it left the publication, so changes of it are lost",
            "`tailrace init` publishes it again, and capture then reads it again",
        )
    ]


def _has_complete_topic(seen: Inspection, table: Table) -> bool:
    info = seen.topics.tables.get(seen.topic(table)) if seen.topics else None
    return info is not None and info.complete_since is not None


def _published_feeder(seen: Inspection, table: Table) -> tuple[str, str] | None:
    """The published table that feeds the topic of this table's name."""
    if seen.publication is None or seen.topics is None:
        return None
    return seen.publication.tables.get(seen.topics.relid(seen.topic(table)))


def ownership_findings(seen: Inspection, tables: Sequence[Table]) -> list[SetupFinding]:
    user = seen.server.user
    return [
        SetupFinding(
            Level.BLOCKING,
            table.text,
            f"user {user} does not own it, so may not publish it",
            f"GRANT {quote(table.owner)} TO {quote(user)}; or let its owner make the publication: see "
            + manual_page("capture/setting-up-a-source.md", "The user of a source"),
        )
        for table in tables
        if not table.owned
    ]


def events_problem(seen: Inspection, table: Table) -> SetupFinding | None:
    """Why the events table cannot be published now: the stream would not have the events from before."""
    if not seen.earlier_events:
        return None
    return SetupFinding(
        Level.SKIPPED,
        table.text,
        "it has events from before it was published, and the source is loaded already",
        # A repair adds the events that the log has not, and streams from there on.
        f"stop capture and run: {add_statement(seen.slot, [table.label])}; SELECT pg_drop_replication_slot("
        f"'{seen.slot}'); then `tailrace source repair`, which adds these events",
    )


def rename_findings(seen: Inspection, tables: Sequence[Table]) -> list[SetupFinding]:
    fed = [(table, seen.fed_topic(table)) for table in tables]
    return [
        SetupFinding(Level.NOTE, table.text, f"it was renamed; its topic is still {topic.text}")
        for table, topic in fed
        if topic is not None and topic != seen.topic(table)
    ]


def unmatched_topics(seen: Inspection, tables: Sequence[Table]) -> list[SetupFinding]:
    matched = {seen.topic(table) for table in tables}
    return [
        SetupFinding(
            Level.NOTE, topic.text, "no table of this name matches any more; its topic stays as it is"
        )
        for topic in seen.known_topics
        if topic not in matched
    ]


def policy_findings(seen: Inspection, tables: Sequence[Table]) -> list[SetupFinding]:
    """Policies that cannot be, that differ from before, or that protect nothing because of a wrong name."""
    findings = []
    for table in tables:
        try:
            seen.schema(table)
        except OperatorError as error:
            findings.append(SetupFinding(Level.BLOCKING, table.text, error.message, error.hint))
            continue
        latest = seen.topics.schemas.get(table.relid) if seen.topics else None
        policies = seen.policies.covering(table.relid, table.partitions)
        findings += [
            SetupFinding(Level.NOTE, table.text, change, "capture reads the table again when it starts")
            for change in (policies.changed_columns(table.label, latest[1]) if latest else ())
        ]
    columns = [(*table.label, column.name) for table in seen.taken for column in table.columns]
    partitions = [part for table in seen.taken for part in table.partitions]
    columns += [(*part.label, name) for part in partitions for _, name in part.columns]
    columns += seen.policies.history.names  # which a column has had: they protect it still
    for rule, close in seen.policies.unmatched_rules(columns):
        level = Level.NOTE if {"*", "?"} & set(rule) else Level.BLOCKING
        hint = f"did you mean {close}? " if close else ""
        hint += f"for a column that is still to come write a pattern: {rule}*"
        what = "this policy names no column that is captured, so it protects nothing"
        findings.append(SetupFinding(level, rule, what, hint))
    return findings
