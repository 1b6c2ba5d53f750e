"""Readers: typed rows of the live generation by key, from all sinks, without Spark."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pyarrow as pa
import pytest
from pydantic import SecretStr

from examples.sqlite_sink import SqliteFile
from tailrace.eventstore import disclosure
from tailrace.eventstore.errors import OperatorError, UsageError
from tailrace.eventstore.settings import Settings, SinkSettings
from tailrace.projections.sinks.contract import Sink, Target
from tailrace.projections.sinks.open import open_reader, open_sink
from tailrace.projections.sinks.reader import GenerationMovedBack, Reader, Row, SeenGeneration, in_utc
from tailrace.projections.sinks.specs import (
    FieldKind,
    ParquetFolder,
    PostgresTable,
    RedisCache,
    SearchIndex,
    SinkSpec,
)
from tailrace.testing.sink_contract import SinkContract
from tailrace.testing.sink_rows import SCHEMA
from tests.fixtures.servers import ServerFactory
from tests.projections.sinks.sink_data import ANNA, apply, fill, target
from tests.support import REPOSITORY

BERT = {"customer_id": 2, "name": "", "total": None}
DOCUMENT = REPOSITORY / "docs" / "projections" / "reading.md"
KINDS = ("postgres", "redis hash", "redis json", "redis msgpack", "search", "parquet", "own")


@dataclass(frozen=True)
class Place:
    """One sink's spec and settings."""

    spec: SinkSpec
    settings: Settings

    @property
    def sink(self) -> Sink:
        return open_sink(self.spec, self.settings)

    def reader(self, projection: str = "customer_totals") -> Reader:
        return open_reader(self.settings, "acme", projection, self.spec)


def settings_for(
    dsn: str = "host=absent", url: str = "redis://absent", path: Path = Path("absent")
) -> Settings:
    return Settings(
        sinks={
            "mart": SinkSettings(kind="postgres", dsn=SecretStr(dsn)),
            "cache": SinkSettings(kind="redis", url=SecretStr(url)),
            "search": SinkSettings(kind="search", path=path),
            "lake": SinkSettings(kind="parquet", path=path),
        }
    )


SPECS: dict[str, SinkSpec] = {
    "postgres": PostgresTable("mart", "totals"),
    "redis hash": RedisCache("cache"),
    "redis json": RedisCache("cache", format="json"),
    "redis msgpack": RedisCache("cache", format="msgpack"),
    "search": SearchIndex("search", {"name": "text"}),
    "parquet": ParquetFolder("lake"),
}


@pytest.fixture(params=KINDS)
def place(request: pytest.FixtureRequest) -> Place:
    if request.param == "own":
        return Place(SqliteFile(str(request.getfixturevalue("tmp_path") / "own.db")), settings_for())
    given = {"postgres": "database", "search": "tmp_path", "parquet": "tmp_path"}.get(
        request.param, "redis_url"
    )
    argument = {"database": "dsn", "tmp_path": "path", "redis_url": "url"}[given]
    return Place(SPECS[request.param], settings_for(**{argument: request.getfixturevalue(given)}))


@pytest.fixture
def index(tmp_path: Path) -> Place:
    spec = SearchIndex("search", {"name": "text", "total": "f64", "customer_id": "i64"})
    return Place(spec, settings_for(path=tmp_path))


@pytest.fixture
def reader(place: Place) -> Iterator[Reader]:
    fill(place.sink, target(), [ANNA, BERT])
    place.sink.promote(target(), None)
    with place.reader() as reader:
        yield reader


def test_a_row_comes_by_its_key(reader: Reader) -> None:
    assert reader.get(1) == ANNA
    assert reader.get(2) == BERT
    assert reader.get(3) is None


def test_many_rows_come_in_the_order_of_their_keys(reader: Reader) -> None:
    assert reader.many([3, 2, 1, 2]) == [None, BERT, ANNA, BERT]
    assert reader.many([]) == []


def test_a_key_of_the_wrong_kind_is_a_usage_error(reader: Reader) -> None:
    for key in ("Anna", (1, 2), (), None, 2**70, object()):
        with pytest.raises(UsageError):
            reader.get(key)
        assert reader.get(1) == ANNA


def test_refreshes_and_deletions_are_seen(place: Place, reader: Reader) -> None:
    assert reader.get(1) == ANNA
    apply(place.sink, target(), 10, 11, [ANNA | {"name": "Anne"}], [{"customer_id": 2}])
    assert reader.many([1, 2]) == [ANNA | {"name": "Anne"}, None]


def test_promotions_and_rollbacks_are_followed(place: Place, reader: Reader) -> None:
    assert reader.get(1) == ANNA
    fill(place.sink, target(2), [ANNA | {"name": "second"}])
    assert reader.get(1) == ANNA
    place.sink.promote(target(2), 1)
    assert reader.many([1, 2]) == [ANNA | {"name": "second"}, None]
    place.sink.promote(target(1), 2)
    with pytest.raises(GenerationMovedBack, match="from generation 2 to generation 1") as caught:
        reader.get(1)
    assert (caught.value.seen, caught.value.live) == (2, 1)
    assert reader.many([1, 2]) == [ANNA, BERT], "it is told once"
    place.sink.promote(target(2), 1)
    place.sink.drop(target(1))
    assert reader.many([1, 2]) == [ANNA | {"name": "second"}, None]


@pytest.mark.parametrize(
    "place", [kind for kind in KINDS if kind not in ("postgres", "search")], indirect=True
)
def test_a_promotion_between_two_threads_look_ups_is_no_way_back(
    place: Place, reader: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One thread has looked generation 1 up when another is given rows of generation 2. The other readers look up and
    note under one lock."""
    reads = SeenGeneration.reads

    def overtaken(followed: SeenGeneration, live: int, *seen: int | None) -> None:
        monkeypatch.setattr(SeenGeneration, "reads", reads)
        followed.reads(2, *[followed.seen for _ in seen])
        reads(followed, live, *seen)

    assert reader.get(1) == ANNA
    monkeypatch.setattr(SeenGeneration, "reads", overtaken)
    assert reader.get(1) == ANNA
    fill(place.sink, target(2), [BERT])
    place.sink.promote(target(2), 1)
    assert reader.get(1) is None


def test_threads_that_share_a_reader_are_told_of_a_way_back_once() -> None:
    followed = SeenGeneration("totals")
    followed.reads(3, followed.seen)
    one, other, third = followed.seen, followed.seen, followed.seen
    with pytest.raises(GenerationMovedBack):
        followed.reads(2, one)
    followed.reads(2, other)
    followed.reads(3, third)
    assert followed.seen == 2, "looked up before"


def test_a_way_back_from_rows_that_one_of_two_threads_was_given_is_told() -> None:
    followed = SeenGeneration("totals")
    first = followed.seen
    followed.reads(2, first)
    followed.reads(3, first)
    with pytest.raises(GenerationMovedBack):
        followed.reads(2, followed.seen)


def test_a_promotion_that_changes_the_key_is_followed(place: Place, reader: Reader) -> None:
    assert reader.get(1) == ANNA
    named = target(2, key=("customer_id", "name"))
    fill(place.sink, named, [ANNA, ANNA | {"name": "Berta"}])
    place.sink.promote(named, 1)
    with pytest.raises(UsageError, match="has 2 values, 1 given"):
        reader.get(1)
    assert reader.get((1, "Berta")) == ANNA | {"name": "Berta"}
    by_name = target(3, key=("name",))
    fill(place.sink, by_name, [ANNA, BERT])
    place.sink.promote(by_name, 2)
    assert reader.get(BERT["name"]) == BERT


def test_before_the_first_promotion_the_reader_says_what_to_do(place: Place) -> None:
    with place.reader() as reader:
        with pytest.raises(OperatorError, match="tailrace rebuild customer_totals"):
            reader.get(1)
        fill(place.sink, target(), [ANNA])
        with pytest.raises(OperatorError, match="tailrace rebuild customer_totals"):
            reader.get(1)
        place.sink.promote(target(), None)
        assert reader.get(1) == ANNA


def test_every_type_is_read_as_it_was_written(place: Place) -> None:
    contract = SinkContract()
    of = Target("acme", "log-1", "customer_totals", 1, ("region", "id"), SCHEMA, partitions=3, split=2)
    rows = [contract.row(number) for number in range(60)]
    fill(place.sink, of, rows)
    place.sink.promote(of, None)
    expected = pa.Table.from_pylist(rows, SCHEMA).to_pylist()
    with place.reader() as reader:
        found = reader.many([(row["region"], row["id"]) for row in rows])
    assert list(map(repr, found)) == [_plain(row) for row in expected]


@pytest.mark.parametrize(
    ("kind", "stored", "asked"),
    [
        (pa.decimal128(10, 2), Decimal("1.50"), Decimal("1.5")),
        (pa.date32(), date(2024, 2, 29), date(2024, 2, 29)),
        (
            pa.timestamp("us", "UTC"),
            datetime(2024, 2, 29, 12, tzinfo=UTC),
            datetime(2024, 2, 29, 14, tzinfo=timezone(timedelta(hours=2))),
        ),
        (pa.bool_(), True, True),
        (pa.int16(), 7, 7),
        (pa.binary(), b"\x00:\xff", b"\x00:\xff"),
        (pa.string(), "", ""),
        (pa.string(), "a:b}{", "a:b}{"),
    ],
)
def test_keys_of_every_type_find_their_row(place: Place, kind: pa.DataType, stored: Any, asked: Any) -> None:
    schema = pa.schema([("key", kind), ("name", pa.string())])
    of = target(schema=schema, key=("key",))
    fill(place.sink, of, [{"key": stored, "name": "found"}])
    place.sink.promote(of, None)
    with place.reader() as reader:
        found = reader.get(asked)
    assert found is not None
    assert found["name"] == "found"


BERLIN = ZoneInfo("Europe/Berlin")
NOON = datetime.fromisoformat("2024-02-29T12:00")
# Of each type of key, a value, and what is none of that type or not exactly one.
WRONG_KEYS: list[tuple[pa.DataType, Any, list[Any]]] = [
    (pa.int32(), 1, [True, 1.0, 1.5, "1", Decimal(1), b"1", 2**31]),
    (pa.int64(), 2, [False, 2.0, 1.6, "2", " 2", Decimal(2), 2**63, date(1970, 1, 3)]),
    (pa.decimal128(10, 2), Decimal("2.51"), [Decimal("2.505"), 2.51, "2.51", True, Decimal("NaN"), 10**9]),
    (pa.float64(), 1.0, [True, "1.0", Decimal(1), 2**53 + 1]),
    (pa.float32(), 0.5, [0.1, "0.5", False]),
    (pa.bool_(), True, [1, 1.0, "t", "true"]),
    (pa.string(), "e", [b"e", 1, True, bytearray(b"e"), date(2024, 2, 29)]),
    (pa.binary(), b"e", ["e", "\\x65", 101]),
    (pa.date32(), date(2024, 2, 29), [NOON, NOON.replace(hour=0), "2024-02-29", 19782]),
    (pa.time64("us"), time(12), ["12:00", time(12, tzinfo=UTC), 43_200_000_000]),
    (pa.timestamp("us"), NOON, [NOON.date(), NOON.replace(tzinfo=UTC), "2024-02-29 12:00", 0]),
    (pa.timestamp("us", "UTC"), NOON.replace(tzinfo=UTC), [NOON, NOON.date(), "2024-02-29 12:00+00", 0]),
]


@pytest.mark.parametrize(("kind", "key", "wrong"), WRONG_KEYS, ids=lambda each: str(each)[:20])
def test_a_value_that_is_not_exactly_one_of_the_keys_type_finds_no_row_in_any_sink(
    place: Place, kind: pa.DataType, key: Any, wrong: list[Any]
) -> None:
    of = target(schema=pa.schema([("key", kind), ("name", pa.string())]), key=("key",))
    fill(place.sink, of, [{"key": key, "name": "found"}])
    place.sink.promote(of, None)
    with place.reader() as reader:
        assert reader.get(key) == {"key": key, "name": "found"}
        for other in wrong:
            with pytest.raises(UsageError, match="not a value of key column 'key'"):
                reader.many([key, other])


def test_moments_have_one_time_zone_whichever_sink_they_come_from(place: Place) -> None:
    zoned = pa.timestamp("us", "UTC")
    fields = [("key", zoned), ("name", pa.string()), ("seen", zoned), ("all", pa.list_(zoned))]
    noon = NOON.replace(tzinfo=UTC)
    of = target(schema=pa.schema(fields), key=("key",))
    fill(place.sink, of, [{"key": noon, "name": "", "seen": None, "all": [noon, None]}])
    place.sink.promote(of, None)
    with place.reader() as reader:
        row = reader.get(noon)
    assert row == {"key": noon, "name": "", "seen": None, "all": [noon, None]}
    assert row["key"].tzinfo is UTC
    assert row["all"][0].tzinfo is UTC


def test_a_moment_of_an_hour_that_comes_twice_finds_its_own_row(place: Place) -> None:
    of = target(schema=pa.schema([("key", pa.timestamp("us", "UTC")), ("name", pa.string())]), key=("key",))
    first, second = (datetime(2024, 10, 27, 2, 30, fold=fold, tzinfo=BERLIN) for fold in (0, 1))
    moments = [{"key": datetime(2024, 10, 27, hour, 30, tzinfo=UTC), "name": ""} for hour in (0, 1)]
    fill(place.sink, of, moments)
    place.sink.promote(of, None)
    with place.reader() as reader:
        assert reader.many([second, first]) == moments[::-1]


def test_a_search_gives_the_best_hits_first(index: Place) -> None:
    rows: list[Row] = [
        {"customer_id": 1, "name": "red wooden chair", "total": Decimal(5)},
        {"customer_id": 2, "name": "chair chair chair", "total": Decimal(50)},
        {"customer_id": 3, "name": "blue <table>", "total": None},
        {"customer_id": 4, "name": None, "total": Decimal(7)},
    ]
    fill(index.sink, target(), rows)
    index.sink.promote(target(), None)

    with index.reader() as reader:

        def found(query: str, limit: int = 10) -> list[int]:
            return [hit.row["customer_id"] for hit in reader.search(query, limit)]

        hits = reader.search("chair")
        assert [hit.row for hit in hits] == [rows[1], rows[0]]
        assert hits[0].score > hits[1].score
        assert hits[1].highlights == {"name": "red wooden <b>chair</b>"}
        assert [hit.highlights for hit in reader.search("table")] == [{"name": "blue &lt;<b>table</b>"}]
        assert reader.search("total:[6 TO 8]")[0].highlights == {}
        assert found("chair", limit=1) == [2]
        assert found('"red wooden"') == [1]
        assert sorted(found("name:table OR name:red")) == [1, 3]
        assert sorted(found("total:[6 TO 60]")) == [2, 4]
        assert sorted(found("*")) == [1, 2, 3, 4]
        assert found("sofa") == []
        for wrong in ("name:(", "absent:x"):
            with pytest.raises(UsageError):
                reader.search(wrong)
        with pytest.raises(UsageError):
            reader.search("chair", limit=0)


DIGEST = "9F" * 32
LONGEST = "ü" * (65_530 // 2)


def test_words_of_any_length_up_to_a_terms_are_found(index: Place) -> None:
    rows: list[Row] = [ANNA | {"name": f"sum {DIGEST} of {LONGEST}"}, BERT]
    fill(index.sink, target(), rows)
    index.sink.promote(target(), None)
    with index.reader() as reader:
        for query in (DIGEST, LONGEST.upper(), f'"sum {DIGEST.lower()} of"', f"name:sum AND name:{DIGEST}"):
            assert [hit.row for hit in reader.search(query)] == rows[:1], query[:20]
        assert f"<b>{DIGEST}</b>" in reader.search(DIGEST)[0].highlights["name"]
        assert reader.search(DIGEST[:-1]) == []
        apply(index.sink, target(), 10, 11, [BERT | {"name": f"Bert {DIGEST}"}], [{"customer_id": 1}])
        assert [hit.row["customer_id"] for hit in reader.search(DIGEST)] == [2]


def test_an_index_of_before_long_words_were_kept_answers_as_ever(index: Place, tmp_path: Path) -> None:
    """Its tailrace.json does not say that it has them; later steps leave them out as the first ones did."""
    index.sink.create(target())
    (meta,) = tmp_path.rglob("tailrace.json")
    known = json.loads(meta.read_text())
    assert known.pop("long_words") is True
    meta.write_text(json.dumps(known))
    fill(index.sink, target(), [ANNA | {"name": f"sum {DIGEST} of"}])
    apply(index.sink, target(), 10, 11, [BERT | {"name": f"sum {DIGEST} of"}])
    index.sink.promote(target(), None)
    with index.reader() as reader:
        assert reader.search(DIGEST) == []
        for query in ("sum", f'"sum {DIGEST} of"', f"sum AND {DIGEST}"):
            assert len(reader.search(query)) == 2, query


def test_a_search_never_shows_replaced_or_deleted_rows(index: Place) -> None:
    fill(index.sink, target(), [ANNA, BERT | {"name": "Bert Blum"}])
    index.sink.promote(target(), None)
    with index.reader() as reader:
        assert len(reader.search("blum")) == 2
        apply(index.sink, target(), 10, 11, [ANNA | {"name": "Anna Stern"}], [{"customer_id": 2}])
        assert reader.search("blum") == []
        assert [hit.row["name"] for hit in reader.search("anna")] == ["Anna Stern"]


DATED = pa.schema(
    [
        ("customer_id", pa.int64()),
        ("name", pa.string()),
        ("total", pa.float64()),
        ("vip", pa.bool_()),
        ("day", pa.date32()),
    ]
)


@pytest.fixture
def dated(tmp_path: Path) -> Iterator[Reader]:
    fields: dict[str, FieldKind] = {"name": "text", "customer_id": "i64", "total": "f64"}
    spec = SearchIndex("search", {**fields, "vip": "bool", "day": "date"})
    place = Place(spec, settings_for(path=tmp_path))
    of = target(schema=DATED)
    rows = [
        {"customer_id": number, "name": name, "total": 1.5, "vip": True, "day": date(2024, 2, 27 + number)}
        for number, name in ((1, "red chair"), (2, "red table"))
    ]
    fill(place.sink, of, rows)
    place.sink.promote(of, None)
    with place.reader() as reader:
        yield reader


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("day:2024-02-28", "a date field ('day') takes a moment as RFC 3339 writes it"),
        ('day:"2024-02-28"', 'hint: write field:"2024-02-29T00:00:00Z", with the quotes'),
        ("day:[2024-02-28 TO 2024-02-29]", "takes a moment as RFC 3339 writes it"),
        ("day:2024-02-28T00:00:00Z", "another sign in quotes"),
        ("NOT secret", "begin with *, which is all rows"),
        ("-secret", "only excludes rows"),
        ("secret:x", "there are 'name', 'customer_id', 'total', 'vip', 'day'"),
        ("customer_id:secret", "a field of numbers ('customer_id', 'total') takes a number in its range"),
        ("customer_id:1.5", "i64 takes whole numbers only"),
        ("total:secret", "a field of numbers"),
        ("vip:secret", "write true or false"),
        ("[a TO secret]", "a range or a set without a field"),
        ("name:/secret/", "no regular expressions"),
        ('name:"secret"*', "one word only"),
        ("name:(secret", "its syntax is wrong"),
        ("secret AND", "its syntax is wrong"),
        ("name:*", "fields of kind i64, f64, bool and date: 'customer_id', 'total', 'vip', 'day'"),
        *((f"{name}:1", "a field that the index does not have") for name in ("_key", "_kind", "_row")),
        *((f"{name}:*", "not a query") for name in ("_key", "_kind", "_row")),
        ("_kind:IN [row fence]", "a field that the index does not have"),
    ],
)
def test_a_query_that_is_none_is_told_why_without_what_it_asks_for(
    dated: Reader, query: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(disclosure.VARIABLE, raising=False)
    with pytest.raises(UsageError) as caught:
        dated.search(query)
    assert said in str(caught.value)
    assert "secret" not in str(caught.value)
    with disclosure.show_values(True), pytest.raises(UsageError) as caught:
        dated.search(query)
    assert repr(query) in str(caught.value)


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ('day:"2024-02-28T00:00:00Z"', [1]),
        ("day:[2024-02-29T00:00:00Z TO 2024-03-01T00:00:00Z}", [2]),
        ("* NOT chair", [2]),
        ("red -chair", [2]),
        ("customer_id:1", [1]),
        ("vip:true AND total:[1 TO 2]", [1, 2]),
        ("name: IN [chair table]", [1, 2]),
        ("day:*", [1, 2]),
    ],
)
def test_what_the_hints_say_to_write_is_found(dated: Reader, query: str, found: list[int]) -> None:
    assert sorted(hit.row["customer_id"] for hit in dated.search(query)) == found


@pytest.mark.parametrize(("name", "written"), [("full name", r"full\ name"), ("a:b c", r"a\:b\ c")])
def test_a_field_whose_name_has_blanks_or_colons_is_asked_for_as_documented(
    tmp_path: Path, name: str, written: str
) -> None:
    schema = pa.schema({"customer_id": pa.int64(), name: pa.string()})
    place, of = (
        Place(SearchIndex("search", {name: "text"}), settings_for(path=tmp_path)),
        target(schema=schema),
    )
    fill(place.sink, of, [{"customer_id": 1, name: "red chair"}, {"customer_id": 2, name: "blue table"}])
    place.sink.promote(of, None)
    with place.reader() as reader:
        for query in (f"{written}:table", f'blue AND {written}:"blue table"'):
            assert [hit.row["customer_id"] for hit in reader.search(query)] == [2]
    assert r"`full\ name:word`" in DOCUMENT.read_text()


def test_a_limit_beyond_all_rows_gives_all_rows_and_takes_no_memory(index: Place) -> None:
    fill(index.sink, target(), [ANNA, BERT])
    index.sink.promote(target(), None)
    program = (
        "with open_reader(settings, 'acme', 'customer_totals', spec) as reader:\n"
        "    print([len(reader.search('*', limit)) for limit in (2, 3 * 10**9, 2**70)])\n"
    )
    done = _in_process(index, "none", program)
    assert done.stdout.decode().strip() == "[2, 2, 2]", done.stderr.decode()


@pytest.mark.parametrize("kind", ["postgres", "redis hash"])
def test_a_sink_that_cannot_search_says_so(kind: str) -> None:
    with (
        Place(SPECS[kind], settings_for()).reader() as reader,
        pytest.raises(UsageError, match="cannot be searched"),
    ):
        reader.search("x")


def test_a_reader_outlives_a_restart_of_its_server(postgres_server: ServerFactory) -> None:
    server = postgres_server()
    place = Place(SPECS["postgres"], settings_for(dsn=server.dsn()))
    fill(place.sink, target(), [ANNA])
    place.sink.promote(target(), None)
    with place.reader() as reader:
        assert reader.get(1) == ANNA
        server.restart("immediate")
        assert reader.get(1) == ANNA


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        (PostgresTable("absent", "t"), "known sinks: cache, lake, mart, search"),
        (PostgresTable("cache", "t"), "is of kind redis, the projection needs postgres"),
    ],
)
def test_a_sink_that_is_not_in_the_settings_is_a_usage_error(spec: PostgresTable, said: str) -> None:
    settings = settings_for()
    with pytest.raises(UsageError, match=said):
        open_reader(settings, "acme", "customer_totals", spec)
    with pytest.raises(UsageError, match=said):
        open_sink(spec, settings)


BLOCKER = """
import importlib.abc, pickle, sys
blocked = set(sys.argv[1].split(","))
class Blocker(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name in blocked or name.partition(".")[0] in blocked:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Blocker())
from tailrace.projections.sinks.open import open_reader
settings, spec = pickle.load(sys.stdin.buffer)
"""


def _in_process(place: Place, blocked: str, program: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-c", BLOCKER + program, blocked],
        input=pickle.dumps((place.settings, place.spec)),
        cwd=REPOSITORY,
        capture_output=True,
        timeout=60,
        check=False,
    )


def test_a_reader_works_where_spark_and_the_rest_are_not_installed(place: Place) -> None:
    fill(place.sink, target(), [ANNA])
    place.sink.promote(target(), None)
    program = "print(open_reader(settings, 'acme', 'customer_totals', spec).get(1))"
    done = _in_process(place, "pyspark,py4j,pandas,numba,llvmlite,tailrace.cdc,tailrace.cli", program)
    assert done.stdout.decode().strip() == repr(ANNA), done.stderr.decode()


def test_a_sink_whose_part_is_not_installed_says_which() -> None:
    program = (
        "from tailrace.eventstore.errors import OperatorError\n"
        "from tailrace.projections.sinks.open import open_sink\n"
        "for open_it in (lambda: open_reader(settings, 'acme', 'p', spec), lambda: open_sink(spec, settings)):\n"
        "    try: open_it()\n"
        "    except OperatorError as error: print(error.hint)\n"
    )
    for kind, extra in (("redis hash", "redis"), ("search", "search")):
        done = _in_process(Place(SPECS[kind], settings_for()), "redis,tantivy", program)
        assert done.stdout.decode().splitlines() == [f"pip install 'tailrace[{extra}]'"] * 2, (
            done.stderr.decode()
        )


def _plain(row: Row) -> str:
    """Comparable also where NaN is not equal to itself; Arrow calls UTC by another name."""
    return repr({name: in_utc(value) for name, value in row.items()})
