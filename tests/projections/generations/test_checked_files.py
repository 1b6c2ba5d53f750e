"""Nothing is read of a damaged file of a result, and what was compared with its checksum is not compared again."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pyarrow as pa
import pytest

from tailrace.eventstore.errors import IntegrityError
from tailrace.eventstore.segment import file_reader
from tailrace.eventstore.storage import LocalStorage
from tailrace.projections.generations.checked_files import CheckedFiles
from tailrace.projections.generations.step_files import DerivedFile


def written(storage: LocalStorage, name: str, data: bytes) -> DerivedFile:
    storage.write(name, data)
    return DerivedFile(0, name, 1, len(data), file_reader.checksum(data))


@pytest.fixture
def compared(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes of what was compared."""
    found, checksum = list[int](), file_reader.checksum

    def noted(data: pa.Buffer) -> str:
        found.append(len(data))
        return checksum(data)

    monkeypatch.setattr(file_reader, "checksum", noted)
    return found


def test_a_file_is_compared_once_and_a_damaged_one_refused(tmp_path: Path, compared: list[int]) -> None:
    storage, files, data = LocalStorage(tmp_path), CheckedFiles(), Random(1).randbytes(5000)
    file, damaged = (written(storage, name, data) for name in ("derived/p/1/a", "derived/p/1/b"))
    compared.clear()
    for _ in range(3):
        assert bytes(files.open(storage, file)) == data
    assert compared == [5000]
    (tmp_path / damaged.path).write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    for _ in range(2):
        with pytest.raises(IntegrityError, match=r"derived/p/1/b is damaged") as refused:
            files.open(storage, damaged)
        assert "rebuild the projection" in refused.value.hint


def test_a_file_that_was_damaged_after_its_comparison_is_compared_again(tmp_path: Path) -> None:
    storage, files, data = LocalStorage(tmp_path), CheckedFiles(), Random(1).randbytes(5000)
    file = written(storage, "derived/p/1/a", data)
    files.open(storage, file)
    with (tmp_path / file.path).open("r+b") as there:
        there.seek(7)
        there.write(bytes([data[7] ^ 1]))
    with pytest.raises(IntegrityError):
        files.open(storage, file)
