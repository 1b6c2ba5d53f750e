"""Policies on messages do what policies on decoded columns do."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.cdc.columnar.decode import BlockDecoder
from tailrace.cdc.columnar.protect import protect, protected_columns
from tailrace.cdc.columnar.relations import Relations
from tailrace.cdc.policy.history import History
from tailrace.cdc.policy.policies import Policies
from tailrace.cdc.wire import pgoutput as pg
from tailrace.eventstore.errors import ProtocolError
from tailrace.eventstore.model.schema import Column
from tailrace.eventstore.settings import PostgresSourceSettings
from tests.cdc.messages import SOURCE, TEXT, Stream, Table, encode

COLUMNS = ("id", "email", "phone", "name")
PEOPLE = Table(500, "people", [(name, TEXT, -1, name == "id") for name in COLUMNS])
TEXTS = st.one_of(st.binary(max_size=12), st.text(max_size=8).map(str.encode))
CELLS = st.one_of(st.just(pg.NULL), TEXTS)
NEW_CELLS = st.one_of(CELLS, st.just(pg.UNCHANGED))
ANY = st.sampled_from(["plain", "hash", "drop", "truncate:1", "truncate:3"])


@st.composite
def changes(draw: st.DrawFn) -> pg.PgOutput:
    key, row = draw(TEXTS), (draw(TEXTS), *(draw(CELLS) for _ in COLUMNS[1:]))
    old_key: pg.Tuple = (key, pg.NULL, pg.NULL, pg.NULL)
    updated = (draw(TEXTS), *(draw(NEW_CELLS) for _ in COLUMNS[1:]))
    kinds: list[pg.PgOutput] = [
        pg.Insert(500, row),
        pg.Update(500, updated),
        pg.Update(500, updated, key=old_key),
        pg.Update(500, updated, old=row),
        pg.Delete(500, key=old_key),
        pg.Delete(500, old=row),
        pg.Truncate((500,), cascade=False, restart_identity=False),
    ]
    return draw(st.sampled_from(kinds))


def policies(rules: dict[str, str]) -> Policies:
    names = {f"public.people.{name}": policy for name, policy in rules.items()}
    return Policies.of(
        PostgresSourceSettings.model_validate(
            {"dsn": "", "columns": names, "hash_key": "a key of sixteen bytes"}
        )
    )


@given(
    st.lists(changes(), min_size=1, max_size=6),
    st.sampled_from(["plain", "hash"]),
    st.lists(ANY, min_size=3, max_size=3),
)
def test_protected_messages_decode_to_the_rows_that_policies_make_of_plain_ones(
    content: list[pg.PgOutput], key: str, others: list[str]
) -> None:
    rules = policies(dict(zip(COLUMNS, [key, *others], strict=True)))
    schema = rules.schema(("public", "people"), PEOPLE.topic_schema)
    columns = protected_columns(PEOPLE.relation, schema, rules)
    assert columns is not None

    def decode_all(applied: bool) -> list[object]:
        stream = Stream()
        stream.transaction(PEOPLE.relation, *content)
        if applied:
            stream.frames = [protect(frame, columns, rules) for frame in stream.frames]
        decoder = BlockDecoder(
            SOURCE,
            {PEOPLE.topic: schema},
            lambda relation: None,
            rules.as_applied() if applied else rules,
        )
        return [rows.rows.to_pylist() for rows in decoder.decode(stream.block()).rows]

    assert decode_all(True) == decode_all(False)


def test_a_protected_column_under_another_name_is_noticed() -> None:
    rules = policies({"email": "hash"})
    schema = rules.schema(("public", "people"), PEOPLE.topic_schema)
    renamed = Table(500, "people", [(n if n != "email" else "mail", TEXT, -1, n == "id") for n in COLUMNS])
    assert protected_columns(renamed.relation, schema, rules) is None
    added = Table(500, "people", [*PEOPLE.columns, ("phone2", TEXT, -1, False)])
    found = protected_columns(added.relation, schema, policies({"email": "hash", "phone2": "drop"}))
    assert found is not None
    assert [column.policy.partition(":")[0] for column in found] == ["", "hash", "", "", "drop"]


@pytest.mark.parametrize("cut", [1, 7, 12, 17])
def test_a_row_that_cannot_be_taken_apart_is_refused(cut: int) -> None:
    rules = policies({"email": "hash"})
    columns = protected_columns(
        PEOPLE.relation, rules.schema(("public", "people"), PEOPLE.topic_schema), rules
    )
    assert columns is not None
    row = encode(pg.Insert(500, (b"1", b"secret", b"x", b"y")))
    with pytest.raises(ProtocolError):
        protect(row[:-cut], columns, rules)
    with pytest.raises(ProtocolError):
        protect(encode(pg.Insert(500, (b"1", pg.Binary(b"secret"), b"x", b"y"))), columns, rules)


EVERYBODY = Table(600, "everybody", PEOPLE.columns)


def columns_of_everybody(*messages: pg.PgOutput, ordinary: tuple[int, ...] = ()) -> list[list[str]]:
    """The columns of the versions that the topic gets when ``public.people.phone`` is dropped."""
    stream = Stream()
    stream.transaction(*messages)
    decoding = BlockDecoder(
        SOURCE,
        {EVERYBODY.topic: EVERYBODY.topic_schema},
        lambda relation: EVERYBODY.topic_schema if relation.relid == 600 else None,
        policies({"phone": "drop"}),
        ordinary=ordinary,
    )
    decoded = decoding.decode(stream.block())
    assert all(rows.topic == EVERYBODY.topic for rows in decoded.rows)
    return [[column.name for column in schema.columns] for _, schema in decoded.new_schemas]


def test_rows_of_a_partition_are_protected_as_it_is_from_the_first_on() -> None:
    insert = pg.Insert(600, (b"1", b"e", b"p", b"n"))
    found = columns_of_everybody(EVERYBODY.relation, PEOPLE.relation, insert)
    assert found == [["id", "email", "name"]]


def test_tables_that_are_announced_one_after_the_other_keep_their_own_policies() -> None:
    insert = pg.Insert(600, (b"1", b"e", b"p", b"n"))
    truncate = pg.Truncate((600, 500), cascade=False, restart_identity=False)
    assert columns_of_everybody(EVERYBODY.relation, PEOPLE.relation, insert, ordinary=(600,)) == []
    assert columns_of_everybody(EVERYBODY.relation, PEOPLE.relation, truncate, insert) == []
    assert columns_of_everybody(EVERYBODY.relation, insert, PEOPLE.relation, insert) == []


@pytest.mark.parametrize(
    ("now", "known"),
    [((1, 2, 3, 4), True), ((1, 2, 4), True), ((1, 3, 4, 5), False), ((1, 4, 5, 6), False)],
    ids=["none dropped", "it was", "one before it was, and another added", "both, and two added"],
)
def test_rows_are_kept_undecoded_only_where_places_tell_which_column_is_protected(
    now: tuple[int, ...], known: bool
) -> None:
    """Names may have been exchanged: it is those of before that are announced."""
    rules = policies({"phone": "drop"})
    schema = rules.schema(("public", "people"), PEOPLE.topic_schema)
    described = replace(schema, columns=tuple(Column(number, f"c{number}", TEXT) for number in now))
    relations = Relations(
        SOURCE,
        {PEOPLE.topic: schema},
        lambda relation: described,
        rules.remembering(History.of([(PEOPLE.topic, schema)])),
    )
    relations.announce(PEOPLE.relation)
    found = relations.undecoded_columns(500, PEOPLE.topic)
    assert (found is not None) == known
