"""Sources and topics: how they are registered, and how a process becomes a source's writer."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from sqlalchemy import Connection, Row, insert, select, update
from sqlalchemy.exc import IntegrityError as Duplicate

from tailrace.eventstore.catalog import tables
from tailrace.eventstore.catalog.database import Catalog, retry_on_missing_file
from tailrace.eventstore.errors import IntegrityError, OperatorError, UsageError
from tailrace.eventstore.log.log import Log
from tailrace.eventstore.metadata import kafka_progress, topics
from tailrace.eventstore.metadata.epochs import Epoch, EpochFilter, Timeline
from tailrace.eventstore.model.info import SourceState, TopicInfo
from tailrace.eventstore.model.kafka import PartitionProgress
from tailrace.eventstore.model.position import format_lsn
from tailrace.eventstore.model.schema import TopicSchema
from tailrace.eventstore.model.topic import TopicId
from tailrace.eventstore.segment import hash_chain
from tailrace.eventstore.storage import Storage

_SOURCE_NAME = re.compile(r"[a-z][a-z0-9_]{0,30}")


def register_source(
    catalog: Catalog, name: str, *, slot: str, publication: str, system_id: str
) -> SourceState:
    """Add a source, or give back the one there is. Slot, publication and system may change until the first load is in
    the log; afterwards the log's positions belong to that one system (OperatorError)."""
    if not _SOURCE_NAME.fullmatch(name):
        raise UsageError(f"{name!r} is not a source name", hint="lower-case letters, digits and _")
    table = tables.sources
    given = {"slot": slot, "publication": publication, "system_id": system_id}
    fresh = {"incarnation": 1, "timeline": 0, "repairing": False, "last_append": "", "loaded": False}
    zeros = dict.fromkeys(("term", "commit_lsn", "end_lsn", "through_lsn"), 0)
    try:
        with catalog.write() as connection:
            row = topics.source_row(connection, name)
            if row is None:
                connection.execute(insert(table).values(name=name, **given, **fresh, **zeros))
            elif not row.loaded:
                connection.execute(update(table).where(table.c.name == name).values(given))
            elif row.system_id != system_id:
                raise OperatorError(
                    f"source {name!r} was loaded from system {row.system_id}, this server is {system_id}",
                    hint="point the source back to its server, or give the new one another name",
                )
            row = topics.source_row(connection, name)
    except Duplicate:  # two processes at once; the other one's row is as good
        return register_source(catalog, name, slot=slot, publication=publication, system_id=system_id)
    assert row is not None
    return topics.source_state(row)


def register_topic(
    log: Log, topic: TopicId, schema: TopicSchema, *, reason: str = topics.WAITING
) -> TopicInfo:
    """Add a topic of a registered source, or give back the one there is. It is incomplete for ``reason`` until an epoch
    completes it; an empty reason means that nothing came before the stream (events, messages)."""
    register_topics(log, {topic: schema}, reason=reason)
    return log.topic(topic)


def register_topics(log: Log, wanted: Mapping[TopicId, TopicSchema], *, reason: str = topics.WAITING) -> None:
    """Add those topics that the log does not have yet, in one transaction; see ``register_topic``."""
    try:
        _add_missing(log, wanted, reason)
    except Duplicate:  # another process was faster, with some of them
        _add_missing(log, wanted, reason)


def _add_missing(log: Log, wanted: Mapping[TopicId, TopicSchema], reason: str) -> None:
    with log.catalog.write() as connection:
        for topic in {topic.source: topic for topic in wanted}.values():
            if topics.source_row(connection, topic.source) is None:
                raise UsageError(
                    f"{topic} belongs to source {topic.source!r}, which is not registered",
                    hint="register the source first",
                )
        known = topics.topic_ids(connection, list(wanted))
        new = {topic: schema for topic, schema in wanted.items() if topic not in known}
        topics.add_topics(connection, new, log.settings.partitions, reason)


def chained_state(log: Log, source: SourceState, confirmed: int) -> SourceState:
    """The source at the position that can be trusted, given what its slot has confirmed. Raises IntegrityError."""
    last = retry_on_missing_file(
        log.catalog, lambda connection: _last_epoch(connection, log.storage, source.name)
    )
    return _at_chained_position(source, last, confirmed)


def _last_epoch(connection: Connection, storage: Storage, source: str) -> Epoch | None:
    """Raises IntegrityError when its row in the catalog is not the one that was chained."""
    last = Timeline(connection, storage).last(EpochFilter(source=source))
    if last is not None:
        _require_chained(connection, last.epoch)
    return last


def _require_chained(connection: Connection, epoch: int) -> None:
    """An epoch that is in a file already is covered by the file's checksum; so is the one before the first row."""
    table = tables.epochs
    row = connection.execute(select(table).where(table.c.epoch == epoch)).one_or_none()
    before = connection.scalar(select(table.c.hash).where(table.c.epoch == epoch - 1))
    if row is None or (before is None and epoch > 1):
        return
    if hash_chain.epoch_hash(before or "", row._asdict()) != row.hash:
        raise IntegrityError(
            f"epoch {epoch}: its hash does not match its catalog row and the epoch before",
            hint="the catalog was changed from outside: `tailrace log verify` says where; restore all of it from one"
            " backup",
        )


def _at_chained_position(source: SourceState, last: Epoch | None, confirmed: int) -> SourceState:
    """The position of the last epoch, which the chain of hashes covers, counts above that of the source's row.

    A transaction that brings nothing moves the row alone. Those behind the last epoch may be taken again, so a row that
    is ahead is set back as far as the server still sends: at worst it sends some that bring nothing. A row that is
    behind would let transactions be appended twice."""
    if last is None or last.incarnation != source.incarnation:
        found = "no epoch" if last is None else f"incarnation {last.incarnation}"
    elif source.commit_lsn < last.commit_lsn or source.end_lsn < last.end_lsn:
        found = f"commit {format_lsn(last.commit_lsn)}, end {format_lsn(last.end_lsn)}"
    else:
        commit = source.commit_lsn if source.commit_lsn < confirmed else last.commit_lsn
        end = max(last.end_lsn, min(source.end_lsn, confirmed))
        return replace(source, commit_lsn=commit, end_lsn=end)
    raise IntegrityError(
        f"row {source.name!r} of the catalog's table sources is at incarnation {source.incarnation}, commit "
        f"{format_lsn(source.commit_lsn)}, end {format_lsn(source.end_lsn)}; the log's last epoch of it says {found}",
        hint="the catalog was changed from outside, or restored in part: restore all of it from one backup; "
        f"if there is none, `tailrace source repair {source.name}` compares every table with the log",
    )


def chained_partitions(log: Log, source: str) -> list[PartitionProgress]:
    """How far the partitions of a Kafka source are, as the chain of epochs covers it. Raises IntegrityError."""
    with log.catalog.read() as connection:
        _require_chained(connection, topics.head_epoch(connection))
        return kafka_progress.partitions(connection, source)


def new_term(log: Log, source: str, confirmed: int | None) -> Row[*tuple[Any, ...]]:
    """Begin a new term of a source and give its row: earlier writers are fenced. Raises as ``Store.take_over`` does."""
    catalog = log.catalog
    table = tables.sources
    with catalog.write() as connection:
        catalog.check_not_published(connection)
        row = connection.execute(
            update(table).where(table.c.name == source).values(term=table.c.term + 1).returning(table)
        ).one_or_none()
        if row is not None and confirmed is not None and row.loaded:
            state = topics.source_state(row)
            last = _last_epoch(connection, log.storage, source)
            chained = _at_chained_position(state, last, confirmed)
            position = {"commit_lsn": chained.commit_lsn, "end_lsn": chained.end_lsn}
            row = connection.execute(
                update(table).where(table.c.name == source).values(position).returning(table)
            ).one()
        known = (
            [] if row is not None else list(connection.scalars(select(table.c.name).order_by(table.c.name)))
        )
    if row is None:
        raise UsageError(
            f"no source {source!r} in the log", hint=f"its sources are {', '.join(known) or 'none'}"
        )
    return row
