"""Logical messages that were not believed"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
phase = "pre"


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


def downgrade() -> None:
    op.drop_table("refused")
