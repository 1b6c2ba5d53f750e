"""Logical messages that were not believed; what was declared of topics and generations"""

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

_GENERATION = (
    "projection", "generation", "fingerprint", "sink", "key", "schema", "partitions", "split", "as_of", "preview",
    "inputs", "created_at",
)  # fmt: skip
_STEP = ("from_epoch", "to_epoch", "kind", "files", "rows", "commit_ts")


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
    op.add_column("generations", sa.Column("digest", sa.Text(), nullable=False, server_default=""))
    op.add_column("derived", sa.Column("previous", sa.Text(), nullable=False, server_default=""))
    _declare(op.get_bind())
    _describe(op.get_bind())


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


def _describe(connection: sa.Connection) -> None:
    """A digest over what never changes of each generation's row: as ``metadata.generations`` goes on."""
    query = sa.text(f"SELECT {', '.join(_GENERATION)} FROM generations")  # noqa: S608
    generation = sa.table(
        "generations", sa.column("projection"), sa.column("generation"), sa.column("digest")
    )
    for row in connection.execute(query).all():
        values = [bytes(each).hex() if isinstance(each, (bytes, memoryview)) else each for each in row]
        mine = (generation.c.projection == row[0], generation.c.generation == row[1])
        digest = hashlib.sha256(json.dumps(values).encode()).hexdigest()
        connection.execute(sa.update(generation).where(*mine).values(digest=digest))
        _chain(connection, row[0], row[1], digest)


def _chain(connection: sa.Connection, projection: str, number: int, digest: str) -> None:
    """A generation's steps anew, over its digest and all of their rows; the first that is left follows nothing."""
    step = sa.table(
        "derived", *(sa.column(name) for name in ("projection", "generation", *_STEP, "previous", "hash"))
    )
    mine = (step.c.projection == projection, step.c.generation == number)
    query = sa.select(*(step.c[name] for name in _STEP)).where(*mine).order_by(step.c.from_epoch)
    previous = ""
    for row in connection.execute(query).all():
        hashed = hashlib.sha256(json.dumps([digest, previous, *row]).encode()).hexdigest()
        changed = sa.update(step).where(*mine, step.c.from_epoch == row.from_epoch)
        connection.execute(changed.values(previous=previous, hash=hashed))
        previous = hashed


def downgrade() -> None:
    op.drop_column("derived", "previous")
    op.drop_column("generations", "digest")
    for table in ("epochs", "log_head", "topics"):
        op.drop_column(table, "declared")
    op.drop_table("refused")
