"""How far topics of Kafka are in the log, and parked records"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
phase = "pre"


def upgrade() -> None:
    op.create_table(
        "kafka_partitions",
        sa.Column("source", sa.Text(), nullable=False),
        sa.Column("topic", sa.Text(), nullable=False),
        sa.Column("partition", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("topic_id", sa.Text(), nullable=False),
        sa.Column("next_offset", sa.BigInteger(), nullable=False),
        sa.Column("commit_lsn", sa.BigInteger(), nullable=False),
        sa.Column("row_lsn", sa.BigInteger(), nullable=False),
        sa.Column("snapshot", sa.Text(), nullable=False),
        sa.Column("digest", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(
            ["source"], ["sources.name"], name=op.f("fk_kafka_partitions_source_sources")
        ),
        sa.PrimaryKeyConstraint("source", "topic", "partition", name=op.f("pk_kafka_partitions")),
    )
    op.create_table(
        "parked_records",
        sa.Column("source", sa.Text(), nullable=False),
        sa.Column("topic", sa.Text(), nullable=False),
        sa.Column("partition", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("record_offset", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("key", sa.LargeBinary()),
        sa.Column("value", sa.LargeBinary()),
        sa.Column("parked_at", sa.BigInteger(), nullable=False),
        sa.Column("digest", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["source"], ["sources.name"], name=op.f("fk_parked_records_source_sources")),
        sa.PrimaryKeyConstraint(
            "source", "topic", "partition", "record_offset", name=op.f("pk_parked_records")
        ),
    )


def downgrade() -> None:
    op.drop_table("parked_records")
    op.drop_table("kafka_partitions")
