"""A file that vanishes under a reader: an error that names it, never fewer rows; and all rows once it is back."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tailrace.eventstore.errors import MissingFile
from tailrace.eventstore.settings import StoreSettings
from tailrace.eventstore.store import Store
from tests.eventstore.shop import ORDERS, batch, notes, writer

READS: dict[str, Callable[[Store], int]] = {
    "read": lambda store: len(notes(store)),
    "tail": lambda store: sum(each.rows.num_rows for each in store.tail(start="earliest", timeout=0)),
    "state": lambda store: sum(table.num_rows for table in store.state(ORDERS)),
}


@pytest.mark.parametrize(("reading", "kind"), [("read", "log"), ("tail", "log"), ("state", "state")])
def test_a_reader_whose_file_vanished_names_it_and_reads_all_once_it_is_back(
    tmp_path: Path, reading: str, kind: str
) -> None:
    settings = StoreSettings(catalog="sqlite:///catalog.db", segments=Path("segments"))
    with Store.open(settings, create=True, root=tmp_path) as store:
        capture = writer(store)
        for lsn in (1, 2):
            capture.append(batch(lsn, orders=[("c", lsn)], completes=[ORDERS] if lsn == 1 else []))
        store.compact([ORDERS])
        assert READS[reading](store) == 2
        named = store.state_segments if kind == "state" else store.segments
        path = next(ref.path for ref in named(ORDERS, store.cut()) if ref.path is not None)
        lost, aside = tmp_path / "segments" / path, tmp_path / "aside"
        lost.rename(aside)
        with pytest.raises(MissingFile, match=lost.name):
            READS[reading](store)
        assert any(lost.name in each.place for each in store.verify().findings)
        aside.rename(lost)
        assert READS[reading](store) == 2 and store.verify().findings == ()
