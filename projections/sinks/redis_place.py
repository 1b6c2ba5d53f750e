"""A Redis that a sink or a reader talks to: physical names, what is known of a generation, errors that say what to do.

Per bucket of a generation, all with the hash tag ``{prefix:projection:g42:b017}`` so that a bucket is one cluster slot:
``{…}:<key text>`` a row, ``{…}#keys`` the key texts of all rows, ``{…}#gone`` those of deleted ones not yet removed,
``{…}#fence`` where the bucket stands. Per generation ``prefix:projection:g42:fence`` and ``…:meta``; per projection
``prefix:projection:live``, the number of the generation that readers see.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Self

import pyarrow as pa
from redis import Redis, exceptions
from redis.backoff import NoBackoff
from redis.retry import Retry

from eventstore import disclosure
from eventstore.addresses import ESCAPES, misread
from eventstore.errors import Fenced, IntegrityError, OperatorError, TailraceError, TransientError, UsageError
from eventstore.position import Fence
from projections.sinks.base import Target
from projections.sinks.rows import schema_from_text, schema_to_text

CONNECT_SECONDS = 10
ANSWER_SECONDS = 60
FENCED = "FENCED"  # how a script begins its refusal


class RedisNames:
    """Physical names of one projection."""

    def __init__(self, prefix: str, projection: str) -> None:
        self.base = f"{prefix}:{projection}"
        self.live = f"{self.base}:live"

    def fence(self, generation: int) -> str:
        return f"{self.base}:g{generation}:fence"

    def meta(self, generation: int) -> str:
        return f"{self.base}:g{generation}:meta"

    def bucket(self, generation: int, bucket: int) -> str:
        """The hash tag."""
        return f"{{{self.base}:g{generation}:b{bucket:03d}}}"


@dataclass(frozen=True, slots=True)
class GenerationMeta:
    """What a reader must know to find and read rows."""

    store: str
    key: tuple[str, ...]
    schema: pa.Schema
    partitions: int
    split: int
    format: str

    @classmethod
    def of(cls, target: Target, format: str) -> Self:
        return cls(target.store, target.key, target.schema, target.partitions, target.split, format)

    def to_text(self) -> str:
        return json.dumps(
            {
                "store": self.store,
                "key": self.key,
                "schema": schema_to_text(self.schema),
                "partitions": self.partitions,
                "split": self.split,
                "format": self.format,
            }
        )

    @classmethod
    def from_text(cls, text: str | bytes) -> Self:
        data: dict[str, Any] = json.loads(text)
        data["key"] = tuple(data["key"])
        data["schema"] = schema_from_text(data["schema"])
        return cls(**data)


class RedisPlace:
    """``title`` is how messages call it. Raises UsageError for a URL that is none."""

    def __init__(self, title: str, url: str) -> None:
        if misread(url):
            raise UsageError(f"{title}: its url has an @ or / that is not escaped", hint=ESCAPES)
        try:
            self._client = Redis.from_url(
                url,
                socket_connect_timeout=CONNECT_SECONDS,
                socket_timeout=ANSWER_SECONDS,
                retry=Retry(NoBackoff(), 0),
                client_name="tailrace",
            )
        except ValueError:
            raise UsageError(
                f"{title}: its url is not a Redis URL", hint="write redis://user:password@host:6379/0"
            ) from None
        where: Mapping[str, Any] = self._client.connection_pool.connection_kwargs
        at = where.get("path") or f"{where.get('host', 'localhost')}:{where.get('port', 6379)}"
        self.text = f"{title} ({at})"

    @contextmanager
    def client(self) -> Iterator[Redis]:
        """The client; the connections it took are closed at the end."""
        with self.explained():
            try:
                yield self._client
            finally:
                self._client.close()

    @contextmanager
    def explained(self) -> Iterator[None]:
        """The client's errors as ours."""
        try:
            yield
        except exceptions.RedisError as error:
            raise explain(self.text, error) from error

    def open(self) -> Redis:
        """The client with its connection pool, for a reader that keeps it; use it inside ``explained``."""
        return self._client


def explain(place: str, error: exceptions.RedisError) -> TailraceError:
    """What a driver error means to whoever runs the command. Commands and their values are not repeated."""
    said = str(error)
    if said.startswith(FENCED):
        return Fenced(
            f"{place}: {said.removeprefix(FENCED).strip()}",
            hint="another process applies this projection, or the sink belongs to another log",
        )
    if "OOM command not allowed" in said:  # also from inside a script, where the driver does not know it
        return OperatorError(f"{place}: maxmemory is used up", hint="raise maxmemory, or drop generations")
    if said.startswith("WRONGTYPE"):
        return IntegrityError(
            f"{place}: a key of a projection holds another type than Tailrace wrote",
            hint="find out who else writes there: tailrace verify names the key, a rebuild makes it right",
        )
    match error:
        case exceptions.AuthenticationError() | exceptions.NoPermissionError():
            return OperatorError(f"{place}: {said}", hint="check user, password and ACL of the url")
        case exceptions.ReadOnlyError():
            return OperatorError(f"{place} is a replica", hint="name the primary in the url")
        case exceptions.ConnectionError() | exceptions.TimeoutError():
            return TransientError(
                f"{place}: {said}", hint="is the server running and reachable from here? then try again"
            )
        case _:
            return OperatorError(f"{place}: {disclosure.quoting(said)}", hint="see the server's log")


def run(client: Redis, commands: Sequence[Sequence[Any]]) -> list[Any]:
    """Send commands at once, return their answers in order; raises the first refusal."""
    if not commands:
        return []
    pipeline: Any = client.pipeline(transaction=False)
    for command in commands:
        pipeline.execute_command(*command)
    answers: list[Any] = pipeline.execute(raise_on_error=False)
    for answer in answers:
        if isinstance(answer, Exception):
            raise answer
    return answers


def fence_fields(fence: Fence) -> list[str]:
    return ["log_id", fence.log_id, "epoch", str(fence.epoch), "epoch_hash", fence.epoch_hash]


def fence_from(fields: Mapping[bytes, bytes], target: Target) -> Fence | None:
    if not fields:
        return None
    return Fence(
        log_id=fields[b"log_id"].decode(),
        projection=target.projection,
        generation=target.generation,
        epoch=int(fields[b"epoch"]),
        epoch_hash=fields[b"epoch_hash"].decode(),
    )
