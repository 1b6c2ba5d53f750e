"""Redis Streams: each record is an entry of the stream that has the record's name.

As safe as the server: with its ``appendfsync everysec`` a crash of it may lose what it took in the last second.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tailrace.eventstore.errors import OperatorError, TransientError, optional_part
from tailrace.eventstore.publishing.bridges.bridge import TAKEN, Answer, Later, Message
from tailrace.eventstore.publishing.bridges.certificates import certificate_error
from tailrace.eventstore.settings import RedisDestinationSettings

with optional_part("Redis Streams", "redis"):
    import redis
    from redis import exceptions

_SECONDS = 15.0
_FOR_AN_OPERATOR = (
    exceptions.AuthenticationError,
    exceptions.AuthorizationError,
    exceptions.NoPermissionError,
)
_ANOTHER_TYPE = "WRONGTYPE"


class RedisStreamsBridge:
    """Entries have the fields ``id``, ``topic``, ``offset``, ``key`` and ``value``, and one for each header."""

    def __init__(self, settings: RedisDestinationSettings) -> None:
        self._length = settings.length_max
        self._client = redis.Redis.from_url(
            settings.url.get_secret_value(), socket_timeout=_SECONDS, socket_connect_timeout=_SECONDS
        )

    def close(self) -> None:
        self._client.close()

    def send(self, messages: Sequence[Message]) -> Sequence[Answer]:
        with self._client.pipeline(transaction=False) as pipeline:
            for each in messages:
                pipeline.xadd(each.name, _fields(each), maxlen=self._length, approximate=True)
            try:
                found = pipeline.execute(raise_on_error=False)
            except exceptions.RedisError as error:
                raise _translated(error) from None
        return [_answer(each, result) for each, result in zip(messages, found, strict=True)]

    def check(self) -> None:
        try:
            self._client.ping()
        except exceptions.RedisError as error:
            raise _translated(error) from None


def _fields(message: Message) -> dict[Any, Any]:
    given: dict[Any, Any] = {"id": message.id, "topic": message.topic, "offset": message.place}
    given |= {name: value for name, value in message.headers if name not in ("id", "topic", "offset")}
    given |= {"key": message.key} if message.key is not None else {}
    return given | ({"value": message.value} if message.value is not None else {})


def _answer(message: Message, result: object) -> Answer:
    if not isinstance(result, Exception):
        return TAKEN
    if str(result).startswith(_ANOTHER_TYPE):
        raise OperatorError(
            f"the Redis key {message.name} is no stream",
            hint="give the publication another `topic`, or remove that key",
        )
    translated = _translated(result)
    if isinstance(translated, OperatorError):
        raise translated
    return Later(translated.message)


def _translated(error: Exception) -> OperatorError | TransientError:
    """Redis' errors name commands, users and memory, never values."""
    if isinstance(error, _FOR_AN_OPERATOR):
        return OperatorError(f"Redis refuses us: {error}", hint="correct `url`, or the rights of its user")
    if wrong := certificate_error(error, "Redis", "`url` (?ssl_ca_certs=FILE)"):
        return wrong
    return TransientError(f"Redis does not take it now: {error}", hint="look at its server")
