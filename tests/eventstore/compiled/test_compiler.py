"""The compiler says what it needs, and keeps machine code where nobody else writes, for each state of the sources."""

from __future__ import annotations

import importlib
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tailrace.cdc.kernels import rows
from tailrace.eventstore.compiled import compiler
from tailrace.eventstore.errors import OperatorError
from tests.support import REPOSITORY

ROOM = Path(rows.__file__).parent


def test_without_numba_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "numba", None)
    monkeypatch.delitem(sys.modules, compiler.__name__)
    with pytest.raises(OperatorError, match="numba") as caught:
        importlib.import_module(compiler.__name__)
    assert "tailrace[capture]" in caught.value.hint


def test_machine_code_is_kept_in_the_users_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("NUMBA_CACHE_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = compiler.cache_folder(ROOM)
    assert folder and folder.parent == tmp_path / "tailrace" / "kernels"
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert compiler.cache_folder(ROOM) is None
    assert not list(ROOM.glob("__pycache__/*.nb?"))


def test_machine_code_is_not_taken_from_a_folder_that_others_write(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """numba's index of compiled code is a pickle, and the code runs."""
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    folder = compiler.cache_folder(ROOM)
    assert folder and folder.stat().st_mode & 0o777 == 0o700
    for mode in (0o722, 0o720, 0o702):
        folder.chmod(mode)
        assert compiler.cache_folder(ROOM) is None
    folder.chmod(0o755)
    assert compiler.cache_folder(ROOM) == folder


@pytest.mark.slow
def test_a_cache_of_other_kernels_is_left_alone(tmp_path: Path) -> None:
    """numba compares one module's source, after it has unpickled types by the names that they had."""
    package = tmp_path / "tailrace"
    sources = package / "cdc" / "kernels"
    shutil.copytree(REPOSITORY / "cdc" / "kernels", sources, ignore=shutil.ignore_patterns("__pycache__"))
    compiled = package / "eventstore" / "compiled"
    shutil.copytree(
        REPOSITORY / "eventstore" / "compiled", compiled, ignore=shutil.ignore_patterns("__pycache__")
    )
    shutil.copy(REPOSITORY / "eventstore" / "errors.py", package / "eventstore")
    for folder in (package, package / "cdc", package / "eventstore"):
        (folder / "__init__.py").touch()

    def hits(name: str) -> int:
        program = (
            "import numpy as np\n"
            "from tailrace.cdc.kernels import rows\n"
            "none = np.zeros(0, np.int32)\n"
            f"rows.find_unsent(rows.{name}(none, none), none, 0, none)\n"
            "print(sum(rows.find_unsent.stats.cache_hits.values()))"
        )
        environment = os.environ | {
            "PYTHONPATH": str(tmp_path),
            "PYTHONDONTWRITEBYTECODE": "1",
            "XDG_CACHE_HOME": str(tmp_path / "cache"),
        }
        environment.pop("NUMBA_CACHE_DIR", None)
        ran = subprocess.run(
            [sys.executable, "-c", program], env=environment, cwd=tmp_path, capture_output=True, text=True
        )
        assert ran.returncode == 0, ran.stderr
        return int(ran.stdout)

    assert [hits("Cells"), hits("Cells")] == [0, 1]
    for path in sources.glob("*.py"):
        path.write_text(re.sub(r"\bCells\b", "CellTexts", path.read_text(encoding="utf-8")), encoding="utf-8")
    assert hits("CellTexts") == 0
    assert hits("CellTexts") == 1
    memory = compiled / "memory.py"  # no kernel is in it, all call it
    memory.write_text(memory.read_text(encoding="utf-8") + "\n\nCHANGED = True\n", encoding="utf-8")
    assert hits("CellTexts") == 0
