"""Editable installs: links that make the folders at the top packages inside ``tailrace``, as a wheel has them.

``tailrace/cdc -> ../cdc`` and so on. They are ignored by git: archives do not keep links, so every install makes them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

FOLDERS = ("cdc", "eventstore", "migrations", "projections")


class Links(BuildHookInterface[Any]):
    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version != "editable":
            return
        for folder in FOLDERS:
            link = Path(self.root, "tailrace", folder)
            if not link.is_symlink():
                link.symlink_to(Path("..", folder))
