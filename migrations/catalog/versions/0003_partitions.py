"""Protected columns of tables that have been partitions; where topics begin, once more"""

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

    op.add_column("lineage", sa.Column("start_epoch", sa.BigInteger(), nullable=False, server_default="0"))
    op.add_column("lineage", sa.Column("start_rows", sa.BigInteger(), nullable=False, server_default="0"))
    op.execute(
        "UPDATE lineage SET start_epoch ="
        " (SELECT o.start_epoch FROM topic_offsets o WHERE o.topic_id = lineage.topic_id)"
    )
    op.execute(
        "UPDATE lineage SET start_rows = (SELECT coalesce(sum(r.rows), 0) FROM state_runs r"
        " WHERE r.topic_id = lineage.topic_id AND r.after_epoch = 0 AND r.epoch = lineage.start_epoch)"
    )


def downgrade() -> None:
    op.drop_column("lineage", "start_rows")
    op.drop_column("lineage", "start_epoch")
    op.drop_table("partitions")
