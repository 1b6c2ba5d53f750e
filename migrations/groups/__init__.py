"""Migrations of the tables of consumer groups, which have a version of their own: they may live in another database."""

from __future__ import annotations

from pathlib import Path

from alembic import command
from alembic.config import Config
from sqlalchemy import Connection


def upgrade(connection: Connection, revision: str = "head") -> None:
    """Bring the tables to ``revision`` on ``connection`` and in its transaction: the caller commits."""
    command.upgrade(_config(connection), revision)


def downgrade(connection: Connection, revision: str) -> None:
    """Take the tables back to ``revision`` (``base``: none). The caller commits."""
    command.downgrade(_config(connection), revision)


def _config(connection: Connection) -> Config:
    settings = Config()
    settings.set_main_option("script_location", str(Path(__file__).parent).replace("%", "%%"))
    settings.attributes["connection"] = connection
    return settings
