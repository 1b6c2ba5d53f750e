"""The log: sources, topics, epochs, segments; derived runs and generations"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
phase = "pre"

TABLES = (
    "log",
    "log_head",
    "moved",
    "terms",
    "sources",
    "topics",
    "topic_schemas",
    "topic_offsets",
    "incomplete",
    "requests",
    "loads",
    "load_ranges",
    "set_aside",
    "kept_frames",
    "epochs",
    "blobs",
    "segments",
    "lineage",
    "state_runs",
    "redactions",
    "archived",
    "archiving",
    "epoch_files",
    "retired",
    "leases",
    "upkeep",
    "generations",
    "live",
    "derived",
    "runs",
)  # referenced before referring


def upgrade() -> None:
    _log()
    _sources_and_topics()
    _requests_and_loads()
    _set_aside()
    _epochs()
    _segments()
    _lineage()
    _retention()
    _upkeep()
    _generations()
    _derived()


def _log() -> None:
    op.create_table(
        "log",
        sa.Column("id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("log_id", sa.Text(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("needs", sa.Text(), nullable=False),
        sa.CheckConstraint("id = 1", name=op.f("ck_log_one_row")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_log")),
    )
    op.create_table(
        "log_head",
        sa.Column("id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("epoch", sa.BigInteger(), nullable=False),
        sa.Column("hash", sa.Text(), nullable=False),
        sa.CheckConstraint("id = 1", name=op.f("ck_log_head_one_row")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_log_head")),
    )
    op.create_table(
        "moved",
        sa.Column("id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("log_id", sa.Text(), nullable=False),
        sa.Column("arriving", sa.Boolean(), nullable=False),
        sa.Column("catalog", sa.Text(), nullable=False),
        sa.Column("segments", sa.Text(), nullable=False),
        sa.Column("began_at", sa.BigInteger(), nullable=False),
        sa.Column("ended_at", sa.BigInteger()),
        sa.CheckConstraint("id = 1", name=op.f("ck_moved_one_row")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_moved")),
    )
    op.create_table(
        "terms",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("term", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_terms")),
    )


def _sources_and_topics() -> None:
    op.create_table(
        "sources",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("incarnation", sa.Integer(), nullable=False),
        sa.Column("term", sa.BigInteger(), nullable=False),
        sa.Column("commit_lsn", sa.BigInteger(), nullable=False),
        sa.Column("end_lsn", sa.BigInteger(), nullable=False),
        sa.Column("through_lsn", sa.BigInteger(), nullable=False),
        sa.Column("last_append", sa.Text(), nullable=False),
        sa.Column("system_id", sa.Text(), nullable=False),
        sa.Column("timeline", sa.Integer(), nullable=False),
        sa.Column("repairing", sa.Boolean(), nullable=False),
        sa.Column("slot", sa.Text(), nullable=False),
        sa.Column("publication", sa.Text(), nullable=False),
        sa.Column("loaded", sa.Boolean(), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_sources")),
    )
    op.create_table(
        "topics",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("source", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("partitioning", sa.Text(), nullable=False),
        sa.Column("complete_since", sa.BigInteger(), nullable=True),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("published", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["source"], ["sources.name"], name=op.f("fk_topics_source")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_topics")),
        sa.UniqueConstraint("name", name=op.f("uq_topics_name")),
    )
    op.create_index(op.f("ix_topics_source"), "topics", ["source"], unique=False)
    op.create_table(
        "topic_schemas",
        sa.Column("topic_id", sa.Integer(), nullable=False),
        sa.Column("version", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("epoch", sa.BigInteger(), nullable=False),
        sa.Column("definition", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["topic_id"], ["topics.id"], name=op.f("fk_topic_schemas_topic_id")),
        sa.PrimaryKeyConstraint("topic_id", "version", name=op.f("pk_topic_schemas")),
    )
    op.create_table(
        "topic_offsets",
        sa.Column("topic_id", sa.Integer(), nullable=False),
        sa.Column("next_offsets", sa.Text(), nullable=False),
        sa.Column("log_starts", sa.Text(), nullable=False),
        sa.Column("whole_from", sa.Text(), nullable=False),
        sa.Column("start_epoch", sa.BigInteger(), nullable=False),
        sa.Column("looks", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["topic_id"], ["topics.id"], name=op.f("fk_topic_offsets_topic_id")),
        sa.PrimaryKeyConstraint("topic_id", name=op.f("pk_topic_offsets")),
    )
    op.create_table(
        "incomplete",
        sa.Column("topic_id", sa.Integer(), nullable=False),
        sa.Column("from_epoch", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("to_epoch", sa.BigInteger(), nullable=True),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["topic_id"], ["topics.id"], name=op.f("fk_incomplete_topic_id")),
        sa.PrimaryKeyConstraint("topic_id", "from_epoch", name=op.f("pk_incomplete")),
    )


def _requests_and_loads() -> None:
    op.create_table(
        "requests",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("source", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("topic", sa.Text(), nullable=False),
        sa.Column("options", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("detail", sa.Text(), nullable=False),
        sa.Column("asked_at", sa.BigInteger(), nullable=False),
        sa.Column("ended_at", sa.BigInteger(), nullable=True),
        sa.ForeignKeyConstraint(["source"], ["sources.name"], name=op.f("fk_requests_source")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_requests")),
    )
    op.create_index(op.f("ix_requests_source"), "requests", ["source"], unique=False)
    op.create_table(
        "loads",
        sa.Column("topic_id", sa.Integer(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("lsn", sa.BigInteger(), nullable=False),
        sa.Column("epoch", sa.BigInteger(), nullable=False),
        sa.Column("expected_rows", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["topic_id"], ["topics.id"], name=op.f("fk_loads_topic_id")),
        sa.PrimaryKeyConstraint("topic_id", name=op.f("pk_loads")),
    )
    op.create_table(
        "load_ranges",
        sa.Column("topic_id", sa.Integer(), nullable=False),
        sa.Column("number", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("after", sa.Text(), nullable=True),
        sa.Column("upto", sa.Text(), nullable=True),
        sa.Column("rows", sa.BigInteger(), nullable=False),
        sa.Column("done", sa.Boolean(), nullable=False),
        sa.ForeignKeyConstraint(["topic_id"], ["loads.topic_id"], name=op.f("fk_load_ranges_topic_id")),
        sa.PrimaryKeyConstraint("topic_id", "number", name=op.f("pk_load_ranges")),
    )


def _set_aside() -> None:
    op.create_table(
        "set_aside",
        sa.Column("topic_id", sa.Integer(), nullable=False),
        sa.Column("error", sa.Text(), nullable=False),
        sa.Column("lsn", sa.BigInteger(), nullable=False),
        sa.Column("frame", sa.LargeBinary(), nullable=True),
        sa.Column("keeps", sa.Boolean(), nullable=False),
        sa.ForeignKeyConstraint(["topic_id"], ["topics.id"], name=op.f("fk_set_aside_topic_id")),
        sa.PrimaryKeyConstraint("topic_id", name=op.f("pk_set_aside")),
    )
    op.create_table(
        "kept_frames",
        sa.Column("topic_id", sa.Integer(), nullable=False),
        sa.Column("number", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("frames", sa.BigInteger(), nullable=False),
        sa.Column("bytes", sa.BigInteger(), nullable=False),
        sa.Column("checksum", sa.Text(), nullable=False),
        sa.Column("path", sa.Text(), nullable=True),
        sa.Column("data", sa.LargeBinary(), nullable=True),
        sa.ForeignKeyConstraint(["topic_id"], ["set_aside.topic_id"], name=op.f("fk_kept_frames_topic_id")),
        sa.PrimaryKeyConstraint("topic_id", "number", name=op.f("pk_kept_frames")),
    )


def _epochs() -> None:
    op.create_table(
        "epochs",
        sa.Column("epoch", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("append_id", sa.Text(), nullable=False),
        sa.Column("source", sa.Text(), nullable=False),
        sa.Column("incarnation", sa.Integer(), nullable=False),
        sa.Column("commit_lsn", sa.BigInteger(), nullable=False),
        sa.Column("end_lsn", sa.BigInteger(), nullable=False),
        sa.Column("first_lsn", sa.BigInteger(), nullable=True),
        sa.Column("last_lsn", sa.BigInteger(), nullable=True),
        sa.Column("commit_ts", sa.BigInteger(), nullable=True),
        sa.Column("first_ts", sa.BigInteger(), nullable=True),
        sa.Column("last_ts", sa.BigInteger(), nullable=True),
        sa.Column("transactions", sa.BigInteger(), nullable=False),
        sa.Column("rows", sa.BigInteger(), nullable=False),
        sa.Column("hash", sa.Text(), nullable=False),
        sa.Column("content", sa.Text(), nullable=False),
        sa.Column("topics", sa.Text(), nullable=False),
        sa.Column("parts", sa.Text(), nullable=False),
        sa.Column("blob_bytes", sa.BigInteger(), nullable=True),
        sa.ForeignKeyConstraint(["source"], ["sources.name"], name=op.f("fk_epochs_source")),
        sa.PrimaryKeyConstraint("epoch", name=op.f("pk_epochs")),
        sa.UniqueConstraint("append_id", name=op.f("uq_epochs_append_id")),
    )
    op.create_index("ix_epochs_source_last_lsn", "epochs", ["source", "last_lsn"], unique=False)
    op.create_index("ix_epochs_source_last_ts", "epochs", ["source", "last_ts"], unique=False)
    op.create_index(
        "ix_epochs_unsealed",
        "epochs",
        ["epoch"],
        unique=False,
        sqlite_where=sa.text("blob_bytes IS NOT NULL"),
        postgresql_where=sa.text("blob_bytes IS NOT NULL"),
    )
    op.create_table(
        "blobs",
        sa.Column("append_id", sa.Text(), nullable=False),
        sa.Column("plain_bytes", sa.BigInteger(), nullable=False),
        sa.Column("checksum", sa.Text(), nullable=False),
        sa.Column("data", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("append_id", name=op.f("pk_blobs")),
    )


def _segments() -> None:
    op.create_table(
        "segments",
        sa.Column("path", sa.Text(), nullable=False),
        sa.Column("topic_id", sa.Integer(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("first_epoch", sa.BigInteger(), nullable=False),
        sa.Column("last_epoch", sa.BigInteger(), nullable=False),
        sa.Column("first_lsn", sa.BigInteger(), nullable=True),
        sa.Column("last_lsn", sa.BigInteger(), nullable=True),
        sa.Column("first_row", sa.BigInteger(), nullable=False),
        sa.Column("rows", sa.BigInteger(), nullable=False),
        sa.Column("bytes", sa.BigInteger(), nullable=False),
        sa.Column("checksum", sa.Text(), nullable=False),
        sa.Column("ranges", sa.Text(), nullable=False),
        sa.Column("sealed", sa.Boolean(), nullable=False),
        sa.Column("content", sa.Text(), nullable=False),
        sa.Column("origin", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["topic_id"], ["topics.id"], name=op.f("fk_segments_topic_id")),
        sa.PrimaryKeyConstraint("path", name=op.f("pk_segments")),
    )
    op.create_index("ix_segments_topic_id_last_epoch", "segments", ["topic_id", "last_epoch"], unique=False)


def _retention() -> None:
    op.create_table(
        "state_runs",
        sa.Column("path", sa.Text(), nullable=False),
        sa.Column("topic_id", sa.Integer(), nullable=False),
        sa.Column("after_epoch", sa.BigInteger(), nullable=False),
        sa.Column("epoch", sa.BigInteger(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("first_epoch", sa.BigInteger(), nullable=False),
        sa.Column("last_epoch", sa.BigInteger(), nullable=False),
        sa.Column("rows", sa.BigInteger(), nullable=False),
        sa.Column("bytes", sa.BigInteger(), nullable=False),
        sa.Column("checksum", sa.Text(), nullable=False),
        sa.Column("ranges", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["topic_id"], ["topics.id"], name=op.f("fk_state_runs_topic_id")),
        sa.PrimaryKeyConstraint("path", name=op.f("pk_state_runs")),
    )
    op.create_index(op.f("ix_state_runs_topic_id"), "state_runs", ["topic_id"], unique=False)
    op.create_table(
        "redactions",
        sa.Column("epoch", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("topic_id", sa.Integer(), nullable=False),
        sa.Column("erased_at", sa.BigInteger(), nullable=False),
        sa.Column("receipt", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["topic_id"], ["topics.id"], name=op.f("fk_redactions_topic_id")),
        sa.PrimaryKeyConstraint("epoch", name=op.f("pk_redactions")),
    )
    op.create_index(op.f("ix_redactions_topic_id"), "redactions", ["topic_id"], unique=False)
    op.create_table(
        "archived",
        sa.Column("place", sa.Text(), nullable=False),
        sa.Column("path", sa.Text(), nullable=False),
        sa.Column("topic_id", sa.Integer(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("first_epoch", sa.BigInteger(), nullable=False),
        sa.Column("last_epoch", sa.BigInteger(), nullable=False),
        sa.Column("first_row", sa.BigInteger(), nullable=False),
        sa.Column("rows", sa.BigInteger(), nullable=False),
        sa.Column("bytes", sa.BigInteger(), nullable=False),
        sa.Column("checksum", sa.Text(), nullable=False),
        sa.Column("ranges", sa.Text(), nullable=False),
        sa.Column("archived_at", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["topic_id"], ["topics.id"], name=op.f("fk_archived_topic_id")),
        sa.PrimaryKeyConstraint("place", "path", name=op.f("pk_archived")),
    )
    op.create_index(op.f("ix_archived_topic_id"), "archived", ["topic_id"], unique=False)
    op.create_table(
        "archiving",
        sa.Column("place", sa.Text(), nullable=False),
        sa.Column("path", sa.Text(), nullable=False),
        sa.Column("topic_id", sa.Integer(), nullable=False),
        sa.Column("source", sa.Text(), nullable=False),
        sa.Column("begun_at", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["topic_id"], ["topics.id"], name=op.f("fk_archiving_topic_id")),
        sa.PrimaryKeyConstraint("place", "path", name=op.f("pk_archiving")),
    )
    op.create_index(op.f("ix_archiving_topic_id"), "archiving", ["topic_id"], unique=False)


def _lineage() -> None:
    op.create_table(
        "lineage",
        sa.Column("topic_id", sa.Integer(), nullable=False),
        sa.Column("entries", sa.BigInteger(), nullable=False),
        sa.Column("hash", sa.Text(), nullable=False),
        sa.Column("rows", sa.BigInteger(), nullable=False),
        sa.Column("content", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["topic_id"], ["topics.id"], name=op.f("fk_lineage_topic_id")),
        sa.PrimaryKeyConstraint("topic_id", name=op.f("pk_lineage")),
    )


def _upkeep() -> None:
    op.create_table(
        "epoch_files",
        sa.Column("path", sa.Text(), nullable=False),
        sa.Column("first_epoch", sa.BigInteger(), nullable=False),
        sa.Column("last_epoch", sa.BigInteger(), nullable=False),
        sa.Column("bytes", sa.BigInteger(), nullable=False),
        sa.Column("checksum", sa.Text(), nullable=False),
        sa.Column("spans", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("path", name=op.f("pk_epoch_files")),
        sa.UniqueConstraint("first_epoch", name=op.f("uq_epoch_files_first_epoch")),
    )
    op.create_table(
        "retired",
        sa.Column("number", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("path", sa.Text(), nullable=False),
        sa.Column("bytes", sa.BigInteger(), nullable=False),
        sa.Column("retired_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("number", name=op.f("pk_retired")),
        sa.UniqueConstraint("path", name=op.f("uq_retired_path")),
    )
    op.create_table(
        "leases",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("role", sa.Text(), nullable=False),
        sa.Column("holder", sa.Text(), nullable=False),
        sa.Column("retired", sa.BigInteger(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("expires_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_leases")),
    )
    op.create_table(
        "upkeep",
        sa.Column("id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("finished_at", sa.BigInteger(), nullable=False),
        sa.Column("report", sa.Text(), nullable=False),
        sa.CheckConstraint("id = 1", name=op.f("ck_upkeep_one_row")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_upkeep")),
    )


def _generations() -> None:
    op.create_table(
        "generations",
        sa.Column("projection", sa.Text(), nullable=False),
        sa.Column("generation", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("fingerprint", sa.Text(), nullable=False),
        sa.Column("sink", sa.Text(), nullable=False),
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("schema", sa.LargeBinary(), nullable=False),
        sa.Column("partitions", sa.Integer(), nullable=False),
        sa.Column("split", sa.Integer(), nullable=False),
        sa.Column("as_of", sa.Text(), nullable=True),
        sa.Column("preview", sa.Text(), nullable=True),
        sa.Column("inputs", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("frozen_at", sa.BigInteger(), nullable=True),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("checked", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("projection", "generation", name=op.f("pk_generations")),
    )
    op.create_table(
        "live",
        sa.Column("projection", sa.Text(), nullable=False),
        sa.Column("generation", sa.Integer(), nullable=False),
        sa.Column("previous_generation", sa.Integer(), nullable=True),
        sa.PrimaryKeyConstraint("projection", name=op.f("pk_live")),
    )


def _derived() -> None:
    op.create_table(
        "derived",
        sa.Column("projection", sa.Text(), nullable=False),
        sa.Column("generation", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("from_epoch", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("to_epoch", sa.BigInteger(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("files", sa.Text(), nullable=False),
        sa.Column("rows", sa.BigInteger(), nullable=False),
        sa.Column("hash", sa.Text(), nullable=False),
        sa.Column("commit_ts", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("projection", "generation", "from_epoch", name=op.f("pk_derived")),
        sa.UniqueConstraint(
            "projection", "generation", "to_epoch", name=op.f("uq_derived_projection_generation_to_epoch")
        ),
    )
    op.create_table(
        "runs",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("projection", sa.Text(), nullable=False),
        sa.Column("generation", sa.Integer(), nullable=True),
        sa.Column("started", sa.BigInteger(), nullable=False),
        sa.Column("finished", sa.BigInteger(), nullable=True),
        sa.Column("from_epoch", sa.BigInteger(), nullable=True),
        sa.Column("to_epoch", sa.BigInteger(), nullable=True),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("rows_upserted", sa.BigInteger(), nullable=False),
        sa.Column("rows_deleted", sa.BigInteger(), nullable=False),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("keys", sa.BigInteger(), nullable=True),
        sa.Column("seconds", sa.Float(), nullable=True),
        sa.Column("bytes", sa.BigInteger(), nullable=False),
        sa.Column("changes", sa.BigInteger(), nullable=True),
        sa.Column("tries", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_runs")),
    )
    op.create_index("ix_runs_projection_started", "runs", ["projection", "started"], unique=False)


def downgrade() -> None:
    for table in reversed(TABLES):
        op.drop_table(table)
