"""Which engine computed a step, how old readers had become by then; previews that are promoted after all"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
phase = "pre"


def upgrade() -> None:
    op.add_column("generations", sa.Column("parity", sa.Text()))
    op.add_column("generations", sa.Column("taken_at", sa.BigInteger()))
    op.add_column("runs", sa.Column("engine", sa.Text()))
    op.add_column("runs", sa.Column("asked", sa.Float()))
    op.add_column("runs", sa.Column("behind", sa.Float()))


def downgrade() -> None:
    op.drop_column("runs", "behind")
    op.drop_column("runs", "asked")
    op.drop_column("runs", "engine")
    op.drop_column("generations", "taken_at")
    op.drop_column("generations", "parity")
