"""Small queries over the table of all types: one text, which Postgres runs and a ``.sql`` projection as well."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tests.projections.meaning.columns import KINDS, Kind
from tests.projections.meaning.query_cases import IN_BERLIN, QUERIES


@dataclass(frozen=True)
class Case:
    """``query`` gives ``id`` and ``v``. ``postgres`` is the same in Postgres, where its words are others. ``zone`` is
    the declared time zone, and that of the session."""

    name: str
    columns: tuple[str, ...]
    query: str
    postgres: str
    zone: str = "UTC"


FORMS = {
    "value": "SELECT id, {c} AS v FROM t",
    "=": "SELECT id, 1 AS v FROM t WHERE {c} = {l}",
    "=column": "SELECT id, 1 AS v FROM t WHERE {c} = {d}",
    "<": "SELECT id, 1 AS v FROM t WHERE {c} < {l}",
    "<column": "SELECT id, 1 AS v FROM t WHERE {c} < {d}",
    "in": "SELECT id, 1 AS v FROM t WHERE {c} IN ({l}, {m})",
    "min": "SELECT 1 AS id, min({c}) AS v FROM t",
    "max": "SELECT 1 AS id, max({c}) AS v FROM t",
    "group": "SELECT min(id) AS id, count(*) AS v FROM t GROUP BY {c}",
    "distinct": "SELECT 1 AS id, count(DISTINCT {c}) AS v FROM t",
    "order": "SELECT id, row_number() OVER (ORDER BY {c} NULLS LAST, id) AS v FROM t",
    "limit": "SELECT id, 1 AS v FROM t ORDER BY {c} DESC NULLS LAST, id LIMIT 3",
    "join": "SELECT a.id, b.id AS v FROM t a JOIN t b ON a.{c} = b.{d}",
    "in-rows": "SELECT id, 1 AS v FROM t WHERE {c} IN (SELECT {d} FROM t)",
}
_IN_POSTGRES = {
    "value": "SELECT id, {printed} AS v FROM t",
    "min": "SELECT 1 AS id, (SELECT {printed} FROM t WHERE {c} IS NOT NULL ORDER BY {c} LIMIT 1) AS v",
    "max": "SELECT 1 AS id, (SELECT {printed} FROM t WHERE {c} IS NOT NULL ORDER BY {c} DESC LIMIT 1) AS v",
}
"""Postgres does not have min and max for every type that has an order, and prints padded texts with their padding."""
_ROWS = {
    "constant, of a subquery": (
        "",
        "SELECT id, CASE WHEN id > 3 THEN a.v ELSE lower(a.v) END AS v FROM (SELECT id, 'ZZ' AS v FROM t) a",
    ),
    "constant, of a group": (
        "",
        "SELECT 1 AS id, min(lower(a.v)) AS v FROM (SELECT 'zz' AS v FROM t) a GROUP BY a.v, a.v",
    ),
    "constant, of a scalar subquery": ("", "SELECT id, coalesce((SELECT 'zz'), 'a') || id AS v FROM t"),
    "constant, NULL": ("", "SELECT id, coalesce(a.v, 'none') AS v FROM (SELECT id, NULL AS v FROM t) a"),
    "padding, like": ("padded", "SELECT id, 1 AS v FROM t WHERE padded LIKE 'a'"),
    "padding, like a prefix": ("padded", "SELECT id, 1 AS v FROM t WHERE padded LIKE 'a%'"),
    "padding, like an end": ("padded", "SELECT id, 1 AS v FROM t WHERE padded LIKE '%a'"),
    "padding, like any letter": ("padded", "SELECT id, 1 AS v FROM t WHERE padded LIKE 'a_%'"),
    "padding, like a blank": ("padded", "SELECT id, 1 AS v FROM t WHERE padded LIKE 'a %'"),
    "padding, length": ("padded", "SELECT id, length(padded) AS v FROM t"),
    "padding, bytes": ("padded", "SELECT id, octet_length(padded) AS v FROM t"),
    "padding, joined to text": ("padded", "SELECT id, padded || 'x' AS v FROM t"),
    "padding, upper": ("padded", "SELECT id, upper(padded) AS v FROM t"),
    "padding, a part": ("padded", "SELECT id, substring(padded, 1, 3) AS v FROM t"),
    "padding, a constant with blanks": ("padded", "SELECT id, 1 AS v FROM t WHERE padded = 'a '"),
    "padding, text": ("padded words", "SELECT a.id, b.id AS v FROM t a JOIN t b ON a.padded = b.words"),
    "padding, varchar": ("padded short", "SELECT a.id, b.id AS v FROM t a JOIN t b ON a.padded = b.short"),
    "padding, under a domain": (
        "padded d_coded",
        "SELECT a.id, b.id AS v FROM t a JOIN t b ON a.padded = b.d_coded",
    ),
    "domain, a sum": ("d_counted", "SELECT id, d_counted + 1 AS v FROM t WHERE id < 3"),
    "domain, an aggregate": ("d_priced", "SELECT 1 AS id, sum(d_priced) AS v FROM t"),
    "domain, its base": (
        "d_counted whole",
        "SELECT a.id, b.id AS v FROM t a JOIN t b ON a.d_counted = b.whole",
    ),
    "digits, a product": ("exact", "SELECT id, exact * exact AS v FROM t"),
    "digits, a product of many": ("fine", "SELECT id, fine * fine AS v FROM t"),
    "digits, compared": ("fine huge", "SELECT a.id, b.id AS v FROM t a JOIN t b ON a.fine = b.huge"),
    "digits, either": ("fine huge", "SELECT id, coalesce(fine, huge) AS v FROM t"),
    "digits, a large product": ("huge", "SELECT id, huge * huge AS v FROM t WHERE id > 3"),
    "digits, a quotient": ("exact", "SELECT id, exact / 3.0 AS v FROM t"),
    "digits, a quotient of which Postgres has no fraction": (
        "huge",
        "SELECT id, round(huge / 7.0, 2) AS v FROM t",
    ),
    "digits, a quotient times many": ("exact", "SELECT id, round(exact / 3.0 * 1000000000, 2) AS v FROM t"),
    "digits, a part of a hundred": ("exact", "SELECT id, round(exact / 3.0 * 100, 2) AS v FROM t"),
    "date, the text of a year beyond 9999": (
        "day",
        "SELECT id, (DATE '9999-12-31' + id::int)::text AS v FROM t",
    ),
    "date, a year beyond 9999 printed": (
        "day",
        "SELECT id, to_char(DATE '9999-12-31' + id::int, 'YYYY') AS v FROM t",
    ),
    "digits, a mean": ("exact", "SELECT 1 AS id, avg(exact) AS v FROM t"),
    "digits, a rounded mean": ("exact", "SELECT 1 AS id, round(avg(exact), 2) AS v FROM t"),
    "enum, between": ("feel", "SELECT id, 1 AS v FROM t WHERE feel BETWEEN 'ok' AND 'happy'"),
    "enum, the first of a group": ("feel whole", "SELECT 1 AS id, count(*) AS v FROM t WHERE feel >= 'ok'"),
    "enum, either": ("feel", "SELECT 1 AS id, max(coalesce(feel, feel)) AS v FROM t"),
    "interval, a list": ("period period_2", "SELECT id, 1 AS v FROM t WHERE period = period_2 OR id = 1"),
    "inet, beside its key": ("address", "SELECT min(id) AS id, count(*) AS v FROM t GROUP BY id, address"),
    "oid, a number": ("number", "SELECT id, 1 AS v FROM t WHERE number < 50"),
}
"""What only some types are used for: the columns and the query."""
_EVERY = 20


def cases(*, all_forms: bool = True) -> Iterator[Case]:
    """Each kind in each form; or in some of them, so that each form has its turn with some of the kinds."""
    for place, kind in enumerate(KINDS):
        for at, (form, query) in enumerate(FORMS.items()):
            if not all_forms and (place + at) % _EVERY:
                continue
            columns = ("id", kind.name, f"{kind.name}_2") if "{d}" in query else ("id", kind.name)
            in_postgres = _IN_POSTGRES.get(form, query)
            yield Case(f"{kind.name} {form}", columns, _fill(query, kind), _fill(in_postgres, kind))
    for name, (used, query) in _ROWS.items():
        yield Case(name, ("id", *used.split()), query, query)
    for at, (used, query) in enumerate(QUERIES):
        if all_forms or at % (2 * _EVERY) == 0:
            yield Case(query, ("id", *used.split()), query, query)
    for used, query in IN_BERLIN:
        yield Case(f"{query} in Berlin", ("id", *used.split()), query, query, "Europe/Berlin")


def _fill(query: str, kind: Kind) -> str:
    name = kind.name
    return query.format(c=name, d=f"{name}_2", l=kind.literal, m=kind.other, printed=kind.printed)
