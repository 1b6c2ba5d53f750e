"""The Redis server of a sink or a reader: physical names, what is known of a generation, and errors that say what to
do.

All keys of a bucket have the hash tag ``{prefix:projection:g42:b017}``, so that a bucket is in one cluster slot:

  - ``{…}:<key text>`` is a row, ``{…}#keys`` the key texts of all rows, ``{…}#gone`` those of deleted ones that are not
    removed yet, and ``{…}#fence`` the fence of the bucket.

A generation has ``prefix:projection:g42:fence`` and ``…:meta``, a projection ``prefix:projection:live``: the number of
the generation that readers see.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Self
from urllib.parse import urlsplit

import pyarrow as pa
from redis import Redis, RedisCluster, exceptions
from redis.backoff import NoBackoff
from redis.retry import Retry

from tailrace.eventstore import disclosure
from tailrace.eventstore.disclosure import ESCAPES, is_ambiguous
from tailrace.eventstore.errors import (
    Fenced,
    IntegrityError,
    OperatorError,
    TailraceError,
    TransientError,
    UsageError,
)
from tailrace.eventstore.model.position import Fence
from tailrace.projections.sinks.contract import Target
from tailrace.projections.sinks.redis.row_format import FORMATS
from tailrace.projections.sinks.rows import schema_from_text, schema_to_text

Client = Redis | RedisCluster
CONNECT_SECONDS = 10
ANSWER_SECONDS = 60
_WRITE = "write redis://user:password@host:6379/0"
FENCED = "FENCED"  # how a script begins its refusal
_BUCKETS_MAX = 1024 * 256  # partitions and how often each is split, at most
_NOT_OURS = (ValueError, LookupError, TypeError, AttributeError, RecursionError, pa.ArrowException)


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
    """What a reader must know to find and decode rows. ``log_id``: whose generation it is; "" not known."""

    store: str
    key: tuple[str, ...]
    schema: pa.Schema
    partitions: int
    split: int
    format: str
    log_id: str = ""

    @classmethod
    def of(cls, target: Target, format: str) -> Self:
        shape = target.partitions, target.split
        return cls(target.store, target.key, target.schema, *shape, format, target.log_id)

    def to_text(self) -> str:
        return json.dumps(
            {
                "store": self.store,
                "key": self.key,
                "schema": schema_to_text(self.schema),
                "partitions": self.partitions,
                "split": self.split,
                "format": self.format,
                "log_id": self.log_id,
            }
        )

    @classmethod
    def from_text(cls, text: str | bytes, key: str) -> Self:
        """``key`` is where it lies. Raises IntegrityError for what Tailrace did not write there."""
        try:
            data: dict[str, Any] = json.loads(text)
            data["key"] = tuple(data["key"])
            data["schema"] = schema_from_text(data["schema"])
            meta = cls(**data)
            texts = (*meta.key, meta.store, meta.log_id)
            if not all(isinstance(each, str) for each in texts) or not {*meta.key} <= {*meta.schema.names}:
                raise ValueError
            if meta.format not in FORMATS or not 1 <= meta.partitions * meta.split <= _BUCKETS_MAX:
                raise ValueError
        except _NOT_OURS:
            raise foreign_value(key) from None
        return meta


class RedisPlace:
    """A Redis server. ``title`` names it in messages. ``cluster``: it is one server of a cluster and names the others.
    Raises UsageError for a malformed URL."""

    def __init__(self, title: str, url: str, *, cluster: bool = False) -> None:
        if is_ambiguous(url):
            raise UsageError(f"{title}: its url has an @ or / that is not escaped", hint=ESCAPES)
        self._url, self._cluster = url, cluster
        self._members: RedisCluster | None = None
        try:
            self._client = Redis.from_url(url, **_options(url))
        except ValueError:
            raise UsageError(f"{title}: its url is not a Redis URL", hint=_WRITE) from None
        if not _names_database(url):
            raise UsageError(f"{title}: the database in its url is no number", hint=_WRITE)
        where: Mapping[str, Any] = self._client.connection_pool.connection_kwargs
        at = where.get("path") or f"{where.get('host', 'localhost')}:{where.get('port', 6379)}"
        self.text = f"{title} ({at})"

    @contextmanager
    def client(self) -> Iterator[Client]:
        """The client. Its connections are closed at the end."""
        with self.translate_errors():
            try:
                yield self.open()
            finally:
                self.close()

    @contextmanager
    def translate_errors(self) -> Iterator[None]:
        """The client's errors as ours."""
        try:
            yield
        except (exceptions.RedisError, exceptions.RedisClusterException) as error:
            self._members = None  # the next call asks for the servers again
            raise explain(self.text, error) from error

    def open(self) -> Client:
        """The client with its connection pools, for a reader that keeps it. Use it inside ``translate_errors``."""
        if not self._cluster:
            return self._client
        if self._members is None:  # asks the server for the others at once
            self._members = RedisCluster.from_url(self._url, **_options(self._url))
        return self._members

    def close(self) -> None:
        """Close all connections; the next use opens new ones."""
        self._client.close()
        if self._members is not None:
            self._members.close()
            self._members = None


def _names_database(url: str) -> bool:
    """Whether the database is a number or absent. The driver reads anything else wrongly: ``3/4`` as 34, other texts as
    0."""
    parts = urlsplit(url)
    database = parts.path.strip("/")
    return parts.scheme == "unix" or not database or (database.isascii() and database.isdecimal())


def _options(url: str) -> dict[str, Any]:
    """What the url says itself counts in place of these."""
    # The driver's own default before its version 6 took a certificate in anybody's name.
    named = url.startswith("rediss://") and "ssl_cert_reqs" not in url
    return {
        **({"ssl_check_hostname": True} if named else {}),
        "socket_connect_timeout": CONNECT_SECONDS,
        "socket_timeout": ANSWER_SECONDS,
        "retry": Retry(NoBackoff(), 0),
        "client_name": "tailrace",
    }


def explain(place: str, error: exceptions.RedisError | exceptions.RedisClusterException) -> TailraceError:
    """The error for the user in place of a driver's error. Commands and their values are not repeated."""
    said = str(error)
    if said.startswith(FENCED):
        return Fenced(
            f"{place}: {said.removeprefix(FENCED).strip()}",
            hint="another process applies this projection, or the sink belongs to another log",
        )
    # The driver takes the word off where it knows it; from inside a script of Redis 6.2 it does not.
    if isinstance(error, exceptions.OutOfMemoryError) or "OOM command not allowed" in said:
        return OperatorError(
            f"{place} is full: its maxmemory is used up",
            hint="raise maxmemory, or drop generations (tailrace projection gc); the same command then goes on",
        )
    if said.startswith("WRONGTYPE"):
        return IntegrityError(
            f"{place}: a key of a projection holds another type than Tailrace wrote",
            hint="find out who else writes there: tailrace verify names the key, a rebuild makes it right",
        )
    if "DB index" in said:
        return OperatorError(
            f"{place} has no database of that number",
            hint="at the end of the url write one below the server's `databases` (16 unless it was set), or none",
        )
    if "Cluster mode is not enabled" in said:
        return OperatorError(f"{place} is no cluster", hint="leave cluster out of its table in [sinks]")
    if isinstance(error.__cause__, exceptions.RedisError):  # why no server of a cluster answers
        return explain(place, error.__cause__)
    match error:
        case exceptions.MovedError():
            return OperatorError(
                f"{place} is part of a cluster, or slots of it keep moving",
                hint="set cluster = true in its table in [sinks]; while slots move, try again",
            )
        case exceptions.AskError() | exceptions.TryAgainError() | exceptions.ClusterDownError():
            return TransientError(
                f"{place}: slots of the cluster are being moved, or a server is down", hint="try again"
            )
        case exceptions.AuthenticationError() | exceptions.NoPermissionError():
            return OperatorError(f"{place}: {said}", hint="check user, password and ACL of the url")
        case exceptions.ReadOnlyError():
            return OperatorError(f"{place} is a replica", hint="name the primary in the url")
        case exceptions.ConnectionError() | exceptions.TimeoutError():
            return TransientError(
                f"{place}: {said}", hint="is the server running and reachable from here? then try again"
            )
        case _:
            return OperatorError(
                f"{place}: {disclosure.hide_quoted_values(said)}", hint="see the server's log"
            )


def run(client: Client, commands: Sequence[Sequence[Any]]) -> list[Any]:
    """Send commands at once, and return their answers in order. Raises the first refusal."""
    answers = answers_of(client, commands)
    for answer in answers:
        if isinstance(answer, Exception):
            raise answer
    return answers


def answers_of(client: Client, commands: Sequence[Sequence[Any]]) -> list[Any]:
    """Send commands at once, and return their answers in order, refusals among them. All keys of one command are of one
    bucket."""
    if not commands:
        return []
    if not isinstance(client, RedisCluster):
        return _run_pipeline(client, commands)
    answers: list[Any] = [None] * len(commands)
    left = list(range(len(commands)))
    for last in (False, True):
        for server, places in _commands_by_server(client, commands, left):
            found = _run_pipeline(server, [commands[at] for at in places])
            for at, answer in zip(places, found, strict=True):
                answers[at] = answer
        left = [at for at in left if isinstance(answers[at], exceptions.MovedError)]
        if not left or last:
            break
        client.nodes_manager.initialize()  # slots have moved since: each command may be sent twice
    return answers


def _commands_by_server(
    cluster: Any, commands: Sequence[Sequence[Any]], places: Sequence[int]
) -> list[tuple[Redis, list[int]]]:
    """The server of each command's key."""
    found: dict[str, tuple[Redis, list[int]]] = {}
    for at in places:
        command = commands[at]
        node = _node(cluster, command[3] if command[0] == "EVAL" else command[1])
        _, mine = found.setdefault(node.name, (cluster.get_redis_connection(node), []))
        mine.append(at)
    return list(found.values())


def server_of(client: Client, key: str) -> Redis:
    """The server, or the one of a cluster that has the key."""
    if not isinstance(client, RedisCluster):
        return client
    cluster: Any = client
    server: Redis = cluster.get_redis_connection(_node(cluster, key))
    return server


def _node(cluster: Any, key: Any) -> Any:
    node = cluster.get_node_from_key(key)
    if node is None:
        raise exceptions.ClusterDownError("no server has the slot of a key")
    return node


def _run_pipeline(server: Redis, commands: Sequence[Sequence[Any]]) -> list[Any]:
    pipeline: Any = server.pipeline(transaction=False)
    for command in commands:
        pipeline.execute_command(*command)
    answers: list[Any] = pipeline.execute(raise_on_error=False)
    return answers


def servers_of(client: Client) -> list[tuple[str, Redis]]:
    """The server, or each primary of a cluster, with its name."""
    if not isinstance(client, RedisCluster):
        return [("", client)]
    cluster: Any = client
    return [(node.name, cluster.get_redis_connection(node)) for node in cluster.get_primaries()]


def fence_fields(fence: Fence) -> list[str]:
    return ["log_id", fence.log_id, "epoch", str(fence.epoch), "epoch_hash", fence.epoch_hash]


def fence_from(fields: Mapping[bytes, bytes], target: Target, key: str) -> Fence | None:
    """``key`` is where it lies. Raises IntegrityError for what Tailrace did not write there."""
    if not fields:
        return None
    try:
        return Fence(
            log_id=fields[b"log_id"].decode(),
            projection=target.projection,
            generation=target.generation,
            epoch=int(fields[b"epoch"]),
            epoch_hash=fields[b"epoch_hash"].decode(),
        )
    except _NOT_OURS:
        raise foreign_value(key) from None


def generation_from(value: bytes | None, key: str) -> int | None:
    """The generation that a pointer names. Raises IntegrityError as the others do."""
    if value is None:
        return None
    try:
        return int(value)
    except _NOT_OURS:
        raise foreign_value(key) from None


def foreign_value(key: str) -> IntegrityError:
    return IntegrityError(
        f"the Redis key {key} does not hold what Tailrace wrote",
        hint="find out who else may write there (ACL LIST); then remove that key, and rebuild the projection",
    )
