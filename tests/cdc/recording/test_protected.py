"""Policies hold in a recording, and in what is decoded from it, as they do in capture: whatever DDL came in between."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from tailrace.cdc.recording.file import FRAME, Recording
from tailrace.cdc.replay import replay
from tailrace.eventstore.settings import StoreSettings
from tailrace.eventstore.store import Store
from tests.cdc.policy.test_policies_and_ddl import (
    ATTACH,
    PARTITIONED,
    RENAMED,
    ROWS,
    SECRET,
    SEQUENCES,
    settle,
)
from tests.cdc.policy.test_policies_and_ddl import site as site
from tests.support.capturing import RunningCapture, Site, execute, init_and_load
from tests.support.plaintext import places_of
from tests.support.recordings import as_documents

pytestmark = pytest.mark.timeout(600)

MOVED = "another dropped, so that the names have moved by one place"
FOUND = "INSERT INTO spare (id, note) VALUES (900, 'is found')"


def recorded(site: Site, statements: Sequence[str], file: Path) -> list[dict[str, object]]:
    """What capture made of the stream while it was recorded."""
    init_and_load(site)
    with RunningCapture(site, record=file) as capture:
        settle(capture)
        for statement in statements:
            execute(site.dsn, statement)
            if statement.startswith("INSERT"):
                settle(capture)
        settle(capture)
        return as_documents(capture.store)


def assert_protected(site: Site, statements: Sequence[str], tmp_path: Path) -> None:
    file, root = tmp_path / "recording", tmp_path / "replayed"
    recorded(site, [FOUND, *statements], file)
    records = list(Recording(file).records())
    assert not [each.kind for each in records if SECRET.encode() in each.data]
    assert any(b"is found" in each.data for each in records if each.kind == FRAME), "what is there is found"
    with Store.open(StoreSettings(name="replay"), create=True, root=root) as store:
        replay(Recording(file), store)
        assert places_of(store, root, SECRET) == []
        assert places_of(store, root, "is found")


def test_no_exchange_of_names_shows_a_protected_column_in_a_recording(site: Site, tmp_path: Path) -> None:
    site.init(ddl=False)
    assert_protected(site, SEQUENCES[MOVED], tmp_path)


def test_an_attached_partition_is_protected_in_a_recording_from_its_first_row_on(
    site: Site, tmp_path: Path
) -> None:
    execute(site.dsn, PARTITIONED)
    assert_protected(site, [ATTACH, *ROWS], tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("trigger", [True, False], ids=["with the DDL trigger", "without it"])
@pytest.mark.parametrize("sequence", [*SEQUENCES, "a partition whose columns were renamed"])
def test_no_sequence_of_ddl_shows_plain_text_in_a_recording(
    site: Site, sequence: str, trigger: bool, tmp_path: Path
) -> None:
    execute(site.dsn, PARTITIONED)
    site.init(ddl=trigger)
    assert_protected(site, SEQUENCES.get(sequence, RENAMED), tmp_path)
