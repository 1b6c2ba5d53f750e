"""Logical messages that were not believed; what the log declared of its topics"""

from __future__ import annotations

import hashlib
import json

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
phase = "pre"

_ROWS = {
    "topics": ("id", "name", "source", "kind", "partitioning", "complete_since", "reason"),
    "topic_schemas": ("topic_id", "version", "epoch", "definition"),
    "incomplete": ("topic_id", "from_epoch", "to_epoch", "reason"),
}


def upgrade() -> None:
    op.create_table(
        "refused",
        sa.Column("source", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("number", sa.BigInteger(), nullable=False),
        sa.Column("last_at", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["source"], ["sources.name"], name=op.f("fk_refused_source_sources")),
        sa.PrimaryKeyConstraint("source", "kind", name=op.f("pk_refused")),
    )
    op.add_column("topics", sa.Column("declared", sa.Text(), nullable=False, server_default=""))
    op.add_column("log_head", sa.Column("declared", sa.Text(), nullable=False, server_default=""))
    op.add_column("epochs", sa.Column("declared", sa.Text()))
    _declare(op.get_bind())


def _declare(connection: sa.Connection) -> None:
    """Each topic's sum over the digests of its rows, and the head's over all: as ``metadata.declared`` goes on."""
    sums: dict[int, int] = {}
    for name, columns in _ROWS.items():
        for row in connection.execute(sa.text(f"SELECT {', '.join(columns)} FROM {name}")):  # noqa: S608
            digest = hashlib.sha256(json.dumps([name, *row]).encode()).digest()
            sums[row[0]] = (sums.get(row[0], 0) + int.from_bytes(digest)) % (1 << 256)
    topic = sa.table("topics", sa.column("id"), sa.column("declared"))
    for number, total in sums.items():
        connection.execute(sa.update(topic).where(topic.c.id == number).values(declared=f"{total:064x}"))
    total = sum(sums.values()) % (1 << 256)
    head = sa.table("log_head", sa.column("declared"))
    connection.execute(sa.update(head).values(declared=f"{max(sums, default=0)}:{total:064x}"))


def downgrade() -> None:
    for table in ("epochs", "log_head", "topics"):
        op.drop_column(table, "declared")
    op.drop_table("refused")
