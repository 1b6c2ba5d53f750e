"""How far partitions were read, told to a consumer group: for tools that show its lag, and for nobody else.

It is never read back, and nothing waits for it: a thread commits what was told last. What fails is reported, once for
each reason; where the cluster may take it later it is tried again, else with the next offsets.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Self

from tailrace.eventstore.errors import TailraceError, TransientError, optional_part
from tailrace.eventstore.kafka.connection import client, refusal, speaking
from tailrace.eventstore.kafka.first_connection import starting
from tailrace.eventstore.kafka.reader import Partition
from tailrace.eventstore.settings.kafka import KafkaConnectionSettings

with optional_part("Kafka", "kafka"):
    from kafka import TopicPartition, errors
    from kafka.admin import KafkaAdminClient
    from kafka.structs import OffsetAndMetadata

_LAST_SECONDS = 5.0  # for the last offsets, when it is closed
_PAUSE_SECONDS = 2.0  # before what failed is tried again


class GroupOffsets:
    """``say`` is called from the thread that commits. Raises TransientError (out of reach) and OperatorError when it
    begins, and nothing later."""

    def __init__(self, settings: KafkaConnectionSettings, group: str, say: Callable[[str], None]) -> None:
        self._group, self._say = group, say
        with starting(settings):
            self._admin = client(KafkaAdminClient, settings)
        self._changed = threading.Condition()
        self._told: Mapping[Partition, int] | None = None
        self._closed = False
        self._failing = ""  # why, as it was said last
        self._thread = threading.Thread(target=self._run, name=f"offsets of {group}", daemon=True)
        self._thread.start()

    def tell(self, offsets: Mapping[Partition, int]) -> None:
        """The offsets that are next, of all partitions. Returns at once."""
        with self._changed:
            self._told = dict(offsets)
            self._changed.notify()

    def close(self) -> None:
        """What was told last is committed, if that is soon."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join(_LAST_SECONDS)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _run(self) -> None:
        while (offsets := self._next()) is not None:
            try:
                self._commit(offsets)
                self._failing = ""
            except TailraceError as error:
                self._report(f"{error.message}; {error.hint}")
                if isinstance(error, TransientError):
                    self._try_again(offsets)
        self._admin.close()

    def _report(self, reason: str) -> None:
        if reason != self._failing:
            self._failing = reason
            self._say(f"offsets are not told to the consumer group {self._group}: {reason}")

    def _next(self) -> Mapping[Partition, int] | None:
        with self._changed:
            self._changed.wait_for(lambda: self._told is not None or self._closed)
            offsets, self._told = self._told, None
            return offsets

    def _try_again(self, offsets: Mapping[Partition, int]) -> None:
        """After a pause, unless others were told meanwhile, or it is closed."""
        with self._changed:
            if not self._changed.wait_for(lambda: self._told is not None or self._closed, _PAUSE_SECONDS):
                self._told = offsets

    def _commit(self, offsets: Mapping[Partition, int]) -> None:
        """Raises TailraceError."""
        wanted = {
            TopicPartition(*each): OffsetAndMetadata(offset, "", -1) for each, offset in offsets.items()
        }
        with speaking():
            results = self._admin.alter_group_offsets(self._group, wanted)
        for partition, result in results.items():
            if result is not errors.NoError:
                raise refusal(result(), f"{partition.topic}, partition {partition.partition}: ")
