"""A Kafka cluster in the hands of one publisher: records and their position in one transaction.

The position is a record in a compacted topic of the publication's own. Offsets of a consumer group would not do: they
are forgotten when they are idle for a week. Opening ends what the publisher before left open and fences it, so the last
committed position is then the last there is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tailrace.eventstore import failpoints
from tailrace.eventstore.errors import Fenced, TailraceError, TransientError, optional_part
from tailrace.eventstore.kafka.build import RecordTooLarge, build
from tailrace.eventstore.kafka.codecs import Codec
from tailrace.eventstore.kafka.publisher import TransactionalPublisher
from tailrace.eventstore.kafka.reader import Partition
from tailrace.eventstore.kafka.records import SCHEMA_WITH_HEADERS
from tailrace.eventstore.publishing.dead_letters import without_values
from tailrace.eventstore.publishing.formats.cells import combined
from tailrace.eventstore.publishing.kafka.partitions import partitions_of_keys
from tailrace.eventstore.publishing.kafka.positions import POSITION_KEY, last_state, position_topic
from tailrace.eventstore.publishing.kafka.topics import Destination, Topics
from tailrace.eventstore.publishing.names import require_apart
from tailrace.eventstore.publishing.parked import NotTaken, ParkedKey
from tailrace.eventstore.publishing.position import Position
from tailrace.eventstore.publishing.records import Published, TopicRecords
from tailrace.eventstore.settings import MIB, KafkaDestinationSettings, PublicationSettings

with optional_part("Kafka", "kafka"):
    from kafka import errors

_SENT = pa.schema([field for field in SCHEMA_WITH_HEADERS if field.name != "offset"])
_FENCED = (errors.InvalidProducerEpochError, errors.ProducerFencedError)
_FOR_AN_OPERATOR = (
    errors.AuthorizationError,
    errors.InvalidTransactionTimeoutError,
    errors.MessageSizeTooLargeError,
    errors.RecordListTooLargeError,
    errors.SaslAuthenticationFailedError,
    errors.UnsupportedVersionError,
)


class KafkaSession:
    """One publisher's hold on a publication in a cluster. ``store`` and ``publication`` name both."""

    portion_bytes = 16 * MIB

    def __init__(
        self, cluster: KafkaDestinationSettings, settings: PublicationSettings, store: str, publication: str
    ) -> None:
        self._cluster = cluster
        self._settings = settings
        self._name = publication
        self.place = position_topic(store, publication)
        self._topics = Topics(cluster, settings)
        try:
            self._topics.require_positions(self.place)
            with self._transacting():
                self._publisher = TransactionalPublisher(cluster, f"tailrace-{store}-{publication}")
        except BaseException:
            self._topics.close()
            raise

    def close(self) -> None:
        with suppress(errors.KafkaError):
            self._publisher.close()
        self._topics.close()

    def state(self) -> tuple[Position | None, list[ParkedKey]]:
        """The last committed one. Raises TransientError when it cannot be read in a minute."""
        return last_state(self._cluster, self.place)

    def require_apart(self, topics: Sequence[Published]) -> None:
        taken = {self.place, self._settings.dead_letter or self.place}
        require_apart(topics, self._settings, taken)

    def publish(
        self,
        records: Sequence[TopicRecords],
        position: Position,
        parked: Sequence[ParkedKey] = (),
        released: Sequence[ParkedKey] = (),
        dead: Sequence[TopicRecords] = (),
    ) -> None:
        """All of it, or nothing, for readers of committed records."""
        now = datetime.now(UTC)
        kept = {each.id: None for each in released} | {each.id: each.to_json() for each in parked}
        told: list[dict[str, Any]] = [
            {"timestamp": now, "key": key, "value": value, "headers": []}
            for key, value in [*kept.items(), (POSITION_KEY, position.to_json())]
        ]
        with self._transacting(), self._publisher.transaction():
            for each in records:
                self._send(self._topics.destination(each.topic), each, now)
            for each in dead:
                self._send_dead(each, now)
            failpoints.hit("portion_sent")
            self._publisher.send(Partition(self.place, 0), pa.Table.from_pylist(told, schema=_SENT))
            failpoints.hit("publication_committing")

    def _send(self, destination: Destination, found: TopicRecords, now: datetime) -> None:
        """Records have the time of their sending: by that of their commit Kafka's retention would remove those of an
        old transaction at once."""
        for partition, rows, sent in _partitioned(found.records, destination.partitions, now):
            try:
                self._publisher.send(Partition(destination.name, partition), sent)
            except RecordTooLarge as error:
                hint = f"raise max.message.bytes of the Kafka topic {destination.name}"
                raise NotTaken(found, int(rows[error.row]), error.message, hint=hint) from error

    def _send_dead(self, found: TopicRecords, now: datetime) -> None:
        """A value that is too large here, too, is left out: the rest of the record says where it is in the log."""
        destination = self._topics.dead_letters(self._settings.dead_letter or "")
        limit = self._publisher.batch_limit(Partition(destination.name, 0))
        records = found.records.combine_chunks()
        sizes = pc.fill_null(pc.binary_length(records["value"]), 0).to_numpy()
        too_large = {
            row: int(sizes[row])
            for row in np.flatnonzero(sizes > limit // 2).tolist()
            if not _fits(_sent(records.slice(row, 1), now), limit)
        }
        if too_large:
            records = without_values(records, too_large)
        for partition, _, sent in _partitioned(records, destination.partitions, now):
            self._publisher.send(Partition(destination.name, partition), sent)

    @contextmanager
    def _transacting(self) -> Iterator[None]:
        """What is not known to have gone through is tried again by a new session, which asks how far it is."""
        try:
            yield
        except TailraceError as error:
            cause = error.__cause__
            if isinstance(error, Fenced) or _is(cause, _FENCED):
                raise Fenced(
                    f"publication {self._name}: another process publishes it now, or a transaction took too long",
                    hint="let one process publish it",
                ) from error
            if isinstance(cause, errors.KafkaError) and not _is(cause, _FOR_AN_OPERATOR):
                raise TransientError(
                    f"publication {self._name}: {error.message}",
                    hint="nothing is lost: a new transaction is tried",
                ) from error
            raise


def _partitioned(
    records: pa.Table, partitions: int, now: datetime
) -> Iterator[tuple[int, NDArray[np.int64], pa.Table]]:
    """By partition which records go there, and these as they are sent."""
    table = records.combine_chunks()
    keys, hashes = (combined(table[name]) for name in ("key", "hash"))
    chosen = partitions_of_keys(keys, hashes, partitions)
    to_all, sent = table["to_all"].to_numpy(), _sent(table, now)
    for partition in range(partitions):
        rows = np.flatnonzero((chosen == partition) | to_all)
        if len(rows):
            yield partition, rows, sent.take(pa.array(rows))


def _sent(records: pa.Table, now: datetime) -> pa.Table:
    times = pa.array([now], _SENT.field("timestamp").type).take(
        pa.array(np.zeros(records.num_rows, np.int64))
    )
    headers = records["headers"].cast(_SENT.field("headers").type)
    return pa.table([times, records["key"], records["value"], headers], schema=_SENT)


def _fits(sent: pa.Table, batch_bytes_max: int) -> bool:
    try:
        return bool(list(build(sent, Codec.LZ4, batch_bytes_max)))
    except RecordTooLarge:
        return False


def _is(error: BaseException | None, kinds: tuple[type[errors.KafkaError], ...]) -> bool:
    """Calls behind the one that failed name its error in their text alone."""
    if isinstance(error, kinds):
        return True
    behind = (each for kind in kinds for each in (kind, *kind.__subclasses__()))
    return error is not None and any(each.__name__ in str(error) for each in behind)
