"""An application reads a projection by its name; store and sink come from the configuration and the catalog."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

from tailrace import load_settings, open_reader
from tailrace.eventstore.errors import OperatorError, UsageError
from tailrace.eventstore.metadata.generations import NewGeneration
from tailrace.eventstore.store import Store
from tailrace.projections.sinks.specs import ParquetFolder
from tests.tailrace.live_projection import LIVE_ROW, PROJECTION, make_live


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    make_live(tmp_path)
    return tmp_path


def test_a_projection_is_read_by_its_name(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    with open_reader(PROJECTION) as reader:
        assert reader.get(7) == LIVE_ROW and reader.get(8) is None


def test_the_configuration_is_found_as_the_commands_find_it(
    folder: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path_factory.mktemp("elsewhere"))
    with open_reader(PROJECTION, config=folder / "tailrace.toml") as reader:
        assert reader.get(7) == LIVE_ROW
    with pytest.raises(UsageError, match=r"there is no tailrace\.toml"):
        open_reader(PROJECTION)
    monkeypatch.setenv("TAILRACE_CONFIG", str(folder / "tailrace.toml"))
    with open_reader(PROJECTION) as reader:
        assert reader.get(7) == LIVE_ROW


def test_a_reader_with_everything_given_needs_no_catalog(folder: Path) -> None:
    settings = load_settings(folder / "tailrace.toml")
    (folder / ".tailrace" / "catalog.db").unlink()
    with open_reader(settings, "acme", PROJECTION, ParquetFolder("lake")) as reader:
        assert reader.get(7) == LIVE_ROW
    with pytest.raises(UsageError, match="takes the name of a projection"):
        cast(Any, open_reader)(settings, "acme")


def test_a_name_that_is_none_is_told_with_the_nearest(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    with pytest.raises(UsageError, match="never built") as caught:
        open_reader("customer_total")
    assert caught.value.hint == f"did you mean {PROJECTION}?"
    with pytest.raises(UsageError) as caught:
        open_reader("profile")
    assert caught.value.hint == f"built so far: {PROJECTION}; tailrace rebuild profile builds it"


def test_a_projection_that_was_built_and_never_promoted_cannot_be_read(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    with Store.open(load_settings().store) as store:
        store.derived.create_generation(
            NewGeneration("profile", fingerprint="", sink="{}", key=["id"], schema=b"", partitions=1, split=1)
        )
    with pytest.raises(OperatorError, match="no generation of projection 'profile' is live"):
        open_reader("profile")
