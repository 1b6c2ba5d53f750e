"""Which engine computed a step and how old readers had become by then; whether another than Spark gives its rows"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
phase = "pre"


def upgrade() -> None:
    op.add_column("generations", sa.Column("parity", sa.Text()))
    op.add_column("runs", sa.Column("engine", sa.Text()))
    op.add_column("runs", sa.Column("asked", sa.Float()))
    op.add_column("runs", sa.Column("behind", sa.Float()))


def downgrade() -> None:
    op.drop_column("runs", "behind")
    op.drop_column("runs", "asked")
    op.drop_column("runs", "engine")
    op.drop_column("generations", "parity")
