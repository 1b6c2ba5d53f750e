"""Rows of a projection from Redis. Each call asks for the pointer and the rows in one round trip, so that it sees a
promotion at once and never reads a generation that is being removed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tailrace.eventstore.errors import IntegrityError, TransientError, UsageError
from tailrace.eventstore.model.keys import bucket_of
from tailrace.eventstore.settings import SinkSettings
from tailrace.projections.sinks.keys import key_name
from tailrace.projections.sinks.reader import (
    Hit,
    KeyReader,
    Row,
    SeenGeneration,
    cannot_search,
    nothing_live_error,
    python_rows,
)
from tailrace.projections.sinks.redis.connect import (
    GenerationMeta,
    RedisNames,
    RedisPlace,
    generation_from,
    run,
)
from tailrace.projections.sinks.redis.row_format import UNREADABLE
from tailrace.projections.sinks.redis.scan import decode_rows, read_rows
from tailrace.projections.sinks.specs import RedisCache

_ATTEMPTS = 5  # promotions between two round trips of one call


class RedisReader(KeyReader):
    """Looks keys up in the live generation."""

    def __init__(self, spec: RedisCache, settings: SinkSettings, store: str, projection: str) -> None:
        url = settings.url.get_secret_value() if settings.url else ""
        self._place = RedisPlace(f"sink {spec.sink!r}", url, cluster=settings.cluster)
        self._names = RedisNames(spec.prefix or store, projection)
        self._projection = projection
        self._followed = SeenGeneration(projection)
        self._known: tuple[int, GenerationMeta] | None = None

    def many(self, keys: Sequence[object]) -> list[Row | None]:
        if not keys:
            return []
        with self._place.translate_errors():
            client, seen = self._place.open(), self._followed.seen
            known = self._known or self._live()
            for _ in range(_ATTEMPTS):
                generation, meta = known
                try:
                    places = [self._physical(key, generation, meta) for key in keys]
                except UsageError:
                    known = self._live()  # a promotion may have brought another key
                    if known[0] == generation:
                        raise
                    continue
                try:
                    live, *rows = read_rows(client, places, meta, ("GET", self._names.live))
                    if generation_from(live, self._names.live) == generation:
                        self._known = known
                        self._followed.reads(generation, seen)
                        return _decode(rows, meta)
                except UNREADABLE as error:
                    raise IntegrityError(
                        f"projection {self._projection!r}: the sink holds a row that differs from what Tailrace wrote",
                        hint=f"tailrace verify {self._projection} names it, a rebuild makes it right",
                    ) from error
                known = self._live()
        raise TransientError(
            f"projection {self._projection!r} was promoted {_ATTEMPTS} times during one read",
            hint="try again",
        )

    def search(self, query: str, limit: int = 10) -> list[Hit]:
        raise cannot_search(self._projection, "read it by key, or add a projection into a search index")

    def close(self) -> None:
        self._place.close()

    def _live(self) -> tuple[int, GenerationMeta]:
        client = self._place.open()
        for _ in range(_ATTEMPTS):
            (value,) = run(client, [("GET", self._names.live)])
            generation = generation_from(value, self._names.live)
            if generation is None:
                break
            key = self._names.meta(generation)
            (text,) = run(client, [("GET", key)])
            if text is not None:
                return generation, GenerationMeta.from_text(text, key)
        raise nothing_live_error(self._projection)

    def _physical(self, key: object, generation: int, meta: GenerationMeta) -> str:
        key_hash, text = key_name(key, meta.key, meta.schema, self._projection)
        bucket = bucket_of(key_hash, meta.partitions, meta.split)
        return f"{self._names.bucket(generation, bucket)}:{text}"


def _decode(rows: Sequence[Any], meta: GenerationMeta) -> list[Row | None]:
    found = iter(python_rows(decode_rows([row for row in rows if row is not None], meta)))
    return [None if row is None else next(found) for row in rows]
