"""Publications: what one holds, how it holds a table, and the SQL that creates or extends it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field

from psycopg import Connection, sql

from tailrace.cdc.postgres.connect import Address, quote, translate_errors


@dataclass(frozen=True, slots=True)
class Leaf:
    """A partition that holds rows. ``links`` are its ties to the root, level by level. ``born``: it was created as a
    partition, so it was empty then, and it has not been rewritten since."""

    file: int  # relfilenode
    links: str
    born: bool = False


@dataclass(frozen=True, slots=True)
class TablePublication:
    """How a table is published and of which partitions it consists. A topic is complete only as long as this holds.

    The log keeps it with the load that completed the topic; capture compares it with the source at every check. The
    source's catalog keeps no history, but its rows have identities (oid and xmin) that never come back. So a table
    that left the publication and came back, even while nobody looked, has another entry than before. Partitions that
    were filled before they were attached, or that are gone, changed rows without an event in the stream of their root.

    ``publication`` identifies the publication and its options, ``entries`` what makes it hold this table."""

    publication: str
    entries: tuple[str, ...] = ()
    row_filter: str = ""
    column_list: str = ""
    leaves: Mapping[int, Leaf] = field(default_factory=dict)

    def to_json(self) -> str:
        return json.dumps(asdict(self), ensure_ascii=False, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> TablePublication:
        data = json.loads(text)
        leaves = {int(oid): Leaf(**leaf) for oid, leaf in data.pop("leaves").items()}
        return cls(entries=tuple(data.pop("entries")), leaves=leaves, **data)


def lost_changes(before: TablePublication, now: TablePublication) -> str:
    """Why changes of the table may be missing since ``before``; "" when none are."""
    if before.publication != now.publication:
        return "its publication was altered or made again"
    if before.row_filter != now.row_filter:
        return "its row filter changed"
    if before.column_list != now.column_list:
        return "its column list changed"
    if before.entries != now.entries:
        return "it left the publication and came back"
    if before.leaves.keys() - now.leaves.keys():
        return "a partition was detached or dropped"
    if any(now.leaves[oid].links != leaf.links for oid, leaf in before.leaves.items()):
        return "a partition was detached and attached again"
    if any(now.leaves[oid].file != leaf.file for oid, leaf in before.leaves.items()):
        return "a partition was truncated or rewritten"
    if not all(now.leaves[oid].born for oid in now.leaves.keys() - before.leaves.keys()):
        return "a partition was attached that may have had rows"
    return ""


Row = tuple[object, ...]


@dataclass(frozen=True, slots=True)
class PublicationEntry:
    """One table as it is published. ``columns``: names of what is sent, None = all but generated ones.
    ``filter_columns``: attnums that the row filter looks at, as far as the column list shows them."""

    label: tuple[str, str]
    identity: TablePublication
    columns: tuple[str, ...] | None = None
    filter_columns: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Publication:
    """``entries``: by oid the tables whose rows it sends, however they came into it: one by one, with their schema,
    with all tables, or as partitions (those as tables of their own only when not ``via_root``)."""

    name: str
    all_tables: bool
    operations: frozenset[str]
    via_root: bool
    entries: Mapping[int, PublicationEntry]
    schemas: tuple[str, ...] = ()
    owner: str = ""
    owned: bool = True  # by the source's user, or by a role that it is in: only an owner adds tables
    comment: str = ""  # names the log that it belongs to (``tailrace.cdc.postgres.ownership``)
    tables: Mapping[int, tuple[str, str]] = field(init=False)
    """Oid -> (schema, name) of the entries; none while the publication loses changes."""

    def __post_init__(self) -> None:
        tables = {} if self.mismatch else {oid: entry.label for oid, entry in self.entries.items()}
        object.__setattr__(self, "tables", tables)

    @property
    def mismatch(self) -> str:
        """Why it cannot serve capture as it is, "" when it can."""
        missing = {"insert", "update", "delete", "truncate"} - self.operations
        return f"it does not publish {', '.join(sorted(missing))}" if missing else ""


_OPERATIONS = ("insert", "update", "delete", "truncate")
# What the server's view pg_publication_tables says, read from the catalog itself: the view opens each table, so it
# waits behind a session that alters one, and fails when that one is dropped (here only row filters open theirs); up to
# version 17 it lists generated columns that are not sent. Via the root a partition is left out when an ancestor is
# listed, else leaves stand for their root.
# Entries make the publication hold a table: its own or an ancestor's, its schema's or an ancestor's schema's. They are
# read from the tables themselves, so that in a snapshot they are those of the snapshot.
_ENTRIES = """
WITH RECURSIVE listed AS (
  SELECT r.prrelid AS oid FROM pg_catalog.pg_publication_rel r WHERE r.prpubid = %(pub)s::bigint::oid
  {listed}
  UNION SELECT c.oid FROM pg_catalog.pg_class c
  WHERE %(all)s AND c.relkind IN ('r', 'p') AND c.relpersistence = 'p' AND c.oid >= 16384
), below AS (
  SELECT l.oid FROM listed l
  UNION SELECT i.inhrelid FROM below b JOIN pg_catalog.pg_class c ON c.oid = b.oid AND c.relkind = 'p'
  JOIN pg_catalog.pg_inherits i ON i.inhparent = b.oid AND NOT i.inhdetachpending
), published AS (
  SELECT c.oid, n.nspname, c.relname FROM pg_catalog.pg_class c
  JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
  WHERE CASE WHEN %(via_root)s THEN c.oid IN (SELECT oid FROM listed) AND NOT (c.relispartition AND EXISTS (
      SELECT FROM pg_catalog.pg_partition_ancestors(c.oid) a WHERE a.relid <> c.oid
      AND a.relid IN (SELECT oid FROM listed)))
    ELSE c.relkind = 'r' AND c.oid IN (SELECT oid FROM below) END
    AND (%(relids)s::bigint[] IS NULL OR c.oid = ANY (%(relids)s::bigint[]::oid[]))
), above AS (
  SELECT oid AS leaf, oid AS relid, NULL::text AS link FROM published
  UNION ALL
  SELECT a.leaf, i.inhparent, format('p%%s.%%s', i.inhparent, i.xmin)
  FROM above a JOIN pg_catalog.pg_class c ON c.oid = a.relid AND c.relispartition
  JOIN pg_catalog.pg_inherits i ON i.inhrelid = a.relid
), entries AS (
  SELECT a.leaf, format('r%%s.%%s', r.oid, r.xmin) AS entry FROM above a
  JOIN pg_catalog.pg_publication_rel r ON r.prrelid = a.relid AND r.prpubid = %(pub)s::bigint::oid
  {schemas}
  UNION ALL SELECT a.leaf, a.link FROM above a WHERE a.link IS NOT NULL AND NOT EXISTS (
    SELECT FROM pg_catalog.pg_publication_rel r WHERE r.prrelid = a.leaf AND r.prpubid = %(pub)s::bigint::oid)
), by_leaf AS (
  SELECT e.leaf, array_agg(DISTINCT e.entry ORDER BY e.entry) AS entries FROM entries e GROUP BY e.leaf
)
SELECT p.oid::bigint, p.nspname, p.relname, {columns},
       coalesce(e.entries, '{{}}'),
       {filter}, {list},
       ARRAY(SELECT DISTINCT d.refobjsubid::int FROM pg_catalog.pg_depend d
             WHERE d.classid = 'pg_catalog.pg_publication_rel'::regclass AND d.objid = r.oid
             AND d.refclassid = 'pg_catalog.pg_class'::regclass AND d.refobjsubid > 0)
FROM published p
LEFT JOIN by_leaf e ON e.leaf = p.oid
LEFT JOIN pg_catalog.pg_publication_rel r ON r.prrelid = p.oid AND r.prpubid = %(pub)s::bigint::oid
"""
_BEFORE_15 = {
    "listed": "",
    "schemas": "",
    "columns": "NULL::text[]",
    "filter": "NULL::text",
    "list": "NULL::text",
}
_SINCE_15 = {
    "listed": """
  UNION SELECT c.oid FROM pg_catalog.pg_publication_namespace s
  JOIN pg_catalog.pg_class c ON c.relnamespace = s.pnnspid AND c.relkind IN ('r', 'p') AND c.relpersistence = 'p'
  WHERE s.pnpubid = %(pub)s::bigint::oid""",
    "schemas": """
  UNION ALL SELECT a.leaf, format('s%%s.%%s', s.oid, s.xmin) FROM above a
  JOIN pg_catalog.pg_class c ON c.oid = a.relid
  JOIN pg_catalog.pg_publication_namespace s ON s.pnnspid = c.relnamespace AND s.pnpubid = %(pub)s::bigint::oid""",
    "columns": """CASE WHEN r.prattrs IS NOT NULL OR %(generated)s THEN
         ARRAY(SELECT a.attname::text FROM pg_catalog.pg_attribute a
               WHERE a.attrelid = p.oid AND a.attnum > 0 AND NOT a.attisdropped
               AND CASE WHEN r.prattrs IS NULL THEN a.attgenerated IN ('', 's')
                        ELSE a.attnum = ANY (r.prattrs::int2[]) END ORDER BY a.attnum) END""",
    "filter": "pg_catalog.pg_get_expr(r.prqual, r.prrelid)",
    "list": "r.prattrs::text",
}
# The leaves of partitioned tables. A partition made by CREATE TABLE … PARTITION OF is a partition two commands of its
# transaction later than it is a table; one that was given rows before ATTACH is it later (tried on Postgres 18).
_LEAVES = """
WITH RECURSIVE tree AS (
  SELECT c.oid AS root, c.oid AS relid, true AS born, '' AS links FROM pg_catalog.pg_class c
  WHERE c.oid = ANY (%s::bigint[]::oid[]) AND c.relkind = 'p'
  UNION ALL
  SELECT t.root, i.inhrelid, t.born AND i.xmin = a.xmin AND i.cmin::text::bigint - a.cmin::text::bigint <= 2,
         t.links || '.' || i.xmin::text
  FROM tree t JOIN pg_catalog.pg_inherits i ON i.inhparent = t.relid AND NOT i.inhdetachpending
  JOIN pg_catalog.pg_attribute a ON a.attrelid = i.inhrelid AND a.attnum = -1
)
SELECT t.root::bigint, c.oid::bigint, c.relfilenode::bigint, t.links, t.born AND c.relfilenode = c.oid
FROM tree t JOIN pg_catalog.pg_class c ON c.oid = t.relid WHERE c.relkind = 'r'
"""


def read_publication(
    connection: Connection[Row], name: str, address: Address, relids: Sequence[int] | None = None
) -> Publication | None:
    """The publication, None when there is none; of its entries those with these oids.

    It waits for a session that has locked a table whose row filter it reads, so a session that holds locks names its
    own tables."""
    with translate_errors("reading the publication", address):
        row = connection.execute(
            "SELECT oid::bigint, puballtables, pubinsert, pubupdate, pubdelete, pubtruncate, pubviaroot, xmin::text,"
            " coalesce(to_jsonb(p) ->> 'pubgencols', 'n') = 's', pg_catalog.pg_get_userbyid(pubowner)::text,"
            " pg_catalog.pg_has_role(pubowner, 'USAGE'),"
            " coalesce(pg_catalog.obj_description(oid, 'pg_publication'), '')"
            " FROM pg_catalog.pg_publication p WHERE pubname = %s",
            [name],
        ).fetchone()
        if row is None:
            return None
        since_15 = connection.info.server_version >= 150000
        parts = {key: sql.SQL(text) for key, text in (_SINCE_15 if since_15 else _BEFORE_15).items()}
        wanted = {"pub": row[0], "all": row[1], "via_root": row[6], "generated": row[8]}
        wanted["relids"] = None if relids is None else list(relids)
        entries = connection.execute(sql.SQL(_ENTRIES).format(**parts), wanted).fetchall()
        leaves: dict[int, dict[int, Leaf]] = {}
        roots = [entry[0] for entry in entries]
        for root, leaf, file, links, born in connection.execute(_LEAVES, [roots]).fetchall():
            leaves.setdefault(_int(root), {})[_int(leaf)] = Leaf(_int(file), str(links), bool(born))
        schemas: list[Row] = []
        if since_15:
            schemas = connection.execute(
                "SELECT n.nspname FROM pg_catalog.pg_publication_namespace p"
                " JOIN pg_catalog.pg_namespace n ON n.oid = p.pnnspid WHERE p.pnpubid = %s::bigint::oid",
                [row[0]],
            ).fetchall()
    itself = f"{row[0]}.{row[7]}"
    return Publication(
        name=name,
        all_tables=bool(row[1]),
        operations=frozenset(word for word, on in zip(_OPERATIONS, row[2:6], strict=True) if on),
        via_root=bool(row[6]),
        entries={_int(each[0]): _entry(each, itself, leaves.get(_int(each[0]), {})) for each in entries},
        schemas=tuple(str(schema) for (schema,) in schemas),
        owner=str(row[9]),
        owned=bool(row[10]),
        comment=str(row[11]),
    )


def _entry(row: Row, publication: str, leaves: Mapping[int, Leaf]) -> PublicationEntry:
    _, schema, name, columns, entries, row_filter, column_list, used = row
    listed = [int(number) for number in str(column_list or "").split()]
    return PublicationEntry(
        label=(str(schema), str(name)),
        identity=TablePublication(
            publication=publication,
            entries=tuple(map(str, entries)),  # type: ignore[call-overload]
            row_filter=str(row_filter or ""),
            column_list=str(column_list or ""),
            leaves=leaves,
        ),
        columns=None if columns is None else tuple(map(str, columns)),  # type: ignore[call-overload]
        filter_columns=tuple(number for number in used if number not in listed) if row_filter else (),  # type: ignore[attr-defined]
    )


def _int(value: object) -> int:
    assert isinstance(value, int)
    return value


def create_statement(name: str, tables: Iterable[tuple[str, str]]) -> str:
    """CREATE PUBLICATION, also for no tables: the slot must not be older than its publication."""
    targets = _targets(tables)
    options = "WITH (publish = 'insert, update, delete, truncate', publish_via_partition_root = true)"
    return f"CREATE PUBLICATION {quote(name)}{f' FOR TABLE {targets}' if targets else ''} {options}"


def add_statement(name: str, tables: Sequence[tuple[str, str]]) -> str:
    return f"ALTER PUBLICATION {quote(name)} ADD TABLE {_targets(tables)}"


def _targets(tables: Iterable[tuple[str, str]]) -> str:
    """Tables by ONLY: those that inherit from one are matched by the patterns themselves."""
    return ", ".join(f"ONLY {quote(schema)}.{quote(name)}" for schema, name in tables)
