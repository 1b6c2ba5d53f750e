"""Decode the frames of topics in quarantine, in order, when there is a request for it (``tailrace source retry``).

For each topic in turn:

    stored    its oldest part is decoded between two transactions of the stream. The commit that appends its rows drops
              the part, so a crash neither loses nor doubles any. New frames are stored behind.
    empty     the topic is complete again, and the next session takes it in
    failed    the request is answered with the error, and the topic stays in quarantine
    unknown   a change of its schema means that it must be read again: the topic is suspended
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from tailrace.cdc.columnar import undecoded
from tailrace.cdc.columnar.decode import BlockDecoder, DecodedEpoch, error_text
from tailrace.cdc.columnar.schema_change import SchemaChange
from tailrace.cdc.status import CaptureProgress
from tailrace.cdc.stream import requests
from tailrace.cdc.topics import TopicsChanged
from tailrace.eventstore import failpoints
from tailrace.eventstore.errors import TransientError
from tailrace.eventstore.log.writer import SourceWriter
from tailrace.eventstore.metadata import named_files
from tailrace.eventstore.metadata.quarantine import first_frames
from tailrace.eventstore.model.epoch import EpochBatch, UndecodedFrames
from tailrace.eventstore.model.topic import TopicId
from tailrace.eventstore.store import Store

_TURN_SECONDS = 0.5  # then the stream has its turn

Reason = Callable[[SchemaChange], str]


class Redecoding:
    """``topics`` are in quarantine and to be decoded. ``decoder`` makes a decoder for each, for values that are
    protected already."""

    def __init__(
        self,
        store: Store,
        writer: SourceWriter,
        topics: Sequence[TopicId],
        decoder: Callable[[], BlockDecoder],
        progress: CaptureProgress,
    ) -> None:
        self._store = store
        self._writer = writer
        self._topics = list(topics)
        self._decoder = decoder
        self._progress = progress
        self._current: BlockDecoder | None = None

    def turn(self, reason: Reason) -> None:
        """``reason``: why a topic must be read again after a change, "" when it need not. Raises TopicsChanged when a
        topic is complete, or must be read again."""
        until = time.monotonic() + _TURN_SECONDS
        while self._topics and time.monotonic() < until:
            topic = self._topics[0]
            self._current = self._current or self._decoder()
            try:
                first = first_frames(self._store.catalog, self._store.storage, topic)
                decoded = self._current.decode(undecoded.unpack(first[1])) if first else None
            except TopicsChanged:  # whose table is another one now: a new session would know no more of it
                self._fail(topic, f"its table was replaced; read it again: {requests.AGAIN} {topic.text}")
                continue
            except TransientError:
                raise
            except Exception as error:  # noqa: BLE001 (any may be why it is in quarantine: it stays there)
                self._fail(topic, error_text(error))
                continue
            if first is None or decoded is None:
                self._complete(topic)
            else:
                self._append(topic, first[0], decoded, reason)

    def _fail(self, topic: TopicId, error: str) -> None:
        self._progress.report(f"{topic.text} stays in quarantine: {error}", again=True)
        requests.answer_retry(self._store, topic, error)
        self._topics.remove(topic)
        self._current = None

    def _append(self, topic: TopicId, part: UndecodedFrames, decoded: DecodedEpoch, reason: Reason) -> None:
        doubts = [text for change in decoded.changes if (text := reason(change))]
        used = {(rows.topic, rows.version) for rows in decoded.rows}
        from_ddl = {(change.topic, change.current.version) for change in decoded.changes if change.by_trigger}
        failpoints.hit("frames_retried")
        info = self._writer.append(
            replace(
                self._position(),
                rows=decoded.rows,
                new_schemas=[
                    (name, schema)
                    for name, schema in decoded.new_schemas
                    if (name, schema.version) in used | from_ddl
                ],
                released=[(topic, part.number)],
                suspends=[(topic, text) for text in doubts[:1]],
            )
        )
        if part.path is not None:
            row = f"kept_frames: topic {topic}, number {part.number}"
            named_files.require_replaced(self._store.catalog, {part.path: row})
            self._store.storage.delete(part.path)
        rows = sum(each.rows.num_rows for each in decoded.rows)
        self._progress.add_epochs(epochs=int(info is not None), transactions=0, changes=rows, commit_ts=None)
        if doubts:
            raise TopicsChanged(f"{topic.text} must be read again: {doubts[0]}")

    def _complete(self, topic: TopicId) -> None:
        self._writer.append(replace(self._position(), completes=[topic]))
        self._progress.note(f"{topic.text} complete: all its stored frames are decoded")
        raise TopicsChanged(f"{topic.text} is not in quarantine any more")

    def _position(self) -> EpochBatch:
        """An epoch at the position that the log has."""
        state = self._writer.state
        return EpochBatch(state.name, state.commit_lsn, state.end_lsn, state.through_lsn)
