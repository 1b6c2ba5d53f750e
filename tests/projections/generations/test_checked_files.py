"""Nothing is read of a damaged file of a result, and what was compared with its checksum is not compared again."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pyarrow as pa
import pytest

from tailrace.eventstore.errors import IntegrityError
from tailrace.eventstore.segment import file_reader
from tailrace.eventstore.storage import LocalStorage
from tailrace.projections.generations import checked_files
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


@pytest.mark.parametrize("small_bytes", [1, 1 << 20], ids=["large", "small"])
def test_a_file_is_compared_once_and_a_damaged_one_refused(
    tmp_path: Path, compared: list[int], monkeypatch: pytest.MonkeyPatch, small_bytes: int
) -> None:
    monkeypatch.setattr(checked_files, "_SMALL_BYTES", small_bytes)
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


def test_a_large_file_that_was_damaged_after_its_comparison_is_compared_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checked_files, "_SMALL_BYTES", 1)
    storage, files, data = LocalStorage(tmp_path), CheckedFiles(), Random(1).randbytes(5000)
    file = written(storage, "derived/p/1/a", data)
    files.open(storage, file)
    with (tmp_path / file.path).open("r+b") as there:
        there.seek(7)
        there.write(bytes([data[7] ^ 1]))
    with pytest.raises(IntegrityError):
        files.open(storage, file)


def test_small_files_take_no_more_memory_than_they_may(
    tmp_path: Path, compared: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checked_files, "_KEPT_BYTES", 2500)
    storage, files = LocalStorage(tmp_path), CheckedFiles()
    some = [written(storage, f"derived/p/1/{number}", bytes([number]) * 1000) for number in range(4)]
    compared.clear()
    for file in (*some, some[3], some[2], some[0]):
        assert bytes(files.open(storage, file)) == bytes([int(file.path[-1])]) * 1000
    assert len(compared) == 5, "two are kept: the last ones"
