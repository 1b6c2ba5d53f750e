"""Running Alembic on the catalog's tables, or on those of consumer groups, which may live in another database and have
a version of their own."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path

from alembic import command
from alembic.config import Config
from sqlalchemy import Connection


class Tables(StrEnum):
    """Which tables: each is a folder here."""

    CATALOG = "catalog"
    GROUPS = "groups"


def config(tables: Tables, connection: Connection) -> Config:
    """An Alembic configuration that runs on ``connection`` and in its transaction."""
    settings = Config()
    folder = Path(__file__).parent / tables.value
    settings.set_main_option("script_location", str(folder).replace("%", "%%"))
    settings.attributes["connection"] = connection
    return settings


def upgrade(tables: Tables, connection: Connection, revision: str = "head") -> None:
    """Bring the tables to ``revision``. All or nothing: the caller commits."""
    command.upgrade(config(tables, connection), revision)


def downgrade(tables: Tables, connection: Connection, revision: str) -> None:
    """Take the tables back to ``revision`` (``base``: none). All or nothing: the caller commits."""
    command.downgrade(config(tables, connection), revision)
