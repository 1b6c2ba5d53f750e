"""Rows out of Redis: some by key for readers, all of a generation for ``verify``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
from redis import exceptions

from tailrace.eventstore import disclosure
from tailrace.eventstore.errors import DifferenceFound
from tailrace.eventstore.model.keys import buckets_of, column_texts, hash_columns
from tailrace.projections.sinks.contract import InMotion, Target, join_key, key_texts
from tailrace.projections.sinks.redis.connect import (
    Client,
    GenerationMeta,
    RedisNames,
    answers_of,
    run,
    servers_of,
)
from tailrace.projections.sinks.redis.row_format import FORMATS, UNREADABLE

_KEYS_AT_ONCE = 1000
_SHOWN = 5
_GLOB = "\\*?[]^-"  # what SCAN's MATCH takes for more than itself


def read_rows(
    client: Client, keys: Sequence[str | bytes], meta: GenerationMeta, *first: Sequence[Any]
) -> list[Any]:
    """Rows by physical key in one round trip: a mapping each, None for one that does not exist or is deleted.

    The answers of the commands ``first`` come before them. Raises one of ``UNREADABLE`` for a row that Tailrace did not
    write.
    """
    read = FORMATS[meta.format].read
    answers = run(client, [*first, *((read, key) for key in keys)])
    return [*answers[: len(first)], *(_row(answer, meta) for answer in answers[len(first) :])]


def decode_rows(rows: Sequence[Any], meta: GenerationMeta) -> pa.RecordBatch:
    """Typed rows from those of ``read_rows``, without None. Raises one of ``UNREADABLE``."""
    return FORMATS[meta.format].decode(rows, meta.schema)


def pages(client: Client, manifest: str) -> Iterator[list[bytes]]:
    """The members of a set in pages. A member that stays in the set comes at least once."""
    cursor: Any = 0
    while True:
        cursor, texts = run(client, [("SSCAN", manifest, cursor, "COUNT", _KEYS_AT_ONCE)])[0]
        yield list(texts)
        if not int(cursor):
            return


def _row(answer: Any, meta: GenerationMeta) -> Any:
    if not answer:
        return None
    rows = FORMATS[meta.format]
    row = rows.unpack(answer)
    return None if row.get(rows.deleted) else row


class RedisScan:
    """All rows of a generation as readers find them: those in the manifests, and others that somebody wrote beside
    them.

    ``epoch`` is the generation's fence: a row of a newer epoch belongs to a step on its way. Infinity accepts those
    rows too.
    """

    def __init__(
        self, client: Client, names: RedisNames, target: Target, meta: GenerationMeta, epoch: float
    ) -> None:
        self._client, self._target, self._meta, self._epoch = client, target, meta, epoch
        count = meta.partitions * meta.split
        self._tags = [names.bucket(target.generation, bucket).encode() for bucket in range(count)]
        self._common = f"{{{names.base}:g{target.generation}:b"
        self._damaged: list[str] = []

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Raises InMotion while a step is applied, and at the end DifferenceFound for rows that Tailrace did not write:
        unreadable ones, and ones under the key of another row."""
        for bucket, tag in enumerate(self._tags):
            seen: set[bytes] = set()
            for texts in pages(self._client, f"{tag.decode()}#keys"):
                fresh = [text for text in dict.fromkeys(texts) if text not in seen]
                seen.update(fresh)
                yield self._decode(bucket, fresh)
        yield from self._unlisted_rows()
        self._refuse_damaged()

    def batches_of(self, keys: pa.Table) -> Iterator[pa.RecordBatch]:
        """The rows of some keys (key columns and ``_hash``). Raises what ``batches`` raises."""
        texts = [text.encode() for text in key_texts(self._target, keys)]
        hashes = keys.column("_hash").combine_chunks()
        places = buckets_of(hashes, self._target.partitions, self._target.split).tolist()
        by_bucket: dict[int, list[bytes]] = {}
        for bucket, text in zip(places, texts, strict=True):
            by_bucket.setdefault(bucket, []).append(text)
        for bucket, wanted in by_bucket.items():
            for start in range(0, len(wanted), _KEYS_AT_ONCE):
                yield self._decode(bucket, wanted[start : start + _KEYS_AT_ONCE])
        self._refuse_damaged()

    def _refuse_damaged(self) -> None:
        if self._damaged:
            shown = ", ".join(map(disclosure.value, self._damaged[:_SHOWN]))
            rest = f" and {len(self._damaged) - _SHOWN} more" if len(self._damaged) > _SHOWN else ""
            name = self._target.projection
            raise DifferenceFound(
                f"{self._target}: the sink has rows that differ from what Tailrace wrote: {shown}{rest}",
                hint=f"find out who else writes to the sink; tailrace rebuild {name} makes it right",
            )

    def _unlisted_rows(self) -> Iterator[pa.RecordBatch]:
        """Rows that no manifest names. Only a scan of all keys of the server finds them."""
        pattern = "".join(f"\\{sign}" if sign in _GLOB else sign for sign in self._common) + "*}:*"
        bucket_of = {tag: bucket for bucket, tag in enumerate(self._tags)}
        seen: set[bytes] = set()
        for keys in self._all_keys(pattern):
            parts = [key.partition(b"}:") for key in keys]
            places = [(tag + b"}", text) for tag, _, text in parts if tag + b"}" in bucket_of]
            known = run(self._client, [("SISMEMBER", tag + b"#keys", text) for tag, text in places])
            for (tag, text), is_known in zip(places, known, strict=True):
                if not is_known and tag + text not in seen:
                    seen.add(tag + text)
                    yield self._decode(bucket_of[tag], [text])

    def _all_keys(self, pattern: str) -> Iterator[list[bytes]]:
        """The keys of all servers that match."""
        for _, server in servers_of(self._client):
            cursor: Any = 0
            while True:
                found = run(server, [("SCAN", cursor, "MATCH", pattern, "COUNT", _KEYS_AT_ONCE)])[0]
                cursor, keys = found
                yield keys
                if not int(cursor):
                    break

    def _decode(self, bucket: int, texts: Sequence[bytes]) -> pa.RecordBatch:
        """The rows of some keys of a bucket. Rows that are not ours are counted and left out."""
        rows = [(text, row) for text, row in zip(texts, self._read(bucket, texts), strict=True) if row]
        try:
            batch = decode_rows([row for _, row in rows], self._meta).cast(self._target.schema)
        except UNREADABLE:
            if len(rows) == 1:
                self._damaged.append(rows[0][0].decode(errors="replace"))
                return pa.RecordBatch.from_pylist([], self._target.schema)
            pieces = [self._decode(bucket, [text]) for text, _ in rows]
            return pa.Table.from_batches(pieces).combine_chunks().to_batches()[0]
        own = [
            found == text and place == bucket
            for (text, _), (found, place) in zip(rows, self._places(batch), strict=True)
        ]
        self._damaged += [
            text.decode(errors="replace") for (text, _), fits in zip(rows, own, strict=True) if not fits
        ]
        return batch.filter(pa.array(own, pa.bool_()))

    def _read(self, bucket: int, texts: Sequence[bytes]) -> list[Any]:
        read = FORMATS[self._meta.format].read
        answers = answers_of(self._client, [(read, self._tags[bucket] + b":" + text) for text in texts])
        return [self._check(text, answer) for text, answer in zip(texts, answers, strict=True)]

    def _check(self, text: bytes, answer: Any) -> Any:
        """The row in an answer; None for a deleted one and one that is not ours."""
        if isinstance(answer, Exception):
            if not (isinstance(answer, exceptions.ResponseError) and str(answer).startswith("WRONGTYPE")):
                raise answer
            self._damaged.append(text.decode(errors="replace"))
            return None
        try:
            if _epoch(answer, self._meta) > self._epoch:
                raise InMotion(
                    f"{self._target}: the sink is between two steps",
                    hint="a refresh is under way, or was cut off: tailrace run --once finishes it",
                )
            return _row(answer, self._meta)
        except UNREADABLE:
            self._damaged.append(text.decode(errors="replace"))
            return None

    def _places(self, batch: pa.RecordBatch) -> list[tuple[bytes | None, int]]:
        """For each row the key text under which readers look for it, and its bucket; no text when the key has a
        NULL."""
        columns = [column_texts(batch.column(name)) for name in self._target.key]
        cells = zip(*(column.to_pylist() for column in columns), strict=True)
        texts = [None if None in row else join_key(row).encode() for row in cells]
        hashes = hash_columns(columns)
        buckets = buckets_of(hashes, self._target.partitions, self._target.split)
        return list(zip(texts, buckets.tolist(), strict=True))


def _epoch(answer: Any, meta: GenerationMeta) -> int:
    """The epoch of a row or tombstone; 0 without one."""
    if not answer:
        return 0
    rows = FORMATS[meta.format]
    return int(rows.unpack(answer).get(rows.epoch) or 0)
