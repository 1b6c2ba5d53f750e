"""Runs Alembic on the catalog's tables, or on those of consumer groups, which may live in another database and have a
version of their own."""

from __future__ import annotations

import threading
from enum import StrEnum
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, MetaData

_lock = threading.Lock()
"""What a script reads, ``alembic.context`` and ``alembic.op``, belongs to the process, not to the thread."""


class Tables(StrEnum):
    """Which tables: each is a folder here."""

    CATALOG = "catalog"
    GROUPS = "groups"


def config(tables: Tables, connection: Connection, metadata: MetaData) -> Config:
    """An Alembic configuration that runs on ``connection`` and in its transaction. ``metadata`` declares the tables;
    its naming convention names their constraints."""
    settings = _settings(tables)
    settings.attributes |= {"connection": connection, "metadata": metadata}
    return settings


def _settings(tables: Tables) -> Config:
    settings = Config()
    folder = Path(__file__).parent / tables.value
    settings.set_main_option("script_location", str(folder).replace("%", "%%"))
    return settings


def steps(tables: Tables) -> list[tuple[str, str, str]]:
    """All migrations, oldest first: revision, phase, what it does."""
    scripts = ScriptDirectory.from_config(_settings(tables))
    return [(each.revision, each.module.phase, each.doc) for each in scripts.walk_revisions()][::-1]


def upgrade(tables: Tables, connection: Connection, metadata: MetaData, revision: str = "head") -> None:
    """Bring the tables to ``revision``. All or nothing: the caller commits."""
    with _lock:
        command.upgrade(config(tables, connection, metadata), revision)


def downgrade(tables: Tables, connection: Connection, metadata: MetaData, revision: str) -> None:
    """Take the tables back to ``revision`` (``base``: none). All or nothing: the caller commits."""
    with _lock:
        command.downgrade(config(tables, connection, metadata), revision)
