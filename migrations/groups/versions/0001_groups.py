"""Consumer groups: members, who has which partition and how far it is, what is parked"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
phase = "pre"

TABLES = (
    "group_parked",
    "group_partitions",
    "group_members",
    "groups",
    "group_format",
)  # referring before referred


def upgrade() -> None:
    format_table = op.create_table(
        "group_format",
        sa.Column("id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("needs", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_group_format")),
    )
    op.bulk_insert(format_table, [{"id": 1, "needs": revision}])
    op.create_table(
        "groups",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("topics", sa.Text(), nullable=False),
        sa.Column("start", sa.Text(), nullable=False),
        sa.Column("start_cut", sa.Text(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_groups")),
    )
    op.create_table(
        "group_members",
        sa.Column("group_name", sa.Text(), nullable=False),
        sa.Column("member", sa.Text(), nullable=False),
        sa.Column("token", sa.Text(), nullable=False),
        sa.Column("beat", sa.BigInteger(), nullable=False),
        sa.Column("joined_at", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["group_name"], ["groups.name"], name=op.f("fk_group_members_group_name")),
        sa.PrimaryKeyConstraint("group_name", "member", name=op.f("pk_group_members")),
    )
    op.create_table(
        "group_partitions",
        sa.Column("group_name", sa.Text(), nullable=False),
        sa.Column("topic", sa.Text(), nullable=False),
        sa.Column("partition", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("next_offset", sa.BigInteger(), nullable=False),
        sa.Column("epoch", sa.BigInteger(), nullable=False),
        sa.Column("generation", sa.BigInteger(), nullable=False),
        sa.Column("reset_generation", sa.BigInteger(), nullable=False),
        sa.Column("owner", sa.Text(), nullable=True),
        sa.Column("wanted", sa.Text(), nullable=True),
        sa.Column("committed_at", sa.BigInteger(), nullable=True),
        sa.ForeignKeyConstraint(["group_name"], ["groups.name"], name=op.f("fk_group_partitions_group_name")),
        sa.PrimaryKeyConstraint("group_name", "topic", "partition", name=op.f("pk_group_partitions")),
    )
    op.create_table(
        "group_parked",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("group_name", sa.Text(), nullable=False),
        sa.Column("topic", sa.Text(), nullable=False),
        sa.Column("partition", sa.Integer(), nullable=False),
        sa.Column("event_offset", sa.BigInteger(), nullable=False),
        sa.Column("epoch", sa.BigInteger(), nullable=False),
        sa.Column("key_hash", sa.BigInteger(), nullable=False),
        sa.Column("key_text", sa.Text(), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("error", sa.Text(), nullable=False),
        sa.Column("holds_key", sa.Boolean(), nullable=False),
        sa.Column("replay", sa.Boolean(), nullable=False),
        sa.Column("parked_at", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["group_name"], ["groups.name"], name=op.f("fk_group_parked_group_name")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_group_parked")),
        sa.UniqueConstraint(
            "group_name", "topic", "partition", "event_offset",
            name=op.f("uq_group_parked_group_name_topic_partition_event_offset"),
        ),
    )  # fmt: skip


def downgrade() -> None:
    for table in TABLES:
        op.drop_table(table)
