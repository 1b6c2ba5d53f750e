"""Which tables of a source are taken, and why others are not."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from tailrace.cdc.columnar.schema_change import taken_names
from tailrace.cdc.policy.patterns import TablePatterns
from tailrace.cdc.postgres.connect import quote
from tailrace.cdc.postgres.publication import Publication
from tailrace.cdc.postgres.tables import Table
from tailrace.cdc.topics import Topics
from tailrace.eventstore.model.event_schema import EVENTS_SCHEMA

_CATALOG_TABLES = {"log_head", "topic_offsets", "alembic_version"}
_CATALOG = "it is a catalog of Tailrace, which must not capture itself"


class Level(StrEnum):
    BLOCKING = "blocking"  # nothing is prepared until it is mended
    SKIPPED = "skipped"  # this table is not captured
    NOTE = "note"  # good to know


@dataclass(frozen=True, slots=True)
class SetupFinding:
    level: Level
    subject: str
    what: str
    hint: str = ""

    def __str__(self) -> str:
        return f"{self.subject}: {self.what}" + (f" ({self.hint})" if self.hint else "")


def own_tables(
    tables: Sequence[Table], catalog_schema: str | None, written: Collection[int]
) -> dict[int, str]:
    """Oids of tables that Tailrace itself writes, and what they are: its catalog's, and those with oids in ``written``
    (projections write them)."""
    by_schema: dict[str, set[str]] = {}
    for table in tables:
        by_schema.setdefault(table.schema, set()).add(table.name)
    catalogs = {schema for schema, names in by_schema.items() if names >= _CATALOG_TABLES} | {catalog_schema}
    found = dict.fromkeys(written, "a projection of Tailrace writes it: capturing it would never end")
    return found | {table.relid: _CATALOG for table in tables if table.schema in catalogs}


def choose_tables(
    tables: Sequence[Table],
    patterns: TablePatterns,
    publication: Publication | None,
    own: Mapping[int, str],
    events_schema: str = EVENTS_SCHEMA,
) -> tuple[list[Table], list[SetupFinding]]:
    """Tables that the patterns take. Left out: those with oids in ``own`` (oid -> why), those of the DDL trigger and of
    domain events, and either the partitions of a table that is taken or, in a publication that sends the rows of
    partitions as theirs, partitioned tables."""
    apart = (EVENTS_SCHEMA, events_schema)
    matched = [table for table in tables if patterns.match(*table.label) and table.schema not in apart]
    schemas = sorted({table.schema for table in matched if own.get(table.relid) == _CATALOG})
    findings = [SetupFinding(Level.SKIPPED, schema, _CATALOG) for schema in schemas]
    findings += [
        SetupFinding(Level.SKIPPED, table.text, own[table.relid])
        for table in matched
        if own.get(table.relid, _CATALOG) != _CATALOG
    ]
    matched = [table for table in matched if table.relid not in own]
    if publication is not None and not publication.via_root:
        return [table for table in matched if table.kind != "p"], findings
    relids = {table.relid for table in matched}
    return [table for table in matched if relids.isdisjoint(table.roots)], findings


def problem_of(table: Table) -> tuple[str, str] | None:
    """Why a table cannot be captured, and what to do: published without a key, its owner's UPDATEs would fail."""
    name = f"{quote(table.schema)}.{quote(table.name)}"
    if table.kind == "f":
        return "a foreign table has no WAL here", "capture it where it lives"
    if table.persistence == "u":
        return "an unlogged table has no WAL", f"ALTER TABLE {name} SET LOGGED"
    if not table.columns:
        return "it has no columns", "add one"
    if table.published_badly:
        return (
            f"{table.published_badly}: the server refuses UPDATE and DELETE of it",
            f"ALTER PUBLICATION … SET TABLE, with {name} and all columns of its replica identity",
        )
    if not table.key:
        return (
            f"{table.key_problem}, so changed rows cannot be identified",
            _identity_hint(table, name),
        )
    if clashing := taken_names(table.columns):
        return (
            f"its column {clashing[0]} has the name of one that the log adds to a row's state",
            f"ALTER TABLE {name} RENAME COLUMN {quote(clashing[0])} TO …; or publish it without that column",
        )
    return None


def _identity_hint(table: Table, name: str) -> str:
    if table.kind == "p":
        return "add a primary key: without one each new partition would refuse its owner's UPDATE and DELETE"
    if table.identity == "n":
        return f"ALTER TABLE {name} REPLICA IDENTITY DEFAULT with a primary key, FULL without one"
    return (
        f"add a primary key, or ALTER TABLE {name} REPLICA IDENTITY USING INDEX a unique one on NOT NULL columns, or"
        f" ALTER TABLE {name} REPLICA IDENTITY FULL: its rows are then a bag, equal ones are counted"
    )


def uncaptured_tables(
    tables: Sequence[Table],
    patterns: TablePatterns,
    publication: Publication,
    topics: Topics,
    own: Mapping[int, str],
) -> list[Table]:
    """Tables that match and could be captured but are not, or not published: they came after `init`."""
    taken, _ = choose_tables(tables, patterns, publication, own)
    captured = publication.entries.keys() & topics.schemas.keys()
    return [table for table in taken if table.relid not in captured and problem_of(table) is None]
