"""Protected columns of tables that have been partitions"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
phase = "pre"


def upgrade() -> None:
    op.create_table(
        "partitions",
        sa.Column("source", sa.Text(), nullable=False),
        sa.Column("relid", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("protected", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["source"], ["sources.name"], name=op.f("fk_partitions_source_sources")),
        sa.PrimaryKeyConstraint("source", "relid", name=op.f("pk_partitions")),
    )


def downgrade() -> None:
    op.drop_table("partitions")
