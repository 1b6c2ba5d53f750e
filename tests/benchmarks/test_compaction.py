"""The benchmark compares engines that give the same answer, and its table replaces only its own section."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from benchmarks.eventstore.compaction import answer_of, duckdb_arg_max
from benchmarks.eventstore.history import NARROW, history
from benchmarks.results import table, write_section
from tests.eventstore.bucket_state import readable_state


def test_the_kernel_and_duckdb_agree_on_generated_events(tmp_path: Path) -> None:
    with history(tmp_path, NARROW, keys=3_000) as made:
        made.grow(20_000)
        wanted = made.state()
    files = tmp_path / "segments"
    state = pa.concat_tables(readable_state(files, wanted, bucket) for bucket in range(wanted.buckets))
    assert answer_of(state) == duckdb_arg_max(files, wanted, cores=1).answer
    assert 0 < state.num_rows < 3_000


def test_a_section_is_replaced_and_the_others_stay(tmp_path: Path) -> None:
    path = tmp_path / "RESULTS.md"
    for name, body in [
        ("one", "first"),
        ("two", table(["engine", "s"], [["ours", "1"]])),
        ("one", r"again \1"),
    ]:
        write_section(name, name.title(), body, command=f"run {name}", packages=["pyarrow"], path=path)
    text = path.read_text()
    assert "first" not in text
    assert text.count("<!-- one: begin -->") == 1
    assert r"again \1" in text
    assert "| ours | 1 |" in text
    assert f"pyarrow {pa.__version__}" in text
    assert text.index("## One") < text.index("## Two")
