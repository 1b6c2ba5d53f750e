"""Tables of consumer groups and publications: beside the catalog's in Postgres, in a file of their own with SQLite, so
that consumers who commit and a capture that appends never wait for one another."""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    ForeignKey,
    Integer,
    MetaData,
    Table,
    Text,
    UniqueConstraint,
)

from tailrace.eventstore.catalog import tables

VERSION_TABLE = "groups_version"
REVISION = "0002"
LEAST = "0002"

metadata = MetaData(naming_convention=tables.metadata.naming_convention)

# One row: the format that code must know to use these tables (``tailrace.eventstore.catalog.formats``).
group_format = Table(
    "group_format",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("needs", Text, nullable=False),
)
groups = Table(
    "groups",
    metadata,
    Column("name", Text, primary_key=True),
    Column("topics", Text, nullable=False),  # JSON list of patterns
    Column("start", Text, nullable=False),  # as given, for people
    Column(
        "start_cut", Text, nullable=False
    ),  # what it resolved to (JSON): also where topics that come later begin
    Column("created_at", BigInteger, nullable=False),
)
members = Table(
    "group_members",
    metadata,
    Column("group_name", Text, ForeignKey("groups.name"), primary_key=True),
    Column("member", Text, primary_key=True),
    Column("token", Text, nullable=False),  # of the process that has the name
    Column(
        "beat", BigInteger, nullable=False
    ),  # counts; others see by their own clocks whether it still does
    Column("joined_at", BigInteger, nullable=False),
)
partitions = Table(
    "group_partitions",
    metadata,
    Column("group_name", Text, ForeignKey("groups.name"), primary_key=True),
    Column("topic", Text, primary_key=True),  # TopicId.text
    Column("partition", Integer, primary_key=True, autoincrement=False),
    Column("next_offset", BigInteger, nullable=False),  # everything before it is done
    Column("epoch", BigInteger, nullable=False),  # no row at or behind next_offset is of an earlier one
    Column("generation", BigInteger, nullable=False),  # raised with every change of hands
    Column(
        "reset_generation", BigInteger, nullable=False
    ),  # in which next_offset was last set by an operator
    Column("owner", Text),
    Column("wanted", Text),  # the member to whom the owner shall give it
    Column("committed_at", BigInteger),
)
parked = Table(
    "group_parked",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("group_name", Text, ForeignKey("groups.name"), nullable=False),
    Column("topic", Text, nullable=False),
    Column("partition", Integer, nullable=False),
    Column("event_offset", BigInteger, nullable=False),
    Column("epoch", BigInteger, nullable=False),
    Column("key_hash", BigInteger, nullable=False),
    Column("key_text", Text, nullable=False),  # for people
    Column("attempts", Integer, nullable=False),  # 0: it waits behind an earlier one of its key
    Column("error", Text, nullable=False),
    Column("holds_key", Boolean, nullable=False),  # later events of the key are parked behind it
    Column("replay", Boolean, nullable=False),  # somebody asked for another try
    Column("parked_at", BigInteger, nullable=False),
    UniqueConstraint("group_name", "topic", "partition", "event_offset"),
)

# How far publications are, as far as rows must stay for them. What is exact, their destinations know.
publication_needs = Table(
    "publication_needs",
    metadata,
    Column("name", Text, primary_key=True),
    Column("topics", Text, nullable=False),  # JSON list of patterns
    Column("epoch", BigInteger, nullable=False),  # all up to it is published
    Column("parked", Text, nullable=False),  # JSON: by topic the epoch behind which rows of parked keys are
    Column("steps", Text, nullable=False),  # JSON list of the steps of a projection that are needed
    Column("seen_at", BigInteger, nullable=False),
    Column("holds_until", BigInteger, nullable=False),
)
