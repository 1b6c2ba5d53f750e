"""Tables as the source's catalog describes them now: columns, key, partitions, and what forbids capture."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from psycopg import Connection, sql

from tailrace.cdc.policy.history import Partition
from tailrace.cdc.postgres.connect import Address, translate_errors
from tailrace.cdc.postgres.publication import Publication, PublicationEntry
from tailrace.eventstore.model.schema import Column, TopicSchema

Row = tuple[object, ...]


@dataclass(frozen=True, slots=True)
class Table:
    """One table. ``identity``: d default, n nothing, f full, i index. ``key`` are the names of the key columns: those
    of the replica identity, under FULL those of the primary key; () when there is none that capture can use.
    ``bag``: under FULL without a primary key all columns are the key, and equal rows are counted. ``columns`` are those
    that are captured, ``generated`` those that are computed and not published. ``row_filter``: SQL that chooses the
    rows that are published, "" all. ``published_badly``: why its publication makes the server refuse UPDATE and DELETE.
    """

    relid: int
    schema: str
    name: str
    kind: str  # relkind: r table, p partitioned table
    persistence: str  # p permanent, u unlogged, t temporary
    roots: tuple[int, ...]  # of a partition: the tables that it is part of, directly or not
    identity: str
    key: tuple[str, ...]
    key_problem: str
    bag: bool
    columns: tuple[Column, ...]
    generated: tuple[Column, ...]
    readable: bool
    owned: bool
    owner: str
    filtered: bool  # row level security would hide rows from this user
    file: int  # relfilenode as this snapshot knows it
    blocks: int = 0  # where somebody measured it: that takes a lock
    row_filter: str = ""
    published_badly: str = ""
    partitions: tuple[Partition, ...] = ()  # of a partitioned table, also those below its partitions

    @property
    def label(self) -> tuple[str, str]:
        return self.schema, self.name

    @property
    def text(self) -> str:
        return f"{self.schema}.{self.name}"

    def topic_schema(self, version: int, from_lsn: int = 0) -> TopicSchema:
        return TopicSchema(
            version=version, columns=self.columns, from_lsn=from_lsn, relid=self.relid, bag=self.bag
        )


_CLASSES = """
SELECT c.oid::bigint, n.nspname, c.relname, c.relkind::text, c.relpersistence::text,
       CASE WHEN c.relispartition THEN ARRAY(SELECT a.relid::oid::bigint
         FROM pg_catalog.pg_partition_ancestors(c.oid) a WHERE a.relid <> c.oid) ELSE '{}' END,
       c.relreplident::text, coalesce(pg_catalog.has_table_privilege(c.oid, 'SELECT'), false)
         AND pg_catalog.has_schema_privilege(n.oid, 'USAGE'),
       pg_catalog.pg_has_role(c.relowner, 'USAGE'), pg_catalog.pg_get_userbyid(c.relowner)::text,
       c.relrowsecurity AND NOT (SELECT r.rolsuper OR r.rolbypassrls FROM pg_catalog.pg_roles r
         WHERE r.rolname = current_user)
         AND (c.relforcerowsecurity OR NOT pg_catalog.pg_has_role(c.relowner, 'USAGE')),
       c.relfilenode::bigint
FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind IN ('r', 'p', 'f') AND c.relpersistence <> 't'
  AND n.nspname !~ '^pg_' AND n.nspname <> 'information_schema'
  AND (%(relids)s::bigint[] IS NULL OR c.oid = ANY (%(relids)s::bigint[]::oid[]))
ORDER BY n.nspname, c.relname
"""
_COLUMNS = """
WITH d AS MATERIALIZED (
  SELECT c.bytes, CASE WHEN o.provider = 'b' OR o.provider = 'c' AND o.datcollate = ANY (c.bytes) THEN 'C'
                       ELSE coalesce(o.locale, o.datcollate) END AS name
  FROM (SELECT datcollate::text, coalesce(pg_catalog.to_jsonb(x) ->> 'datlocprovider', 'c') AS provider,
               coalesce(pg_catalog.to_jsonb(x) ->> 'datlocale', pg_catalog.to_jsonb(x) ->> 'daticulocale') AS locale
        FROM pg_catalog.pg_database x WHERE x.datname = pg_catalog.current_database()) o,
       (SELECT ARRAY['C', 'POSIX', 'C.UTF-8', 'C.utf8'] AS bytes) c)
SELECT a.attrelid::bigint, a.attnum::int, a.attname, a.atttypid::bigint, a.atttypmod,
       pg_catalog.format_type(a.atttypid, a.atttypmod), a.attgenerated::text,
       CASE WHEN a.atthasmissing THEN pg_catalog.array_to_string(a.attmissingval, '') END,
       coalesce(b.oid, 0)::bigint, coalesce(b.typmod, -1), coalesce(b.typtype, t.typtype)::text,
       CASE WHEN NOT l.collisdeterministic THEN l.collname || ' (nondeterministic)'
            WHEN l.collprovider = 'd' THEN d.name
            WHEN l.collprovider = 'b' OR l.collprovider = 'c' AND l.collcollate = ANY (d.bytes) THEN 'C'
            ELSE coalesce(l.collname, '') END
FROM pg_catalog.pg_attribute a
JOIN pg_catalog.pg_type t ON t.oid = a.atttypid
LEFT JOIN LATERAL (
  WITH RECURSIVE below(oid, typmod, typtype, next, next_typmod) AS (
    SELECT t.typbasetype, t.typtypmod, n.typtype, n.typbasetype, n.typtypmod
    FROM pg_catalog.pg_type n WHERE n.oid = t.typbasetype
    UNION ALL SELECT n.oid, w.next_typmod, n.typtype, n.typbasetype, n.typtypmod
    FROM below w JOIN pg_catalog.pg_type n ON n.oid = w.next)
  SELECT oid, typmod, typtype FROM below WHERE typtype <> 'd') b ON t.typtype = 'd'
LEFT JOIN pg_catalog.pg_collation l ON l.oid = a.attcollation
CROSS JOIN d
WHERE a.attrelid = ANY (%(relids)s::bigint[]::oid[]) AND a.attnum > 0 AND NOT a.attisdropped
ORDER BY a.attrelid, a.attnum
"""
_KEYS = """
SELECT i.indrelid::bigint, i.indisprimary, i.indisreplident, i.indimmediate, i.indisvalid,
       (SELECT array_agg(k.attnum::int) FROM unnest(i.indkey::int2[]) WITH ORDINALITY k(attnum, position)
        WHERE k.position <= i.indnkeyatts)
FROM pg_catalog.pg_index i
WHERE i.indrelid = ANY (%(relids)s::bigint[]::oid[]) AND (i.indisprimary OR i.indisreplident)
"""
TREE = """
WITH RECURSIVE tree(root, oid) AS (
  SELECT r.oid, r.oid FROM unnest(%(relids)s::bigint[]::oid[]) r(oid)
  UNION SELECT t.root, i.inhrelid FROM tree t JOIN pg_catalog.pg_class p ON p.oid = t.oid AND p.relkind = 'p'
  JOIN pg_catalog.pg_inherits i ON i.inhparent = t.oid AND NOT i.inhdetachpending
)"""
"""The start of a query: the tables ``relids``, each as its own ``root``, and all partitions below them. It reads rows
of the catalog, because pg_partition_tree locks one partition after the other and waits while it holds some."""
_PARTITIONS = (
    TREE
    + """
SELECT t.root::bigint, c.oid::bigint, n.nspname, c.relname, array_agg(a.attnum::int ORDER BY a.attnum),
       array_agg(a.attname::text ORDER BY a.attnum)
FROM tree t JOIN pg_catalog.pg_class c ON c.oid = t.oid JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
JOIN pg_catalog.pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
WHERE t.oid <> t.root GROUP BY t.root, c.oid, n.nspname, c.relname
"""
)


def read_tables(
    connection: Connection[Row], address: Address, relids: Sequence[int] | None = None
) -> list[Table]:
    """All ordinary, partitioned and foreign tables outside the system's schemas, or those with these oids.

    Waits for nobody: it takes no lock of a table, behind which a queue of DDL may stand."""
    with translate_errors("reading the catalog", address):
        wanted = {"relids": None if relids is None else list(relids)}
        classes = connection.execute(_CLASSES, wanted).fetchall()
        found = {"relids": [row[0] for row in classes]}
        columns: dict[int, list[Row]] = {}
        for row in connection.execute(_COLUMNS, found).fetchall():
            columns.setdefault(_int(row[0]), []).append(row)
        indexes: dict[int, list[Row]] = {}
        for row in connection.execute(_KEYS, found).fetchall():
            indexes.setdefault(_int(row[0]), []).append(row)
        partitions: dict[int, list[Partition]] = {}
        if roots := [row[0] for row in classes if row[3] == "p"]:
            for root, relid, schema, name, numbers, names in connection.execute(
                _PARTITIONS, {"relids": roots}
            ).fetchall():
                named = tuple(zip(map(_int, numbers), map(str, names), strict=True))  # type: ignore[call-overload]
                part = Partition(_int(relid), (str(schema), str(name)), named)
                partitions.setdefault(_int(root), []).append(part)
    return [
        replace(
            _table(row, columns.get(_int(row[0]), []), indexes.get(_int(row[0]), [])),
            partitions=tuple(partitions.get(_int(row[0]), ())),
        )
        for row in classes
    ]


def _table(row: Row, columns: list[Row], indexes: list[Row]) -> Table:
    relid, schema, name, kind, persistence, roots, identity, readable, owned, owner, filtered, file = row
    numbers, problem = _key(str(identity), indexes)
    stored = [column for column in columns if not column[6]]
    hidden = [column for column in columns if column[6]]
    if any(_int(column[1]) in numbers for column in hidden):
        numbers, problem = set(), "a generated column is part of its key"
    bag = identity == "f" and kind == "r" and not numbers
    if bag:
        numbers = {_int(column[1]) for column in stored}
    return Table(
        relid=_int(relid),
        schema=str(schema),
        name=str(name),
        kind=str(kind),
        persistence=str(persistence),
        roots=tuple(_int(root) for root in roots),  # type: ignore[attr-defined]
        identity=str(identity),
        key=tuple(str(column[2]) for column in stored if _int(column[1]) in numbers),
        key_problem=problem,
        bag=bag,
        columns=tuple(_column(column, _int(column[1]) in numbers) for column in stored),
        generated=tuple(_column(column, False) for column in hidden),
        readable=bool(readable),
        owned=bool(owned),
        owner=str(owner),
        filtered=bool(filtered),
        file=_int(file),
    )


def apply_publication(tables: Iterable[Table], publication: Publication | None) -> list[Table]:
    """The tables as a publication sends them: with its column lists, generated columns and row filters. Those that it
    does not hold stay as they are."""
    entries = publication.entries if publication else {}
    return [
        _apply_entry(table, entries[table.relid]) if table.relid in entries else table for table in tables
    ]


def _apply_entry(table: Table, entry: PublicationEntry) -> Table:
    everything = sorted((*table.columns, *table.generated), key=lambda column: column.id)
    if entry.columns is None:
        sent = table.columns
    else:
        sent = tuple(column for column in everything if column.name in entry.columns)
    return replace(
        table,
        columns=sent,
        generated=tuple(column for column in table.generated if column not in sent),
        row_filter=entry.identity.row_filter,
        published_badly=_publication_problem(table, sent, entry),
    )


def _publication_problem(table: Table, sent: Sequence[Column], entry: PublicationEntry) -> str:
    """What the server checks at each UPDATE and DELETE of a published table (CheckCmdReplicaIdentity)."""
    if table.identity == "f":
        return "its column list does not go with REPLICA IDENTITY FULL" if entry.identity.column_list else ""
    unsent = [column.name for column in table.columns if column.key and column not in sent]
    if unsent:
        return f"its column list leaves out {', '.join(unsent)} of the replica identity"
    loose = [c.name for c in table.columns if c.id in entry.filter_columns and not c.key]
    if loose:
        return f"its row filter looks at {', '.join(loose)}, which the replica identity does not cover"
    return ""


def _key(identity: str, indexes: list[Row]) -> tuple[set[int], str]:
    """Numbers of the key columns, or why there is no key that capture can use."""
    primary = next((row for row in indexes if row[1]), None)
    chosen = next((row for row in indexes if row[2]), None) if identity == "i" else primary
    if identity == "n":
        return set(), "REPLICA IDENTITY NOTHING"
    if chosen is None:
        return set(), "no primary key" if identity in "df" else "the replica identity's index is gone"
    if not chosen[3]:
        return set(), "its primary key is deferrable, which cannot identify rows"
    if not chosen[4]:
        return set(), "its key's index is not valid"
    return {_int(number) for number in chosen[5]}, ""  # type: ignore[attr-defined]


def _column(row: Row, key: bool) -> Column:
    _, number, name, type_oid, typmod, type_name, _, fill, base, base_typmod, kind, collation = row
    return Column(
        id=_int(number),
        name=str(name),
        type_oid=_int(type_oid),
        typmod=_int(typmod),
        type_name=str(type_name),
        key=key,
        fill=None if fill is None else str(fill),
        base_oid=_int(base),
        base_typmod=_int(base_typmod),
        type_kind=str(kind),
        collation=str(collation),
    )


def _int(value: object) -> int:
    assert isinstance(value, int)
    return value


_PROBLEMS = (
    TREE
    + """
SELECT t.root::bigint, min(c.oid::regclass::text)
FROM tree t JOIN pg_catalog.pg_class p ON p.oid = t.root JOIN pg_catalog.pg_class c ON c.oid = t.oid
WHERE c.relkind <> 'p' AND (c.relkind <> 'r' OR c.relpersistence <> 'p'
  OR c.relreplident NOT IN ('d', 'f') OR (p.relreplident = 'i')) GROUP BY t.root
"""
)


def leaf_problems(
    connection: Connection[Row], address: Address, tables: Sequence[Table]
) -> dict[int, tuple[str, str]]:
    """Partitioned tables with a partition that cannot be captured. The partition's replica identity counts, not the
    root's."""
    roots = [table.relid for table in tables if table.kind == "p"]
    if not roots:
        return {}
    with translate_errors("reading the partitions", address):
        rows = connection.execute(_PROBLEMS, {"relids": roots}).fetchall()
    return {
        int(str(oid)): (
            f"its partition {leaf} is foreign, unlogged or has another replica identity",
            "give all partitions REPLICA IDENTITY DEFAULT on one primary key",
        )
        for oid, leaf in rows
    }


FENCES, LIVE = "tailrace_fences", "tailrace_live"
_COMMENTED = """
SELECT objoid::bigint FROM pg_catalog.pg_description
WHERE classoid = 'pg_catalog.pg_class'::regclass AND objsubid = 0
  AND description LIKE 'Tailrace: generation % of projection %; written by it alone'
"""


def written_tables(connection: Connection[Row], address: Address, tables: Sequence[Table]) -> frozenset[int]:
    """Oids of the ``tables`` (all of the database) that projections write. Captured, they would feed the log with what
    was computed from it, for ever.

    A Postgres sink keeps two tables of its own beside the generations of its projections and lists those in one of
    them. The source's user may not be allowed to read that list, so each generation also says in its comment what it
    is."""
    oids: set[int] = set()
    for ledger in (table for table in tables if table.name == FENCES):
        beside = {table.name: table.relid for table in tables if table.schema == ledger.schema}
        if LIVE not in beside:
            continue
        names = {FENCES, LIVE}
        if ledger.readable:
            with translate_errors(f"reading {ledger.text}", address):
                query = sql.SQL("SELECT relation FROM {}").format(sql.Identifier(*ledger.label))
                names |= {str(name) for (name,) in connection.execute(query).fetchall()}
        oids |= {relid for name, relid in beside.items() if name in names}
    if not oids:
        return frozenset()
    with translate_errors("reading the comments of tables", address):
        oids |= {int(str(oid)) for (oid,) in connection.execute(_COMMENTED).fetchall()}
    return frozenset(oids)
