"""Who may read through the view of a Postgres sink goes on to do so, whoever owns it and whichever way it reads."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from dataclasses import dataclass

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from tailrace.eventstore.errors import OperatorError
from tailrace.projections.sinks.contract import Sink
from tests.projections.sinks.postgres.test_sink import ANNA, BERT, WITH_CITY, query, sink_at
from tests.projections.sinks.sink_data import fill, target

NAMES = "SELECT name FROM totals ORDER BY 1"
READS = "customer_id, name, total"


@dataclass(frozen=True)
class Mart:
    """A database where ``loader`` writes, whom the sink's DSN names, ``dba`` may own, and ``reader`` reads."""

    dsn: str
    loader: str
    dba: str
    reader: str

    def sink(self, user: str = "") -> Sink:
        return sink_at(make_conninfo(self.dsn, user=user or self.loader))

    def as_superuser(self, text: str) -> list[tuple[object, ...]]:
        return query(self.dsn, text.format(loader=self.loader, dba=self.dba, reader=self.reader))

    def reads(self, user: str, text: str = NAMES) -> list[tuple[object, ...]]:
        return query(make_conninfo(self.dsn, user=user), text)


@pytest.fixture
def mart(database: str) -> Iterator[Mart]:
    tail = secrets.token_hex(3)
    mart = Mart(database, f"Loader {tail}", f"dba {tail}", f"reader {tail}")
    roles = (mart.loader, mart.dba, mart.reader)
    for role in roles:
        query(database, f'CREATE ROLE "{role}" LOGIN')
    # As an owner who gives the view away has to be: a member of whom it goes to.
    mart.as_superuser('GRANT "{dba}" TO "{loader}"; GRANT ALL ON SCHEMA public TO "{loader}", "{dba}"')
    try:
        yield mart
    finally:
        for role in roles:
            query(database, f'DROP OWNED BY "{role}" CASCADE; DROP ROLE "{role}"')


@pytest.fixture
def sink(mart: Mart) -> Sink:
    """Its first generation is live."""
    sink = mart.sink()
    fill(sink, target(1), [ANNA])
    sink.promote(target(1), None)
    mart.as_superuser('GRANT SELECT ON totals TO "{reader}"')
    return sink


def swap(sink: Sink, of: int, before: int) -> None:
    fill(sink, target(of), [BERT])
    sink.promote(target(of), before)


def test_a_view_that_another_user_owns_goes_on_to_be_read(mart: Mart, sink: Sink) -> None:
    mart.as_superuser('ALTER VIEW totals OWNER TO "{dba}"; GRANT SELECT ON totals__g1 TO "{dba}"')
    owners = "SELECT relowner::regrole::text, relacl::text FROM pg_class WHERE relname = 'totals'"
    before = mart.as_superuser(owners)
    assert before[0][0] == f'"{mart.dba}"' and mart.reads(mart.reader) == [("Anna",)]
    swap(sink, 2, 1)
    assert mart.as_superuser(owners) == before
    assert mart.reads(mart.reader) == [("Bert",)]
    mart.as_superuser('REVOKE ALL ON totals__g1 FROM "{dba}"')
    sink.promote(target(1), 2)
    assert mart.reads(mart.reader) == [("Anna",)]
    assert mart.as_superuser(owners) == before


@pytest.mark.parametrize("grantee", ['"{reader}"', "PUBLIC", '"{dba}" WITH GRANT OPTION'])
def test_readers_of_a_view_that_asks_for_their_own_rights_have_them_on_each_generation(
    mart: Mart, sink: Sink, grantee: str
) -> None:
    mart.as_superuser(
        f"ALTER VIEW totals SET (security_invoker = true); GRANT SELECT ON totals__g1 TO {grantee};"
        'GRANT SELECT ON totals TO "{dba}"'
    )
    reader = mart.dba if "GRANT" in grantee else mart.reader
    assert mart.reads(reader) == [("Anna",)]
    fill(sink, target(2), [BERT])
    assert sink.check(target(2)) == []
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        mart.reads(reader, "SELECT * FROM totals__g2")
    sink.promote(target(2), 1)
    assert mart.reads(reader) == [("Bert",)]
    if reader == mart.dba:
        mart.reads(reader, f'GRANT SELECT ON totals__g2 TO "{mart.reader}"')
        assert mart.reads(mart.reader) == [("Bert",)]
    sink.promote(target(1), 2)
    assert mart.reads(mart.reader if reader == mart.dba else reader) == [("Anna",)], "granted since, too"


def test_the_owner_of_a_view_that_asks_for_its_readers_rights_is_given_none(mart: Mart, sink: Sink) -> None:
    mart.as_superuser('ALTER VIEW totals SET (security_invoker = true); ALTER VIEW totals OWNER TO "{dba}"')
    swap(sink, 2, 1)
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        mart.reads(mart.dba, "SELECT * FROM totals__g2")


def test_rights_on_columns_are_taken_over_and_reach_to_new_ones_where_they_reached_to_all(
    mart: Mart, sink: Sink
) -> None:
    mart.as_superuser(
        f'ALTER VIEW totals SET (security_invoker = true); GRANT SELECT ({READS}) ON totals__g1 TO "{{reader}}";'
        'GRANT SELECT (name), UPDATE (total) ON totals__g1 TO "{dba}"'
    )
    assert mart.reads(mart.reader) == [("Anna",)]
    of = target(2, schema=WITH_CITY)
    fill(sink, of, [BERT | {"city": "Ulm"}])
    sink.promote(of, 1)
    assert mart.reads(mart.reader, "SELECT name, city FROM totals") == [("Bert", "Ulm")]
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        mart.reads(mart.reader, "SELECT xmin FROM totals__g2")
    assert mart.reads(mart.dba, "SELECT name FROM totals__g2") == [("Bert",)]
    for refused in ("SELECT total FROM totals__g2", "SELECT city FROM totals__g2"):
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            mart.reads(mart.dba, refused)
    mart.reads(mart.dba, "UPDATE totals__g2 SET total = 3")


def test_a_sink_that_goes_on_as_another_user_takes_no_reader_anything(mart: Mart, sink: Sink) -> None:
    """The view and the first generation stay those of the user before, who may not even connect."""
    mart.as_superuser('GRANT "{loader}" TO "{reader}"; ALTER ROLE "{loader}" NOLOGIN')
    mart.as_superuser('GRANT CREATE ON SCHEMA public TO "{reader}"; GRANT SELECT ON totals TO "{dba}"')
    after = mart.sink(mart.reader)
    swap(after, 2, 1)
    tables = "SELECT relowner::regrole::text FROM pg_class WHERE relname IN ('totals', 'totals__g2') ORDER BY relname"
    assert mart.as_superuser(tables) == [(f'"{mart.loader}"',), (f'"{mart.reader}"',)]
    assert mart.reads(mart.dba) == [("Bert",)]


def test_comments_and_dependents_of_the_view_stay(mart: Mart, sink: Sink) -> None:
    mart.as_superuser(
        "COMMENT ON VIEW totals IS 'what they owe'; COMMENT ON COLUMN totals.total IS 'in euros';"
        "CREATE VIEW report AS SELECT count(*) AS n, min(name) AS first FROM totals;"
        'ALTER VIEW report OWNER TO "{dba}"; GRANT SELECT ON totals TO "{dba}";'
        'GRANT SELECT ON report TO "{reader}"; ALTER VIEW totals ALTER total SET DEFAULT 7'
    )
    comments = (
        "SELECT obj_description('totals'::regclass), col_description('totals'::regclass, 3),"
        " (SELECT count(*) FROM pg_attrdef WHERE adrelid = 'totals'::regclass)"
    )
    swap(sink, 2, 1)
    assert mart.as_superuser(comments) == [("what they owe", "in euros", 1)]
    assert mart.reads(mart.reader, "SELECT * FROM report") == [(1, "Bert")]
    sink.promote(target(1), 2)
    assert mart.as_superuser(comments) == [("what they owe", "in euros", 1)]
    assert mart.reads(mart.reader, "SELECT * FROM report") == [(1, "Anna")]


def test_rights_that_the_sinks_user_may_not_give_are_named_before_readers_are_moved(
    mart: Mart, sink: Sink
) -> None:
    fill(sink, target(2), [BERT])
    mart.as_superuser(
        "ALTER VIEW totals SET (security_invoker = true);"
        'GRANT SELECT ON totals__g1 TO "{reader}"; ALTER TABLE totals__g2 OWNER TO postgres;'
        'GRANT SELECT ON totals__g2 TO "{loader}"'
    )
    with pytest.raises(OperatorError, match=r"totals__g2 belongs to .*postgres") as caught:
        sink.promote(target(2), 1)
    wanted = f'GRANT SELECT ON "public"."totals__g2" TO "{mart.reader}"'
    assert wanted in caught.value.hint and "readers see what they saw" in caught.value.hint
    assert sink.live("acme", "customer_totals") == 1
    assert mart.reads(mart.reader) == [("Anna",)]
    mart.as_superuser(wanted)
    sink.promote(target(2), 1)
    assert mart.reads(mart.reader) == [("Bert",)]
