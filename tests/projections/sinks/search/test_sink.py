"""What holds for a search index beside the contract: one writer, what can be declared, files that come and go."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import tantivy

from tailrace.eventstore.errors import (
    DifferenceFound,
    IntegrityError,
    OperatorError,
    TransientError,
    UsageError,
)
from tailrace.eventstore.settings import Settings, SinkSettings
from tailrace.projections.sinks.contract import Sink
from tailrace.projections.sinks.open import open_reader, open_sink
from tailrace.projections.sinks.reader import Reader
from tailrace.projections.sinks.search.sink import field_problems
from tailrace.projections.sinks.specs import FieldKind, SearchIndex
from tests.projections.sinks.sink_data import ANNA, BERT, apply, fence, fill, rows_of, target
from tests.support import forking


def sink_at(path: Path, fields: Mapping[str, Any] | None = None) -> Sink:
    declared: Mapping[str, FieldKind] = {"name": "text"} if fields is None else fields
    return open_sink(
        SearchIndex("search", declared),
        Settings(sinks={"search": SinkSettings(kind="search", path=path)}),
    )


def test_a_second_writer_is_told_to_wait_and_the_first_goes_on(tmp_path: Path) -> None:
    sink = sink_at(tmp_path)
    fill(sink, target(), [ANNA])
    with sink.load(target(), fence(target(), 10), fence(target(), 11)) as load:
        with pytest.raises(TransientError, match="another process writes"):
            apply(sink_at(tmp_path), target(), 10, 11, [BERT])
        load.commit()
    apply(sink_at(tmp_path), target(), 11, 12, [BERT])
    assert rows_of(sink, target()) == [ANNA, BERT]


def test_the_lock_of_a_killed_writer_is_free(tmp_path: Path) -> None:
    fill(sink_at(tmp_path), target(), [ANNA])
    index = tmp_path / "acme" / "customer_totals" / "g1"
    program = (
        "import os, signal, sys, tantivy\n"
        "writer = tantivy.Index.open(sys.argv[1]).writer()\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    died = forking.run([sys.executable, "-c", program, str(index)], timeout=60)
    assert died.returncode == -9, died.stderr
    apply(sink_at(tmp_path), target(), 10, 11, [BERT])
    assert rows_of(sink_at(tmp_path), target()) == [ANNA, BERT]


def test_readers_keep_what_they_opened_while_a_step_is_written(tmp_path: Path) -> None:
    sink = sink_at(tmp_path)
    fill(sink, target(), [ANNA, BERT])
    scan = sink.scan(target())
    apply(sink, target(), 10, 11, (), [{"customer_id": 1}])
    assert [row["customer_id"] for batch in scan for row in batch.to_pylist()] == [2]
    assert rows_of(sink, target()) == [BERT]


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({}, "no column is searchable"),
        ({"absent": "text"}, "'absent' is not in the output"),
        ({"total": "text"}, "'total' is declared text"),
        ({"name": "i64"}, "'name' is declared i64"),
        ({"name": "date", "total": "bool"}, "'total' is declared bool"),
    ],
)
def test_fields_that_do_not_fit_the_output_are_said_before_building(
    tmp_path: Path, fields: dict[str, str], said: str
) -> None:
    with pytest.raises(OperatorError, match=said):
        sink_at(tmp_path, fields).check(target())
    assert list(tmp_path.iterdir()) == []


def test_a_path_that_is_a_file_is_said_before_building(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(OperatorError, match="cannot be written"):
        sink_at(file / "below").check(target())
    with pytest.raises(OperatorError, match="hint"):
        sink_at(file / "below").create(target())


def test_a_key_longer_than_a_term_is_refused(tmp_path: Path) -> None:
    by_name = target(key=("name",))
    sink = sink_at(tmp_path, {"total": "f64"})
    longest = {"customer_id": 1, "name": "ü" * 32_765, "total": None}
    fill(sink, by_name, [longest])
    with pytest.raises(UsageError, match="65531 bytes"):
        apply(sink, by_name, 10, 11, [{**longest, "name": "x" + "ü" * 32_765}])
    assert rows_of(sink, by_name) == [longest]


@pytest.mark.parametrize("listed", [False, True])
def test_a_cell_longer_than_a_term_is_refused_where_it_is_matched_whole(tmp_path: Path, listed: bool) -> None:
    def row(text: str) -> dict[str, Any]:
        return {"id": 1, "code": ["", None, text] if listed else text, "body": "x" * 70_000}

    code = pa.list_(pa.string()) if listed else pa.string()
    of = target(schema=pa.schema({"id": pa.int64(), "code": code, "body": pa.string()}), key=("id",))
    sink = sink_at(tmp_path, {"code": "string", "body": "text"})
    longest = row("ü" * 32_765)
    fill(sink, of, [longest])
    with pytest.raises(UsageError, match="column 'code' has a value of 65531 bytes") as caught:
        apply(sink, of, 10, 11, [row("x" + "ü" * 32_765)])
    assert "'text'" in caught.value.hint
    assert rows_of(sink, of) == [longest]


def test_a_broken_index_says_what_to_do(tmp_path: Path) -> None:
    sink = sink_at(tmp_path)
    fill(sink, target(), [ANNA])
    (tmp_path / "acme" / "customer_totals" / "g1" / "meta.json").write_text("{")
    with pytest.raises(IntegrityError, match="rebuild the projection"):
        rows_of(sink, target())


def test_nothing_is_left_of_a_dropped_generation(tmp_path: Path) -> None:
    sink = sink_at(tmp_path)
    fill(sink, target(1), [ANNA])
    fill(sink, target(2), [BERT])
    sink.drop(target(1))
    kept = {
        name for name in os.listdir(tmp_path / "acme" / "customer_totals") if not name.startswith(".promote")
    }
    assert kept == {"g2"}


ROWS = [
    {"customer_id": n, "name": f"name {n} of some length", "total": Decimal(n).quantize(Decimal("0.01"))}
    for n in range(1, 40)
]


def put(file: Path, content: bytes) -> None:
    """Another file of that name: writing into one that tantivy still has mapped would end this process (SIGBUS)."""
    other = file.with_name("other")
    other.write_bytes(content)
    other.replace(file)


def test_a_flipped_bit_in_any_file_of_the_index_is_found(tmp_path: Path) -> None:
    sink = sink_at(tmp_path)
    fill(sink, target(), ROWS)
    apply(sink, target(), 10, 11, [ROWS[0] | {"name": "new"}], [{"customer_id": 2}])
    folder = tmp_path / "acme" / "customer_totals" / "g1"
    files = sorted(file for file in folder.iterdir() if file.suffix not in (".json", ".lock", ""))
    assert {file.suffix for file in files} >= {".store", ".idx", ".term", ".del"}
    for file in files:
        whole = file.read_bytes()
        for at in (len(whole) // 4, len(whole) - 3):
            put(file, whole[:at] + bytes([whole[at] ^ 0x10]) + whole[at + 1 :])
            with pytest.raises(IntegrityError):
                rows_of(sink_at(tmp_path), target())
        put(file, whole)
    assert len(rows_of(sink_at(tmp_path), target())) == len(ROWS) - 1


def test_a_damaged_index_has_no_fence_but_an_explanation(tmp_path: Path) -> None:
    """tantivy panics on some damages, which Python gets as an exception beside ``Exception``."""
    fill(sink_at(tmp_path), target(), ROWS)
    for file in (tmp_path / "acme" / "customer_totals" / "g1").glob("*.term"):
        whole = bytearray(file.read_bytes())
        for at in range(len(whole) // 2):
            whole[at] ^= 0xFF
        put(file, bytes(whole))
    with pytest.raises(IntegrityError, match="tantivy"):
        sink_at(tmp_path).fence(target())


def test_a_document_that_somebody_else_wrote_is_a_difference(tmp_path: Path) -> None:
    fill(sink_at(tmp_path), target(), ROWS)
    index = tantivy.Index.open(str(tmp_path / "acme" / "customer_totals" / "g1"))
    writer = index.writer()
    document = tantivy.Document()
    document.add_text("_kind", "row")
    document.add_bytes("_row", b"garbage")
    writer.add_document(document)
    writer.commit()
    writer.wait_merging_threads()
    with pytest.raises(DifferenceFound, match="differ from what Tailrace wrote"):
        rows_of(sink_at(tmp_path), target())


def test_a_pointer_without_a_number_says_what_to_do(tmp_path: Path) -> None:
    sink = sink_at(tmp_path)
    fill(sink, target(), [ANNA])
    sink.promote(target(), None)
    pointer = tmp_path / "acme" / "customer_totals" / "CURRENT"
    pointer.write_text("x")
    with pytest.raises(IntegrityError, match=r"holds 'x'") as caught:
        sink.live("acme", "customer_totals")
    assert "remove that file" in caught.value.hint
    pointer.unlink()
    sink.promote(target(), None)
    assert sink.live("acme", "customer_totals") == 1


def reader_at(path: Path) -> Reader:
    settings = Settings(sinks={"search": SinkSettings(kind="search", path=path)})
    return open_reader(settings, "acme", "customer_totals", SearchIndex("search", {"name": "text"}))


@pytest.mark.parametrize(
    "moved", ["acme", "acme/customer_totals", "acme/customer_totals/g1", "CURRENT", "*.store"]
)
def test_a_link_that_leads_out_of_the_sinks_folder_is_not_followed(tmp_path: Path, moved: str) -> None:
    sink = sink_at(tmp_path / "sink")
    fill(sink, target(), [ANNA])
    sink.promote(target(), None)
    place = next((tmp_path / "sink").rglob(moved))
    place.rename(tmp_path / "outside")
    place.symlink_to(tmp_path / "outside")
    with pytest.raises(IntegrityError, match="leads out of") as caught:
        reader_at(tmp_path / "sink").many([1])
    assert str(tmp_path / "sink/acme/customer_totals") in caught.value.message
    if moved != "CURRENT":
        for use in (lambda: apply(sink, target(), 10, 11, [BERT]), lambda: rows_of(sink, target())):
            with pytest.raises(IntegrityError, match="leads out of"):
                use()
    place.unlink()
    (tmp_path / "outside").rename(place)
    assert reader_at(tmp_path / "sink").many([1]) == [ANNA]


@pytest.mark.parametrize("by", ["name", "path"])
def test_no_file_is_removed_that_an_index_names_outside_of_its_folder(tmp_path: Path, by: str) -> None:
    """tantivy removes what is named and belongs to no commit, wherever it is."""
    sink = sink_at(tmp_path / "sink")
    fill(sink, target(), [ANNA])
    place = tmp_path / "sink/acme/customer_totals/g1"
    victim = tmp_path / "victim"
    victim.write_text("somebody else's")
    named = json.loads((place / ".managed.json").read_text())
    named.append(str(victim) if by == "path" else os.path.relpath(victim, place))
    (place / ".managed.json").write_text(json.dumps(named))
    with pytest.raises(IntegrityError, match=r"\.managed\.json names files outside"):
        apply(sink, target(), 10, 11, [BERT])
    assert victim.exists()


def test_without_what_readers_need_an_index_is_not_whole(tmp_path: Path) -> None:
    fill(sink_at(tmp_path), target(), [ANNA])
    (tmp_path / "acme" / "customer_totals" / "g1" / "tailrace.json").unlink()
    with pytest.raises(IntegrityError, match=r"tailrace\.json"):
        rows_of(sink_at(tmp_path), target())


@pytest.mark.parametrize("lost", ["", "meta.json", "tailrace.json"])
def test_a_live_index_whose_files_vanished_is_named_and_read_once_they_are_back(
    tmp_path: Path, lost: str
) -> None:
    path = tmp_path / "indexes"
    sink = sink_at(path)
    fill(sink, target(), [ANNA])
    sink.promote(target(), None)
    place = path / "acme" / "customer_totals" / "g1" / lost
    place.rename(tmp_path / "aside")
    reader = reader_at(path)
    with pytest.raises(IntegrityError, match=r"names generation 1, of which files are missing in .*/g1"):
        reader.many([1])
    (tmp_path / "aside").rename(place)
    assert reader.many([1]) == [ANNA]


@pytest.mark.parametrize(
    ("kind", "taken"),
    [
        ("text", "string, list"), ("string", "string, list"), ("i64", "int"), ("f64", "int, float, decimal"),
        ("bool", "bool"), ("date", "date, timestamp"),
    ],
)  # fmt: skip
def test_a_field_takes_the_columns_of_its_kind_and_no_others(kind: FieldKind, taken: str) -> None:
    columns = {
        "string": pa.string(), "list": pa.list_(pa.string()), "int": pa.int32(), "unsigned": pa.uint32(),
        "float": pa.float32(), "decimal": pa.decimal128(5), "bool": pa.bool_(), "date": pa.date32(),
        "timestamp": pa.timestamp("us"), "time": pa.time64("us"),
    }  # fmt: skip
    wide = target(schema=pa.schema([("customer_id", pa.int64()), *columns.items()]))
    fits = [name for name in columns if not field_problems(SearchIndex("search", {name: kind}), wide)]
    assert fits == taken.split(", ")
