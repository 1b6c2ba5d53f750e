"""What a process says of definitions that were edited under it."""

from __future__ import annotations

import os
from pathlib import Path

from tailrace.projections import load_projections
from tailrace.projections.definition.edited import DefinitionFiles
from tests.projections.definition.test_sql import TOTALS


def test_an_edit_is_told_once_and_a_file_that_was_only_touched_is_no_edit(tmp_path: Path) -> None:
    place = tmp_path / "view.sql"
    place.write_text(TOTALS)
    files = DefinitionFiles(load_projections([], tmp_path, ["view.sql"]).values())
    os.utime(place, ns=(1, 1))
    assert list(files.edited()) == []
    place.write_text(TOTALS + "-- another")
    (edited,) = files.edited()
    assert Path(edited.file).samefile(place) and edited.projections == ("view",)
    assert list(files.edited()) == []
    place.write_text(TOTALS)
    assert list(files.edited()) == [], "it has the text that was read"
    place.unlink()
    assert [each.projections for each in files.edited()] == [("view",)]
