"""Tables that change under the stream: every row is stored under the columns of its day."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.cdc.columnar.decode import DecodedEpoch
from tailrace.cdc.columnar.schema_change import ChangeKind, matches, next_version
from tailrace.cdc.wire import pgoutput as pg
from tailrace.eventstore.errors import OperatorError
from tailrace.eventstore.model.schema import Column, TopicSchema
from tailrace.eventstore.model.topic import TopicId, TopicKind
from tests.cdc.messages import SOURCE, Stream, Table, decoder

INT4, INT8, TEXT = 23, 20, 25
V1 = Table(500, "t", [("id", INT8, -1, True), ("a", TEXT, -1, False)])
ADDED = replace(V1, columns=[*V1.columns, ("b", INT4, -1, False)])


def versions(decoded: DecodedEpoch) -> list[tuple[str, int, int]]:
    return [(part.topic.text, part.version, part.rows.num_rows) for part in decoded.rows]


def kinds(decoded: DecodedEpoch) -> list[set[ChangeKind]]:
    return [set(change.kinds) for change in decoded.changes]


def test_an_unchanged_relation_is_no_new_version() -> None:
    """Sent again after each invalidation of the server's cache: VACUUM does it."""
    stream = Stream()
    for _ in range(2):
        stream.transaction(V1.relation, pg.Insert(500, (b"1", b"x")))
    decoded = decoder(V1).decode(stream.block())
    assert versions(decoded) == [("shop.public.t", 1, 2)]
    assert not decoded.new_schemas


def test_a_column_added_inside_a_transaction_splits_its_rows() -> None:
    stream = Stream()
    lsn = stream.transaction(
        V1.relation,
        pg.Insert(500, (b"1", b"x")),
        ADDED.relation,
        pg.Insert(500, (b"2", b"y", b"5")),
        pg.Update(500, (b"1", b"x", b"6")),
    )
    decoded = decoder(V1, described=[ADDED]).decode(stream.block())
    assert versions(decoded) == [("shop.public.t", 1, 1), ("shop.public.t", 2, 2)]
    before, after = (part.rows for part in decoded.rows)
    assert before["_ordinal"].to_pylist() == [0]
    assert after["_ordinal"].to_pylist() == [1, 2]
    assert after["after"].to_pylist()[1] == {"id": 1, "a": "x", "b": 6}
    ((topic, schema),) = decoded.new_schemas
    assert (topic, schema.version, schema.from_lsn, schema.relid) == (V1.topic, 2, lsn, 500)
    assert kinds(decoded) == [{ChangeKind.ADDED}]


def test_a_new_version_stays_for_the_blocks_that_follow() -> None:
    stream, one = Stream(), decoder(V1, described=[ADDED])
    stream.transaction(ADDED.relation, pg.Insert(500, (b"2", b"y", b"5")))
    one.decode(stream.block())
    stream.transaction(pg.Insert(500, (b"3", b"y", b"5")))
    decoded = one.decode(stream.block())
    assert versions(decoded) == [("shop.public.t", 2, 1)]
    assert not decoded.new_schemas


def test_an_announcement_without_rows_is_not_judged() -> None:
    """Kept from a dropped transaction, it may be older than what the log knows."""
    stream = Stream()
    stream.transaction(V1.relation)
    stream.transaction(ADDED.relation, pg.Insert(500, (b"2", b"y", b"5")))
    decoded = decoder(replace(ADDED, version=2)).decode(stream.block())
    assert versions(decoded) == [("shop.public.t", 2, 1)]
    assert not decoded.new_schemas


@pytest.mark.parametrize(
    ("now", "expected"),
    [
        (replace(V1, columns=[("id", INT8, -1, True)]), {ChangeKind.DROPPED}),
        (replace(V1, columns=[("id", INT8, -1, True), ("z", TEXT, -1, False)]), {ChangeKind.RENAMED}),
        (replace(V1, columns=[("id", INT8, -1, True), ("a", INT4, -1, False)]), {ChangeKind.RETYPED}),
        (replace(V1, columns=[("id", INT8, -1, True), ("a", 1043, 14, False)]), {ChangeKind.RETYPED}),
        (replace(V1, columns=[("id", INT8, -1, True), ("a", TEXT, -1, True)]), {ChangeKind.REKEYED}),
    ],
    ids=["dropped", "renamed", "retyped", "length", "rekeyed"],
)
def test_a_different_relation_is_a_new_version(now: Table, expected: set[ChangeKind]) -> None:
    stream = Stream()
    row = (b"1", b"5")[: len(now.columns)]
    stream.transaction(now.relation, pg.Insert(500, row))
    decoded = decoder(V1, described=[now]).decode(stream.block())
    assert versions(decoded) == [("shop.public.t", 2, 1)]
    assert kinds(decoded) == [expected]
    assert [(c.name, c.type_oid) for c in decoded.new_schemas[0][1].columns] == [
        (name, oid) for name, oid, _, _ in now.columns
    ]


def test_a_change_of_replica_identity_alone_is_no_new_version() -> None:
    stream = Stream()
    stream.transaction(replace(V1, identity="f").relation, pg.Delete(500, old=(b"1", b"x")))
    decoded = decoder(V1).decode(stream.block())
    assert versions(decoded) == [("shop.public.t", 1, 1)]
    assert decoded.rows[0].rows["key"].to_pylist() == [{"id": 1}]


def test_a_table_not_seen_before_gets_its_topic() -> None:
    stream = Stream()
    other = Table(501, "später", [("id", INT4, -1, True)], schema="My Schema")
    lsn = stream.transaction(other.relation, pg.Insert(501, (b"1",)))
    decoded = decoder(V1, described=[other]).decode(stream.block())
    topic = TopicId.table(SOURCE, "My Schema", "später")
    assert [(part.topic, part.version) for part in decoded.rows] == [(topic, 1)]
    assert decoded.new_schemas == [(topic, replace(other.topic_schema, from_lsn=lsn))]
    assert kinds(decoded) == [{ChangeKind.NEW}]


def test_a_table_that_is_not_ours_is_counted() -> None:
    stream = Stream()
    stream.transaction(V1.relation, pg.Insert(500, (b"1", b"x")), pg.Truncate((500,), False, False))
    decoded = decoder().decode(stream.block())
    assert not decoded.rows
    assert decoded.ignored == {"table public.t": 2}


def test_a_renamed_table_stays_in_its_topic() -> None:
    stream = Stream()
    moved = replace(ADDED, name="t_new")
    stream.transaction(moved.relation, pg.Insert(500, (b"1", b"x", N)))
    decoded = decoder(V1, described=[moved]).decode(stream.block())
    assert versions(decoded) == [("shop.public.t", 2, 1)]
    assert kinds(decoded) == [{ChangeKind.ADDED, ChangeKind.MOVED}]
    assert decoded.changes[0].table == ("public", "t_new")


N = pg.NULL


def test_a_table_swapped_for_another_is_reported_and_no_row_goes_astray() -> None:
    """The old table renamed, a new one put under its name: rows of both come in one transaction."""
    old, new = replace(V1, name="t_old"), replace(V1, relid=777)
    stream = Stream()
    stream.transaction(
        V1.relation,
        pg.Insert(500, (b"1", b"before")),
        new.relation,
        pg.Insert(777, (b"2", b"new")),
        old.relation,
        pg.Insert(500, (b"3", b"old")),
        pg.Insert(777, (b"4", b"new")),
        pg.Insert(500, (b"5", b"old")),
    )
    decoded = decoder(V1, described=[old, new]).decode(stream.block())
    assert versions(decoded) == [
        ("shop.public.t", 1, 1),
        ("shop.public.t", 2, 2),
        ("shop.public.t_old", 1, 2),
    ]
    assert kinds(decoded) == [{ChangeKind.REPLACED}, {ChangeKind.NEW}]
    assert [row["a"] for part in decoded.rows for row in part.rows["after"].to_pylist()] == [
        "before", "new", "new", "old", "old",
    ]  # fmt: skip


def test_two_tables_announced_under_one_name_lose_no_row() -> None:
    new = replace(V1, relid=777)
    stream = Stream()
    stream.transaction(
        V1.relation,
        pg.Insert(500, (b"1", b"a")),
        new.relation,
        pg.Insert(777, (b"2", b"b")),
        pg.Insert(500, (b"3", b"c")),
        pg.Insert(777, (b"4", b"d")),
        pg.Insert(777, (b"5", b"e")),
    )
    decoded = decoder(V1, described=[V1, new]).decode(stream.block())
    assert [row["id"] for part in decoded.rows for row in part.rows["key"].to_pylist()] == [1, 2, 3, 4, 5]
    assert [part.version for part in decoded.rows] == [1, 2, 3, 4]
    assert kinds(decoded) == [{ChangeKind.REPLACED}] * 3


def test_a_table_without_columns_is_an_operators_matter() -> None:
    stream = Stream()
    empty = replace(V1, columns=[])
    stream.transaction(empty.relation, pg.Insert(500, ()))
    with pytest.raises(OperatorError, match=r"public\.t has no columns"):
        decoder(described=[empty]).decode(stream.block())


# --- fitting the stream's word and the catalog's ---


def relation(*columns: tuple[str, int, bool], identity: str = "d") -> pg.Relation:
    return pg.Relation(
        9, "public", "t", identity, tuple(pg.RelationColumn(n, oid, -1, key) for n, oid, key in columns)
    )


def schema(*columns: Column, version: int = 1) -> TopicSchema:
    return TopicSchema(version, columns, relid=9)


def test_the_key_under_full_is_the_catalogs() -> None:
    described = schema(Column(1, "id", INT4, key=True), Column(2, "a", TEXT))
    fitted = next_version(relation(("id", INT4, True), ("a", TEXT, True), identity="f"), described, None, 70)
    assert [column.key for column in fitted.columns] == [True, False]


def test_a_table_without_key_has_all_its_columns_as_key() -> None:
    described = schema(Column(1, "id", INT4), Column(2, "a", TEXT))
    fitted = next_version(relation(("id", INT4, True), ("a", TEXT, True), identity="f"), described, None, 70)
    assert [column.key for column in fitted.columns] == [True, True]


def test_columns_the_catalog_added_later_are_left_out() -> None:
    described = schema(Column(1, "id", INT4, key=True), Column(3, "later", TEXT, fill="x"))
    fitted = next_version(relation(("id", INT4, True)), described, None, 70)
    assert [column.name for column in fitted.columns] == ["id"]


def test_the_fill_of_an_added_column_comes_from_the_catalog() -> None:
    previous = schema(Column(1, "id", INT4, key=True))
    described = schema(Column(1, "id", INT4, key=True), Column(4, "b", TEXT, type_name="text", fill="x"))
    fitted = next_version(relation(("id", INT4, True), ("b", TEXT, False)), described, previous, 70)
    assert fitted.columns[1] == Column(4, "b", TEXT, type_name="text", fill="x")
    assert (fitted.version, fitted.from_lsn) == (2, 70)


def test_the_fill_of_a_column_stays_when_the_catalog_has_forgotten_it() -> None:
    previous = schema(Column(1, "id", INT4, key=True), Column(4, "b", TEXT, fill="x"))
    described = schema(Column(1, "id", INT4, key=True), Column(4, "b", TEXT), Column(5, "c", TEXT))
    sent = relation(("id", INT4, True), ("b", TEXT, False), ("c", TEXT, False))
    assert [column.fill for column in next_version(sent, described, previous, 70).columns] == [
        None,
        "x",
        None,
    ]
    replaced = replace(previous, relid=8)  # another table of the name: its columns are others
    assert [column.fill for column in next_version(sent, described, replaced, 70).columns] == [
        None,
        None,
        None,
    ]


def test_a_type_the_catalog_changed_later_is_that_of_the_stream() -> None:
    described = schema(Column(1, "id", INT8, type_name="bigint", key=True))
    fitted = next_version(relation(("id", INT4, True)), described, None, 70)
    assert fitted.columns[0] == Column(1, "id", INT4, key=True)


def test_a_column_dropped_later_takes_a_number_that_is_free() -> None:
    """Added and dropped while capture was away: the catalog has its attnum as a gap and no name for it."""
    described = schema(Column(1, "id", INT4, key=True), Column(3, "c", TEXT))
    fitted = next_version(
        relation(("id", INT4, True), ("gone", TEXT, False), ("c", TEXT, False)), described, None, 70
    )
    assert [(column.id, column.name) for column in fitted.columns] == [(1, "id"), (2, "gone"), (3, "c")]


def test_a_column_renamed_later_keeps_its_number() -> None:
    described = schema(Column(1, "id", INT4, key=True), Column(4, "new", TEXT))
    previous = schema(Column(1, "id", INT4, key=True), Column(4, "old", TEXT))
    sent = relation(("id", INT4, True), ("old", TEXT, False))
    for before in (previous, None):
        assert [(c.id, c.name) for c in next_version(sent, described, before, 70).columns] == [
            (1, "id"),
            (4, "old"),
        ]


@pytest.mark.parametrize("later", [INT4, TEXT])
def test_a_column_dropped_later_is_not_taken_for_its_successor_of_the_same_name(later: int) -> None:
    """ADD y; row; DROP x; ADD x; row: when the first row is decoded the catalog knows only the other x."""
    previous = schema(Column(1, "id", INT4, key=True), Column(2, "x", INT4))
    described = schema(Column(1, "id", INT4, key=True), Column(3, "y", INT4), Column(4, "x", later))
    first = next_version(
        relation(("id", INT4, True), ("x", INT4, False), ("y", INT4, False)), described, previous, 70
    )
    assert [(c.id, c.name) for c in first.columns] == [(1, "id"), (2, "x"), (3, "y")]
    second = next_version(
        relation(("id", INT4, True), ("y", INT4, False), ("x", later, False)), described, first, 80
    )
    assert [(c.id, c.name) for c in second.columns] == [(1, "id"), (3, "y"), (4, "x")]


def test_the_numbers_of_another_table_under_the_same_name_mean_nothing() -> None:
    described = schema(Column(1, "id", INT4, key=True))
    other = TopicSchema(3, (Column(1, "x", INT4, key=True), Column(5, "gone", TEXT)), relid=8)
    fitted = next_version(relation(("id", INT4, True), ("gone", TEXT, False)), described, other, 70)
    assert [(c.id, c.name) for c in fitted.columns] == [(1, "id"), (2, "gone")]
    assert fitted.version == 4


@st.composite
def tables(draw: st.DrawFn) -> tuple[pg.Relation, TopicSchema, TopicSchema | None]:
    """A relation, and what a catalog and a log may say that knew it at other times."""

    def columns() -> list[Column]:
        names = draw(st.lists(st.sampled_from("abcdef"), unique=True, max_size=5))
        ids = sorted(draw(st.sets(st.integers(1, 9), min_size=len(names), max_size=len(names))))
        return [
            Column(number, name, draw(st.sampled_from([INT4, TEXT])), key=draw(st.booleans()))
            for number, name in zip(ids, names, strict=True)
        ]

    sent = draw(st.lists(st.sampled_from("abcdef"), unique=True, min_size=1, max_size=5))
    announced = relation(
        *((name, draw(st.sampled_from([INT4, TEXT])), draw(st.booleans())) for name in sent),
        identity=draw(st.sampled_from("dnfi")),
    )
    return announced, schema(*columns()), draw(st.none() | st.just(schema(*columns(), version=4)))


@given(tables())
def test_what_is_fitted_always_matches_its_relation(
    case: tuple[pg.Relation, TopicSchema, TopicSchema | None],
) -> None:
    announced, described, previous = case
    fitted = next_version(announced, described, previous, 70)
    assert matches(announced, fitted)
    assert fitted.key
    assert len({column.id for column in fitted.columns}) == len(fitted.columns)
    assert all(column.id > 0 for column in fitted.columns)
    assert fitted.kind is TopicKind.TABLE
    assert fitted.version == (5 if previous else 1)


def test_a_column_out_of_order_is_not_the_one_that_had_its_name() -> None:
    """Dropped and added again, and the table dropped since: the catalog cannot say so, but attnums rise in a table."""
    now = replace(ADDED, columns=[V1.columns[0], ("b", INT4, -1, False), ("a", TEXT, -1, False)])
    stream = Stream()
    stream.transaction(now.relation, pg.Insert(500, (b"1", b"5", b"x")))
    decoded = decoder(ADDED, described=[ADDED]).decode(stream.block())
    (change,) = decoded.changes
    assert [(column.id, column.name) for column in change.current.columns] == [(1, "id"), (3, "b"), (4, "a")]
    assert change.kinds == {ChangeKind.ADDED, ChangeKind.DROPPED} and change.guessed == {4}


def test_a_table_that_takes_the_name_of_a_topic_without_one_continues_its_versions() -> None:
    """The topic's own table became another topic's when both had exchanged their names."""
    own, other, now = V1, replace(V1, relid=500, name="other", version=4), replace(ADDED, relid=501)
    stream = Stream()
    stream.transaction(now.relation, pg.Insert(501, (b"1", b"x", b"5")))
    decoded = decoder(own, other, described=[now]).decode(stream.block())
    assert versions(decoded) == [("shop.public.t", 2, 1)]
    assert kinds(decoded) == [{ChangeKind.REPLACED, ChangeKind.ADDED}]
