"""Migrations of the catalog, run by ``Store.open(create=True)`` inside the caller's transaction."""

from __future__ import annotations

from pathlib import Path

from alembic import command
from alembic.config import Config
from sqlalchemy import Connection


def config(connection: Connection) -> Config:
    """An Alembic configuration that runs on ``connection`` and in its transaction."""
    settings = Config()
    settings.set_main_option("script_location", str(Path(__file__).parent).replace("%", "%%"))
    settings.attributes["connection"] = connection
    return settings


def upgrade(connection: Connection, revision: str = "head") -> None:
    """Bring the catalog to ``revision``. All or nothing: the caller commits."""
    command.upgrade(config(connection), revision)


def downgrade(connection: Connection, revision: str) -> None:
    """Take the catalog back to ``revision`` (``base``: no tables). All or nothing: the caller commits."""
    command.downgrade(config(connection), revision)
