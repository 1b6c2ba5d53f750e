"""Generations as Redis keys: rows carry their epoch, tombstones stay until the fence has passed them, and fences come
last.

Every bucket has a manifest of its keys, so that only ``scan`` reads all keys of the server. Rows of a step appear
script by script; a single row never goes back to an older epoch.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Literal

import pyarrow as pa

from tailrace.eventstore.errors import Fenced, OperatorError, UsageError
from tailrace.eventstore.model.position import Fence
from tailrace.eventstore.settings import SinkSettings
from tailrace.projections.sinks.contract import (
    Target,
    check_step,
    column_problems,
    key_texts,
    keys_for,
    raise_problems,
    require_filled,
    require_same_log,
    rows_for,
)
from tailrace.projections.sinks.redis import scripts
from tailrace.projections.sinks.redis.bulk_load import BulkLoad
from tailrace.projections.sinks.redis.connect import (
    Client,
    GenerationMeta,
    RedisNames,
    RedisPlace,
    fence_fields,
    fence_from,
    foreign_value,
    generation_from,
    run,
    servers_of,
)
from tailrace.projections.sinks.redis.row_format import FORMATS
from tailrace.projections.sinks.redis.scan import RedisScan, pages
from tailrace.projections.sinks.rows import pieces
from tailrace.projections.sinks.specs import RedisCache

_ROWS_AT_ONCE = 200  # of one script call: Redis does nothing else meanwhile
_CALLS_AT_ONCE = 5  # of one round trip
_OLDEST_SERVER = 5  # scripts replicate what they did, not how: SPOP inside one needs it


class RedisSink:
    """The monotonic sink for ``RedisCache``."""

    kind: Literal["atomic", "monotonic"] = "monotonic"

    def __init__(self, spec: RedisCache, settings: SinkSettings) -> None:
        url = settings.url.get_secret_value() if settings.url else ""
        self._spec, self._cluster = spec, settings.cluster
        self._place = RedisPlace(f"sink {spec.sink!r}", url, cluster=settings.cluster)

    def names(self, store: str, projection: str) -> RedisNames:
        return RedisNames(self._spec.prefix or store, projection)

    def check(self, target: Target) -> list[str]:
        problems = column_problems(target)
        if any(sign in (self._spec.prefix or "") for sign in "{}#: \n"):
            problems.append(f"prefix {self._spec.prefix!r} may have no braces, colon, # or blank")
        if self._spec.ttl_seconds is not None and self._spec.ttl_seconds <= 0:
            problems.append(f"ttl_seconds is {self._spec.ttl_seconds:g}: give more than 0, or leave it out")
        if self._spec.format not in FORMATS:
            problems.append(f"format {self._spec.format!r} is none of {', '.join(FORMATS)}")
        raise_problems(target, problems)
        remarks: list[str] = []
        with self._place.client() as client:
            for name, server in servers_of(client):
                info: Any = server.info()
                text = f"{self._place.text}, server {name}," if name else self._place.text
                problems += self._server_problems(info, text)
                if not info.get("aof_enabled"):
                    remarks.append(
                        f"{text} has appendonly off: after a crash rows may be missing, and refreshes fail"
                        f" until tailrace rebuild {target.projection} has run"
                    )
            if not problems:
                problems += self._owner_problems(client, target)
        raise_problems(target, problems)
        return remarks

    def _server_problems(self, info: dict[str, Any], text: str) -> list[str]:
        problems = []
        version = str(info["redis_version"])
        if int(version.partition(".")[0]) < _OLDEST_SERVER:
            problems.append(f"Redis {version} is too old: {_OLDEST_SERVER} or newer is needed")
        policy = str(info.get("maxmemory_policy", "noeviction"))
        if policy.startswith("allkeys"):
            problems.append(
                f"maxmemory-policy is {policy}, which removes rows at will: set it to noeviction or volatile-lru"
            )
        if info.get("role") == "slave":
            problems.append(f"{text} is a replica: name the primary in the url")
        if info.get("cluster_enabled") and not self._cluster:
            problems.append(f"{text} is part of a cluster: set cluster = true in [sinks.{self._spec.sink}]")
        return problems

    def _owner_problems(self, client: Client, target: Target) -> list[str]:
        names = self.names(target.store, target.projection)
        live = self._live(client, names)
        for generation in {target.generation, target.generation if live is None else live}:
            meta = self._meta(client, names, generation)
            if meta is not None and meta.store != target.store:
                return [
                    f"keys {names.base}:* belong to store {meta.store!r}: give this projection another prefix"
                ]
        return []

    def create(self, target: Target) -> None:
        raise_problems(target, column_problems(target))
        meta = GenerationMeta.of(target, self._spec.format)
        names = self.names(target.store, target.projection)
        with self._place.client() as client:
            known = self._meta(client, names, target.generation)
            if known == meta:
                return
            if known is not None and known.store != target.store:
                raise_problems(target, self._owner_problems(client, target))
            require_same_log(target, _owner(known))
            if known is not None and self._fence(client, target):
                if known == replace(meta, log_id=known.log_id):
                    return
                raise OperatorError(
                    f"{target} is in the sink with other columns",
                    hint="rebuild the projection as a new generation",
                )
            if known is not None:  # what an earlier try may have left
                self._remove(client, target, known.partitions * known.split)
            unless = () if known is not None else ("NX",)  # another store created it since
            run(client, [("SET", names.meta(target.generation), meta.to_text(), *unless)])
            require_same_log(target, _owner(self._meta(client, names, target.generation)))

    def owner(self, target: Target) -> str | None:
        with self._place.client() as client:
            return _owner(self._meta(client, self.names(target.store, target.projection), target.generation))

    @contextmanager
    def load(self, target: Target, expected: Fence | None, to: Fence) -> Iterator[RedisLoad]:
        names = self.names(target.store, target.projection)
        with self._place.client() as client:
            if self._meta(client, names, target.generation) is None:
                raise UsageError(f"{target} does not exist in the sink", hint="create it first")
            overall, buckets = self._fences(client, target)
            check_step(target, _lowest(overall, [*buckets.values()]), expected, to)
            if overall != to:
                _require_behind(target, buckets, to)
            ttl_millis = 0 if self._spec.ttl_seconds is None else math.ceil(self._spec.ttl_seconds * 1000)
            with BulkLoad(client, target, FORMATS[self._spec.format], ttl_millis, to) as bulk:
                first = bulk if expected is None else None
                rows = RedisRows(names, target, self._spec.format, ttl_millis)
                yield RedisLoad(client, rows, overall, to, first)

    def fence(self, target: Target) -> Fence | None:
        with self._place.client() as client:
            return self._fence(client, target)

    def promote(self, target: Target, expected_live: int | None) -> None:
        names = self.names(target.store, target.projection)
        with self._place.client() as client:
            require_filled(target, self._fence(client, target))
            before = "" if expected_live is None else str(expected_live)
            run(client, [("EVAL", scripts.PROMOTE, 1, names.live, before, str(target.generation))])

    def live(self, store: str, projection: str) -> int | None:
        with self._place.client() as client:
            return self._live(client, self.names(store, projection))

    def drop(self, target: Target) -> None:
        names = self.names(target.store, target.projection)
        with self._place.client() as client:
            if self._live(client, names) == target.generation:
                raise UsageError(f"{target} is live", hint="promote another generation first")
            known = self._meta(client, names, target.generation)
            if known is None or known.store != target.store:
                return
            require_same_log(target, _owner(known))
            self._remove(client, target, known.partitions * known.split)
            run(client, [("DEL", names.meta(target.generation))])

    def scan(self, target: Target) -> Iterator[pa.RecordBatch]:
        with self._scan(target) as scan:
            yield from scan.batches() if scan else ()

    def scan_in_motion(self, target: Target) -> Iterator[pa.RecordBatch]:
        with self._scan(target, in_motion=True) as scan:
            yield from scan.batches() if scan else ()

    def read(self, target: Target, keys: pa.Table) -> Iterator[pa.RecordBatch]:
        with self._scan(target) as scan:
            yield from scan.batches_of(keys) if scan else ()

    @contextmanager
    def _scan(self, target: Target, *, in_motion: bool = False) -> Iterator[RedisScan | None]:
        names = self.names(target.store, target.projection)
        with self._place.client() as client:
            meta = self._meta(client, names, target.generation)
            if meta is None:
                yield None
                return
            if replace(meta, log_id="") != replace(GenerationMeta.of(target, self._spec.format), log_id=""):
                raise foreign_value(names.meta(target.generation))  # readers find other rows by it, or none
            fence = None if in_motion else self._fence(client, target)
            epoch = math.inf if in_motion else fence.epoch if fence else 0
            yield RedisScan(client, names, target, meta, epoch)

    def _live(self, client: Client, names: RedisNames) -> int | None:
        (value,) = run(client, [("GET", names.live)])
        return generation_from(value, names.live)

    def _meta(self, client: Client, names: RedisNames, generation: int) -> GenerationMeta | None:
        key = names.meta(generation)
        (text,) = run(client, [("GET", key)])
        return None if text is None else GenerationMeta.from_text(text, key)

    def _fence(self, client: Client, target: Target) -> Fence | None:
        overall, buckets = self._fences(client, target)
        return _lowest(overall, [*buckets.values()])

    def _fences(self, client: Client, target: Target) -> tuple[Fence | None, dict[str, Fence | None]]:
        """The generation's fence, and that of each bucket by its key."""
        names = self.names(target.store, target.projection)
        tags = [names.bucket(target.generation, bucket) for bucket in range(target.buckets)]
        keys = [names.fence(target.generation), *(f"{tag}#fence" for tag in tags)]
        found = run(client, [("HGETALL", key) for key in keys])
        overall, *buckets = (fence_from(fields, target, key) for fields, key in zip(found, keys, strict=True))
        return overall, dict(zip(keys[1:], buckets, strict=True))

    def _remove(self, client: Client, target: Target, buckets: int) -> None:
        """Remove all keys of a generation but its meta. The fence goes first, so that what a crash leaves belongs to no
        generation."""
        names = self.names(target.store, target.projection)
        run(client, [("DEL", names.fence(target.generation))])
        for bucket in range(buckets):
            tag = names.bucket(target.generation, bucket)
            for texts in pages(client, f"{tag}#keys"):
                if texts:
                    run(client, [("UNLINK", *(tag.encode() + b":" + text for text in texts))])
            run(client, [("UNLINK", f"{tag}#fence", f"{tag}#gone", f"{tag}#keys")])


def _lowest(overall: Fence | None, buckets: Sequence[Fence | None]) -> Fence | None:
    """The generation's fence, or that of the bucket that is furthest behind: a server that lost its latest writes may
    have kept the one and lost the other."""
    lowest = overall
    for fence in buckets:
        if fence is None or lowest is None:
            return None
        if fence.epoch < lowest.epoch:
            lowest = fence
    return lowest


def _require_behind(target: Target, buckets: Mapping[str, Fence | None], to: Fence) -> None:
    """Raises Fenced for a bucket that is beyond the step, which scripts would leave as it is without a word."""
    for key, fence in buckets.items():
        if fence is not None and (fence.epoch > to.epoch or (fence.epoch == to.epoch and fence != to)):
            raise Fenced(
                f"{target}: the Redis key {key} says epoch {fence.epoch} of log {fence.log_id}, which is beyond the"
                f" step to epoch {to.epoch}: somebody else wrote it",
                hint="find out who else may write there (ACL LIST); "
                f"tailrace rebuild {target.projection} makes it right",
            )


def _owner(meta: GenerationMeta | None) -> str | None:
    return meta.log_id or None if meta is not None else None


@dataclass(frozen=True, slots=True)
class RedisRows:
    """The rows of a generation: their keys, their format, and when they expire (0: never)."""

    names: RedisNames
    target: Target
    format: str
    ttl_millis: int


class RedisLoad:
    """One step, written by transactions and scripts of a bounded number of rows. Each may be run again."""

    def __init__(
        self, client: Client, rows: RedisRows, overall: Fence | None, to: Fence, bulk: BulkLoad | None
    ) -> None:
        self._client, self._names, self._target = client, rows.names, rows.target
        self._format, self._ttl_millis, self._overall, self._to = rows.format, rows.ttl_millis, overall, to
        self._rows, self._bulk = FORMATS[rows.format], bulk

    def write(self, bucket: int, upserts: pa.Table, deletes: pa.Table) -> None:
        rows = rows_for(self._target, upserts)
        gone = keys_for(self._target, deletes)
        tag = self._names.bucket(self._target.generation, bucket)
        if self._bulk is not None and rows.num_rows:
            rows = rows.slice(self._bulk.write(tag, rows))
        calls: list[Sequence[Any]] = []
        for piece in pieces(rows):
            texts, values = key_texts(self._target, piece), self._rows.values(piece, self._to.epoch)
            for at in range(0, len(texts), _ROWS_AT_ONCE):
                some = slice(at, at + _ROWS_AT_ONCE)
                calls.append(self._call(tag, texts[some], values[some]))
                calls = self._send(calls, _CALLS_AT_ONCE)
        for start in range(0, gone.num_rows, _ROWS_AT_ONCE):
            texts = key_texts(self._target, gone.slice(start, _ROWS_AT_ONCE))
            calls.append(self._call(tag, texts, [[] for _ in texts]))
            calls = self._send(calls, _CALLS_AT_ONCE)
        self._send(calls, 0)

    @property
    def done(self) -> frozenset[int]:
        """The fence of a bucket is in the same slot as its rows, so that it is true of them after a crash of the server
        too. Later steps are short: their buckets are written again."""
        if self._bulk is None:
            return frozenset()
        tags = self._tags(range(self._target.buckets))
        keys = [f"{tag}#fence" for tag in tags]
        found = run(self._client, [("HGETALL", key) for key in keys])
        fences = [fence_from(fields, self._target, key) for fields, key in zip(found, keys, strict=True)]
        return frozenset(bucket for bucket, fence in enumerate(fences) if fence == self._to)

    def bucket_done(self, bucket: int) -> None:
        if self._bulk is not None:
            self._advance(self._tags([bucket]))

    def _tags(self, buckets: Iterable[int]) -> list[str]:
        return [self._names.bucket(self._target.generation, bucket) for bucket in buckets]

    def _advance(self, tags: Sequence[str]) -> None:
        epoch, fields = str(self._to.epoch), fence_fields(self._to)
        run(
            self._client,
            [("EVAL", scripts.ADVANCE_BUCKET, 1, f"{tag}#fence", epoch, *fields) for tag in tags],
        )

    def commit(self) -> None:
        fields = fence_fields(self._to)
        generation = self._target.generation
        tags = self._tags(range(self._target.buckets))
        self._advance(tags)
        before = ["", "", ""] if self._overall is None else fence_fields(self._overall)[1::2]
        run(self._client, [("EVAL", scripts.ADVANCE, 1, self._names.fence(generation), *before, *fields)])
        self._sweep(tags)

    def _sweep(self, tags: Sequence[str]) -> None:
        """Remove the tombstones that the fence has passed. After a crash the next step's sweep does it."""
        epoch = str(self._to.epoch)
        while tags:
            removed = run(
                self._client,
                [
                    (
                        "EVAL",
                        scripts.SWEEP,
                        2,
                        f"{t}#gone",
                        f"{t}#keys",
                        epoch,
                        self._format,
                        f"{t}:",
                        _ROWS_AT_ONCE,
                    )
                    for t in tags
                ],
            )
            tags = [tag for tag, count in zip(tags, removed, strict=True) if count]

    def _call(self, tag: str, texts: Sequence[str], values: Sequence[Sequence[str | bytes]]) -> Sequence[Any]:
        arguments: list[Any] = []
        for cells in values:
            arguments.append(len(cells))
            arguments += cells
        keys = [f"{tag}#fence", f"{tag}#keys", f"{tag}#gone", *(f"{tag}:{text}" for text in texts)]
        epoch, stone = self._to.epoch, self._rows.tombstone(self._to.epoch)
        head = [epoch, self._to.log_id, self._format, len(tag.encode()) + 1, self._ttl_millis, stone]
        return ["EVAL", scripts.APPLY, len(keys), *keys, *head, *arguments]

    def _send(self, calls: list[Sequence[Any]], keep: int) -> list[Sequence[Any]]:
        """Run the gathered calls when there are more than ``keep``."""
        if len(calls) <= keep:
            return calls
        run(self._client, calls)
        return []
