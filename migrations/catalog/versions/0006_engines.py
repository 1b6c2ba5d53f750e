"""Which engine computed a step, and whether another than Spark gives a generation's rows as Spark does"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
phase = "pre"


def upgrade() -> None:
    op.add_column("generations", sa.Column("parity", sa.Text()))
    op.add_column("runs", sa.Column("engine", sa.Text()))


def downgrade() -> None:
    op.drop_column("runs", "engine")
    op.drop_column("generations", "parity")
