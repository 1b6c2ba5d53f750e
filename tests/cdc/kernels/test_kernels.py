"""The kernels agree with the plain decoder on any input, and hash as everybody does."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.cdc.kernels import rows
from tailrace.cdc.kernels.key_hash import hash_keys
from tailrace.cdc.wire import pgoutput as pg
from tailrace.eventstore.model.keys import hash_texts
from tests.cdc.messages import encode, messages
from tests.fuzz.decoders import check, seeds
from tests.fuzz.fuzzing import pack
from tests.fuzz.reference import TABLES
from tests.support import REPOSITORY

texts = st.sampled_from([b"", b"1", b"2", b"\xff", "ä€😀".encode(), b"x" * 300])
cells = st.one_of(texts, st.just(pg.NULL), st.just(pg.UNCHANGED))
sent = st.one_of(texts, st.just(pg.NULL))


@st.composite
def changes(draw: st.DrawFn) -> pg.PgOutput:
    table = draw(st.sampled_from(TABLES))
    width = len(table.columns)
    new, old = (draw(st.tuples(*[kind] * width)) for kind in (cells, sent))
    plain = draw(st.tuples(*[sent] * width))
    kinds: list[pg.PgOutput] = [
        pg.Insert(table.relid, plain),
        pg.Update(table.relid, plain),
        pg.Update(table.relid, new),
        pg.Update(table.relid, new, key=old),
        pg.Update(table.relid, new, old=old),
        pg.Update(table.relid, old, old=old),
        pg.Delete(table.relid, key=old),
        pg.Delete(table.relid, old=old),
        pg.Truncate((table.relid,), False, False),
        table.relation,
    ]
    return draw(st.sampled_from(kinds))


blocks = st.lists(st.one_of(changes(), changes(), changes(), messages), max_size=12)


def frames(content: Sequence[pg.PgOutput]) -> list[bytes]:
    return [encode(message) for message in (pg.Begin(200, 1, 7), *content, pg.Commit(200, 210, 1))]


@given(blocks)
def test_both_decoders_give_the_same_rows_or_refuse(content: list[pg.PgOutput]) -> None:
    check(pack(frames(content)))


@given(st.lists(changes(), min_size=1, max_size=4), st.data())
def test_both_decoders_agree_on_damaged_blocks(content: list[pg.PgOutput], data: st.DataObject) -> None:
    sent = frames(content)
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(sent) - 1))
        frame = bytearray(sent[at])
        match data.draw(st.sampled_from(["flip", "cut", "add", "drop", "twice"])):
            case "flip" if frame:
                frame[data.draw(st.integers(0, len(frame) - 1))] = data.draw(st.integers(0, 255))
            case "cut":
                del frame[data.draw(st.integers(0, len(frame))) :]
            case "add":
                frame += data.draw(st.binary(max_size=5))
            case "drop":
                del sent[at]
                if not sent:
                    return
                continue
            case _:
                sent.insert(at, bytes(frame))
        sent[at] = bytes(frame)
    check(pack(sent))


def test_a_row_that_ends_behind_the_number_of_its_table_is_refused_with_its_place() -> None:
    begin, row, commit = frames([pg.Insert(2, (pg.Absent.NULL, pg.Absent.NULL))])
    check(pack([begin, row[:5], commit]))


@pytest.mark.parametrize("name", seeds())
def test_the_seeds_of_fuzzing_are_whole_but_for_names_that_no_server_sends(name: str) -> None:
    assert check(seeds()[name]) == (name not in ("nameless", "unnamed column"))


@given(st.lists(st.one_of(st.none(), st.binary(max_size=100)), min_size=1, max_size=4))
def test_a_key_has_the_hash_that_everybody_computes(key: list[bytes | None]) -> None:
    sizes = np.array([rows.NULL if cell is None else len(cell) for cell in key], np.int32)
    ends = np.cumsum(np.maximum(sizes, 0))
    found = rows.Cells((ends - np.maximum(sizes, 0)).astype(np.int32), sizes)
    data = np.frombuffer(b"".join(cell or b"" for cell in key), np.uint8)
    hashes = np.empty(2, np.int64)
    first, places = np.array([0, -1], np.int32), np.arange(len(key), dtype=np.int32)
    small = np.empty(3, np.uint8)
    assert hash_keys(data, found, first, places, small, hashes) == 4 * len(key) + ends[-1]
    assert hash_keys(data, found, first, places, np.empty(500, np.uint8), hashes) == 0
    assert hashes.tolist() == [hash_texts(key), 0]


def test_a_table_much_wider_than_guessed_finds_room() -> None:
    """Rows of NULLs alone: a byte a cell."""
    wide = TABLES[2]
    row = pg.Insert(wide.relid, tuple(b"" if column[3] else pg.NULL for column in wide.columns))
    moved = pg.Update(2, (b"", b"2"), old=(b"", b"1"))  # two rows of one message
    assert check(pack(frames([*[row] * 500, *[moved] * 500])))


def test_a_thread_that_calls_a_kernel_first_imports_nothing() -> None:
    """Two threads that import modules of one circle get half of one."""
    program = (
        "import sys, threading\n"
        "import numpy as np\n"
        "from tailrace.cdc.kernels import rows\n"
        "from tailrace.eventstore.compiled import compiler\n"
        "compiler.load_compiler()\n"
        "before = set(sys.modules)\n"
        "none = np.zeros(0, np.int32)\n"
        "work = lambda: rows.find_unsent(rows.Cells(none, none), none, 0, none)\n"
        "thread = threading.Thread(target=work)\n"
        "thread.start()\n"
        "thread.join()\n"
        "print(sorted(set(sys.modules) - before))"
    )
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY)}
    ran = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)
    assert (ran.returncode, ran.stdout) == (0, "[]\n"), ran.stderr
