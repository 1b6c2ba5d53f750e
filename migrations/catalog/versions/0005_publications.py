"""How far publications are whose destination keeps no position, and their keys that wait"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
phase = "pre"


def upgrade() -> None:
    op.create_table(
        "publications",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("term", sa.BigInteger(), nullable=False),
        sa.Column("position", sa.Text()),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_publications")),
    )
    op.create_table(
        "parked_keys",
        sa.Column("publication", sa.Text(), nullable=False),
        sa.Column("topic", sa.Text(), nullable=False),
        sa.Column("hash", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("partition", sa.Integer(), nullable=False),
        sa.Column("row_offset", sa.BigInteger(), nullable=False),
        sa.Column("after_epoch", sa.BigInteger(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(
            ["publication"], ["publications.name"], name=op.f("fk_parked_keys_publication_publications")
        ),
        sa.PrimaryKeyConstraint("publication", "topic", "hash", name=op.f("pk_parked_keys")),
    )


def downgrade() -> None:
    op.drop_table("parked_keys")
    op.drop_table("publications")
