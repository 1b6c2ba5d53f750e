"""The catalog's tables: the same on SQLite and on Postgres. Changes need a migration (a test compares the two).

Times are µs since 1970 UTC as bigint, LSNs bigint, so that both databases hold exactly the same values. The tables of
a Postgres catalog live in a schema of their own (``catalog.schema_name``), never in a captured one.
"""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    Float,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    Text,
    UniqueConstraint,
)

# The Alembic revision this code reads and writes, known here so that opening a store does not import Alembic.
REVISION = "0006"
# The oldest one that this code can work with, and the first that there ever was.
LEAST, FIRST = "0005", "0001"

metadata = MetaData(
    naming_convention={
        "pk": "pk_%(table_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s",
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
    }
)

# One row each. ``log_head.hash`` is the hash of epoch ``epoch``, ``log_head.declared`` what it says of the topics, and
# those that came since (``metadata.declared``).
log = Table(
    "log",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("log_id", Text, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("needs", Text, nullable=False),  # the format that code must know to use these tables (``formats``)
    CheckConstraint("id = 1", name="one_row"),
)
log_head = Table(
    "log_head",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("epoch", BigInteger, nullable=False),
    Column("hash", Text, nullable=False),
    Column("declared", Text, nullable=False),
    CheckConstraint("id = 1", name="one_row"),
)

# Where the log went, or where it comes from while it is not whole here: one row, from a move's begin.
moved = Table(
    "moved",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("log_id", Text, nullable=False),
    Column("arriving", Boolean, nullable=False),
    Column("catalog", Text, nullable=False),  # of the other place, for people
    Column("segments", Text, nullable=False),
    Column("began_at", BigInteger, nullable=False),
    Column("ended_at", BigInteger),
    CheckConstraint("id = 1", name="one_row"),
)

# Terms of those who write files outside a source's writer (seal, merge, fold, retention): a file of an ended term can
# never be registered. ``retired`` counts retired files.
terms = Table(
    "terms",
    metadata,
    Column("name", Text, primary_key=True),
    Column("term", BigInteger, nullable=False),
)

sources = Table(
    "sources",
    metadata,
    Column("name", Text, primary_key=True),
    Column("incarnation", Integer, nullable=False),
    Column("term", BigInteger, nullable=False),
    Column("commit_lsn", BigInteger, nullable=False),
    Column("end_lsn", BigInteger, nullable=False),
    Column("through_lsn", BigInteger, nullable=False),
    Column(
        "last_append", Text, nullable=False
    ),  # id of the last append: tells whether an unknown COMMIT landed
    Column("system_id", Text, nullable=False),
    Column("timeline", Integer, nullable=False),  # of the server when it last streamed to us, 0 before
    Column(
        "repairing", Boolean, nullable=False
    ),  # a repair was begun: its slot fits nothing that is in the log
    Column("slot", Text, nullable=False),
    Column("publication", Text, nullable=False),
    Column("loaded", Boolean, nullable=False),
)

topics = Table(
    "topics",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("name", Text, nullable=False, unique=True),  # TopicId.text
    Column("source", Text, ForeignKey("sources.name"), nullable=False, index=True),
    Column("kind", Text, nullable=False),
    Column("partitioning", Text, nullable=False),  # ``partitioning.Partitioning``
    Column("complete_since", BigInteger),
    Column("reason", Text, nullable=False),
    Column(
        "published", Text, nullable=False
    ),  # how the source published the table when it was read; "" not known
    Column(
        "declared", Text, nullable=False
    ),  # sum over this row and those of ``topic_schemas`` and ``incomplete`` (``metadata.declared``)
)
topic_schemas = Table(
    "topic_schemas",
    metadata,
    Column("topic_id", Integer, ForeignKey("topics.id"), primary_key=True),
    Column("version", Integer, primary_key=True, autoincrement=False),
    Column(
        "epoch", BigInteger, nullable=False
    ),  # that brought it: it holds from there on, with or without rows
    Column("definition", Text, nullable=False),  # TopicSchema.to_json
)
# Next offset of every partition as a JSON list: one narrow row per topic and epoch is written, not one per partition.
topic_offsets = Table(
    "topic_offsets",
    metadata,
    Column("topic_id", Integer, ForeignKey("topics.id"), primary_key=True),
    Column("next_offsets", Text, nullable=False),
    Column("log_starts", Text, nullable=False),  # first offset of every partition that readers can get
    Column("whole_from", Text, nullable=False),  # from where on no row is missing: below, the newest per key
    Column("start_epoch", BigInteger, nullable=False),  # rows up to it are gone; state is known from it on
    Column(
        "looks", Text, nullable=False, default="[]"
    ),  # JSON: epochs up to which a state run saved too little
)
# State inside an interval is unknown. Open while ``to_epoch`` is null; both ends exclusive of known state.
incomplete = Table(
    "incomplete",
    metadata,
    Column("topic_id", Integer, ForeignKey("topics.id"), primary_key=True),
    Column(
        "from_epoch", BigInteger, primary_key=True, autoincrement=False
    ),  # first epoch without known state
    Column("to_epoch", BigInteger),  # first epoch with known state again
    Column("reason", Text, nullable=False),
)
# What other processes ask of a source's writer, one row per topic: nobody else writes to a topic.
requests = Table(
    "requests",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("source", Text, ForeignKey("sources.name"), nullable=False, index=True),
    Column("kind", Text, nullable=False),
    Column("topic", Text, nullable=False),  # TopicId.text
    Column("options", Text, nullable=False),  # JSON
    Column("state", Text, nullable=False),
    Column("detail", Text, nullable=False),  # what came of it
    Column("asked_at", BigInteger, nullable=False),
    Column("ended_at", BigInteger),
)
# Loads by chunks that are under way, one per topic, and how far each range of keys is.
loads = Table(
    "loads",
    metadata,
    Column("topic_id", Integer, ForeignKey("topics.id"), primary_key=True),
    Column("version", Integer, nullable=False),
    Column("lsn", BigInteger, nullable=False),  # commit of the mark that began it
    Column("epoch", BigInteger, nullable=False),  # which holds that mark
    Column("expected_rows", BigInteger, nullable=False),
)
load_ranges = Table(
    "load_ranges",
    metadata,
    Column("topic_id", Integer, ForeignKey("loads.topic_id"), primary_key=True),
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("after", Text),  # JSON list of key texts: what is loaded ends there; null = at the beginning
    Column("upto", Text),  # JSON list of key texts, inclusive; null = to the end
    Column("rows", BigInteger, nullable=False),
    Column("done", Boolean, nullable=False),
)
# Topics whose table could not be decoded, and why.
set_aside = Table(
    "set_aside",
    metadata,
    Column("topic_id", Integer, ForeignKey("topics.id"), primary_key=True),
    Column("error", Text, nullable=False),
    Column("lsn", BigInteger, nullable=False),  # commit of the transaction that could not be decoded
    Column("frame", LargeBinary),  # the message that could not; null: not known, or not to be shown
    Column("keeps", Boolean, nullable=False),  # its frames are kept, so that decoding can be tried again
)
# What came for them since, in order, to be decoded later.
kept_frames = Table(
    "kept_frames",
    metadata,
    Column("topic_id", Integer, ForeignKey("set_aside.topic_id"), primary_key=True),
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("frames", BigInteger, nullable=False),
    Column("bytes", BigInteger, nullable=False),
    Column("checksum", Text, nullable=False),
    Column("path", Text),  # of a file in the segments folder; null: in ``data``
    Column("data", LargeBinary),
)

# Logical messages with a prefix of ours that were not ours, by what they claimed to be: counted as they arrive, so one
# that is sent again counts again.
refused = Table(
    "refused",
    metadata,
    Column("source", Text, ForeignKey("sources.name"), primary_key=True),
    Column("kind", Text, primary_key=True),
    Column("number", BigInteger, nullable=False),
    Column("last_at", BigInteger, nullable=False),
)

# Names under which columns are protected beside those of their topic: of the roots of partitions, which the source
# forgets when they are detached, and those that a table had for a while.
partitions = Table(
    "partitions",
    metadata,
    Column("source", Text, ForeignKey("sources.name"), primary_key=True),
    Column("relid", BigInteger, primary_key=True, autoincrement=False),  # the table's oid
    Column("protected", Text, nullable=False),  # JSON: ``metadata.partitions``
)

# How far the partitions of Kafka topics are in the log, and records of them that could not be read. The digests of all
# rows are a part of ``log_head.declared`` (``metadata.kafka_progress``).
kafka_partitions = Table(
    "kafka_partitions",
    metadata,
    Column("source", Text, ForeignKey("sources.name"), primary_key=True),
    Column("topic", Text, primary_key=True),
    Column("partition", Integer, primary_key=True, autoincrement=False),
    Column("topic_id", Text, nullable=False),  # Kafka's; "" where the broker has none
    Column("next_offset", BigInteger, nullable=False),
    Column("commit_lsn", BigInteger, nullable=False),  # highest position in Postgres of a streamed row
    Column("row_lsn", BigInteger, nullable=False),
    Column("snapshot", Text, nullable=False),  # ``model.kafka.SnapshotPhase``
    Column("digest", Text, nullable=False),
)
parked_records = Table(
    "parked_records",
    metadata,
    Column("source", Text, ForeignKey("sources.name"), primary_key=True),
    Column("topic", Text, primary_key=True),
    Column("partition", Integer, primary_key=True, autoincrement=False),
    Column("record_offset", BigInteger, primary_key=True, autoincrement=False),
    Column("reason", Text, nullable=False),
    Column("key", LargeBinary),
    Column("value", LargeBinary),
    Column("parked_at", BigInteger, nullable=False),
    Column("digest", Text, nullable=False),
)

# How far publications are whose destination keeps no position, and their keys that wait (``publishing.bridges.kept``).
publications = Table(
    "publications",
    metadata,
    Column("name", Text, primary_key=True),
    Column("term", BigInteger, nullable=False),  # of the one publisher that may commit
    Column("position", Text),  # JSON: ``publishing.position.Position``; null: nothing is published
)
parked_keys = Table(
    "parked_keys",
    metadata,
    Column("publication", Text, ForeignKey("publications.name"), primary_key=True),
    Column("topic", Text, primary_key=True),  # TopicId.text
    Column("hash", BigInteger, primary_key=True, autoincrement=False),  # of the key
    Column("partition", Integer, nullable=False),
    Column("row_offset", BigInteger, nullable=False),  # of its first row that waits
    Column("after_epoch", BigInteger, nullable=False),
    Column("reason", Text, nullable=False),
)

epochs = Table(
    "epochs",
    metadata,
    Column("epoch", BigInteger, primary_key=True, autoincrement=False),
    Column("append_id", Text, nullable=False, unique=True),
    Column("source", Text, ForeignKey("sources.name"), nullable=False),
    Column("incarnation", Integer, nullable=False),
    Column("commit_lsn", BigInteger, nullable=False),
    Column("end_lsn", BigInteger, nullable=False),
    Column("first_lsn", BigInteger),  # smallest and largest of the rows' commit LSNs
    Column("last_lsn", BigInteger),
    Column("commit_ts", BigInteger),  # of the last transaction
    Column("first_ts", BigInteger),  # smallest and largest commit time: they do not grow with the LSN
    Column("last_ts", BigInteger),
    Column("transactions", BigInteger, nullable=False),
    Column("rows", BigInteger, nullable=False),
    Column(
        "hash", Text, nullable=False
    ),  # over the hash before, ``content`` and what of this row never changes
    Column(
        "content", Text, nullable=False
    ),  # hash over the checksums of its parts, as they were stored first
    Column("topics", Text, nullable=False),  # ",3,17,": ids of the topics with rows, searchable by LIKE
    Column("parts", Text, nullable=False),  # the blob's directory, JSON; "[]" without a blob
    Column("blob_bytes", BigInteger),  # null without a blob
    Column("declared", Text),  # what ``log_head`` said of the topics; null in epochs of format 0001
    Index("ix_epochs_source_last_lsn", "source", "last_lsn"),
    Index("ix_epochs_source_last_ts", "source", "last_ts"),
)
# Few of many epochs are not sealed yet, and every read looks for them.
Index(
    "ix_epochs_unsealed",
    epochs.c.epoch,
    sqlite_where=epochs.c.blob_bytes.is_not(None),
    postgresql_where=epochs.c.blob_bytes.is_not(None),
)
# Bytes of small epochs, apart from ``epochs`` so that scans of positions do not drag them along.
blobs = Table(
    "blobs",
    metadata,
    Column("append_id", Text, primary_key=True),
    Column("plain_bytes", BigInteger, nullable=False),
    Column("checksum", Text, nullable=False),
    Column("data", LargeBinary, nullable=False),
)
segments = Table(
    "segments",
    metadata,
    Column("path", Text, primary_key=True),
    Column("topic_id", Integer, ForeignKey("topics.id"), nullable=False),
    Column("version", Integer, nullable=False),
    Column("first_epoch", BigInteger, nullable=False),
    Column("last_epoch", BigInteger, nullable=False),
    Column("first_lsn", BigInteger),
    Column("last_lsn", BigInteger),
    Column("first_row", BigInteger, nullable=False),  # stored rows of the topic before it: the topic's order
    Column("rows", BigInteger, nullable=False),
    Column("bytes", BigInteger, nullable=False),
    Column("checksum", Text, nullable=False),
    Column("ranges", Text, nullable=False),  # JSON [[partition, first_offset, rows], ...]
    Column("sealed", Boolean, nullable=False),
    Column(
        "content", Text, nullable=False, default=""
    ),  # ``content_hash.Content``; "" until something is made of it
    Column(
        "origin", Text, nullable=False, default=""
    ),  # JSON: what it was made of (``lineage``); "" by capture
    Index("ix_segments_topic_id_last_epoch", "topic_id", "last_epoch"),
)
# The double entry of ``segments``: per topic the content of all its files that have one, and the hash at which its
# chain of rewritings ends (``lineage``). And where retention left the topic's start, with the rows of the state run
# there.
lineage = Table(
    "lineage",
    metadata,
    Column("topic_id", Integer, ForeignKey("topics.id"), primary_key=True),
    Column("entries", BigInteger, nullable=False),
    Column("hash", Text, nullable=False),
    Column("rows", BigInteger, nullable=False),
    Column("content", Text, nullable=False),
    Column("start_epoch", BigInteger, nullable=False),
    Column("start_rows", BigInteger, nullable=False),
)
# Files of state runs (``runs``): of the rows of epochs behind ``after_epoch`` and up to ``epoch`` those that make the
# state, in the topic's order. The run at ``start_epoch`` is what retention left, the others are a shorter way.
state_runs = Table(
    "state_runs",
    metadata,
    Column("path", Text, primary_key=True),
    Column("topic_id", Integer, ForeignKey("topics.id"), nullable=False, index=True),
    Column("after_epoch", BigInteger, nullable=False),
    Column("epoch", BigInteger, nullable=False),
    Column("number", Integer, nullable=False),  # place among the run's files
    Column("version", Integer, nullable=False),
    Column("first_epoch", BigInteger, nullable=False),
    Column("last_epoch", BigInteger, nullable=False),
    Column("rows", BigInteger, nullable=False),
    Column("bytes", BigInteger, nullable=False),
    Column("checksum", Text, nullable=False),
    Column("ranges", Text, nullable=False),  # JSON [[partition, first_offset, rows], ...]; offsets have gaps
)
# What was erased of a topic, as the epoch that says so, and the receipt of it.
redactions = Table(
    "redactions",
    metadata,
    Column("epoch", BigInteger, primary_key=True, autoincrement=False),
    Column("topic_id", Integer, ForeignKey("topics.id"), nullable=False, index=True),
    Column("erased_at", BigInteger, nullable=False),
    Column("receipt", Text, nullable=False),  # JSON: ``maintenance.redaction.receipts.Receipt``
)
# Files that were copied to an archive before retention removed them. They tile the topic's rows up to its start.
archived = Table(
    "archived",
    metadata,
    Column("place", Text, primary_key=True),  # the archive's address
    Column("path", Text, primary_key=True),  # of the file in it
    Column("topic_id", Integer, ForeignKey("topics.id"), nullable=False, index=True),
    Column("version", Integer, nullable=False),
    Column("first_epoch", BigInteger, nullable=False),
    Column("last_epoch", BigInteger, nullable=False),
    Column("first_row", BigInteger, nullable=False),
    Column("rows", BigInteger, nullable=False),
    Column("bytes", BigInteger, nullable=False),
    Column("checksum", Text, nullable=False),
    Column("ranges", Text, nullable=False),
    Column("archived_at", BigInteger, nullable=False),
)
# Copies in an archive that a step has begun and not named yet.
archiving = Table(
    "archiving",
    metadata,
    Column("place", Text, primary_key=True),
    Column("path", Text, primary_key=True),
    Column("topic_id", Integer, ForeignKey("topics.id"), nullable=False, index=True),
    Column("source", Text, nullable=False),  # the log's file
    Column("begun_at", BigInteger, nullable=False),
)
# Epochs that are no longer in ``epochs``: a prefix, in files (``metadata.epochs``).
epoch_files = Table(
    "epoch_files",
    metadata,
    Column("path", Text, primary_key=True),
    Column("first_epoch", BigInteger, nullable=False, unique=True),
    Column("last_epoch", BigInteger, nullable=False),
    Column("bytes", BigInteger, nullable=False),
    Column("checksum", Text, nullable=False),
    Column("spans", Text, nullable=False),  # JSON: what look-ups need to pass a file by
)
# Files that others replaced: nothing new refers to them, readers of before may still read them.
retired = Table(
    "retired",
    metadata,
    Column("number", BigInteger, primary_key=True, autoincrement=False),
    Column("path", Text, nullable=False, unique=True),
    Column("bytes", BigInteger, nullable=False),
    Column("retired_at", BigInteger, nullable=False),
)
# Who is at work: readers that need every file not yet retired when they began, and the one maintainer.
leases = Table(
    "leases",
    metadata,
    Column("id", Text, primary_key=True),
    Column("role", Text, nullable=False),
    Column("holder", Text, nullable=False),
    Column("retired", BigInteger, nullable=False),  # number of the last file retired before it began
    Column("created_at", BigInteger, nullable=False),
    Column("expires_at", BigInteger, nullable=False),
)
# The last round of upkeep, one row.
upkeep = Table(
    "upkeep",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("finished_at", BigInteger, nullable=False),
    Column("report", Text, nullable=False),  # JSON
    CheckConstraint("id = 1", name="one_row"),
)
generations = Table(
    "generations",
    metadata,
    Column("projection", Text, primary_key=True),
    Column("generation", Integer, primary_key=True, autoincrement=False),
    Column("fingerprint", Text, nullable=False),
    Column("sink", Text, nullable=False),
    Column("key", Text, nullable=False),  # JSON list of column names
    Column("schema", LargeBinary, nullable=False),  # Arrow IPC schema of the output
    Column("partitions", Integer, nullable=False),
    Column("split", Integer, nullable=False),
    Column("as_of", Text),
    Column("preview", Text),  # its label; never promoted
    Column("inputs", Text, nullable=False),  # JSON [[topic, "state" or "changes", the log's start then], ...]
    Column("state", Text, nullable=False),
    Column("frozen_at", BigInteger),
    Column("created_at", BigInteger, nullable=False),
    Column("checked", Text),  # JSON
    Column("parity", Text),  # JSON
    Column("taken_at", BigInteger),  # when a preview was made a build like any other
    Column("digest", Text, nullable=False),  # over what of the row never changes (``generations.digest_of``)
)
derived = Table(
    "derived",
    metadata,
    Column("projection", Text, primary_key=True),
    Column("generation", Integer, primary_key=True, autoincrement=False),
    Column("from_epoch", BigInteger, primary_key=True, autoincrement=False),  # key = compare-and-set
    Column("to_epoch", BigInteger, nullable=False),
    Column("kind", Text, nullable=False),
    Column("files", Text, nullable=False),  # JSON
    Column("rows", BigInteger, nullable=False),
    Column("hash", Text, nullable=False),
    Column("commit_ts", BigInteger),
    Column("previous", Text, nullable=False),  # hash of the step before, which may be forgotten
    UniqueConstraint("projection", "generation", "to_epoch"),
)
live = Table(
    "live",
    metadata,
    Column("projection", Text, primary_key=True),
    Column("generation", Integer, nullable=False),
    Column("previous_generation", Integer),
)
runs = Table(
    "runs",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("projection", Text, nullable=False),
    Column("generation", Integer),
    Column("started", BigInteger, nullable=False),
    Column("finished", BigInteger),
    Column("from_epoch", BigInteger),
    Column("to_epoch", BigInteger),
    Column("kind", Text, nullable=False),
    Column("reason", Text, nullable=False),
    Column("rows_upserted", BigInteger, nullable=False),
    Column("rows_deleted", BigInteger, nullable=False),
    Column("status", Text, nullable=False),
    Column("keys", BigInteger),
    Column("seconds", Float),
    Column("bytes", BigInteger, nullable=False),
    Column("changes", BigInteger),
    Column("tries", Integer, nullable=False),
    Column("engine", Text),
    Column("asked", Float),
    Column("behind", Float),
    Index("ix_runs_projection_started", "projection", "started"),
)
