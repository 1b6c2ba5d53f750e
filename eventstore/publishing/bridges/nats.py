"""NATS JetStream: each record is a message of the subject that has its name, acknowledged by a stream.

The id goes into ``Nats-Msg-Id``: within the stream's duplicate window the server drops what is sent again.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from tailrace.eventstore.errors import OperatorError, TransientError, optional_part
from tailrace.eventstore.publishing.bridges.bridge import TAKEN, Answer, Later, Message, Refused
from tailrace.eventstore.publishing.bridges.certificates import certificate_error
from tailrace.eventstore.publishing.bridges.http_headers import headers_of
from tailrace.eventstore.settings import NatsDestinationSettings

with optional_part("NATS", "nats"):
    import nats
    from nats import errors
    from nats.js import errors as stream_errors

_SECONDS = 15.0
_TOO_LARGE = 10054  # for the stream's max_msg_size


class NatsBridge:
    """One connection, with a loop of its own. Not for use from several threads at once."""

    def __init__(self, settings: NatsDestinationSettings) -> None:
        self._lost = ""
        options: dict[str, Any] = {
            "servers": settings.url.get_secret_value(),
            "allow_reconnect": False,  # the session opens another one
            "connect_timeout": _SECONDS,
            "max_reconnect_attempts": 1,  # of one server; 0 would be no limit
            "reconnect_time_wait": 0.1,
            "error_cb": self._note,
        }
        if settings.credentials_file is not None:
            options["user_credentials"] = str(settings.credentials_file)
        if settings.ca_file is not None:
            options["tls"] = ssl.create_default_context(cafile=settings.ca_file)
        self._loop = asyncio.new_event_loop()
        try:
            opened = asyncio.wait_for(nats.connect(**options), _SECONDS)
            self._client = self._loop.run_until_complete(opened)
        except BaseException as error:
            self._loop.close()
            if isinstance(error, errors.Error | OSError):  # a TimeoutError is one
                raise _translated(error, self._lost) from None
            raise
        self._streams = self._client.jetstream(timeout=_SECONDS)

    async def _note(self, error: Exception) -> None:
        self._lost = str(error) or type(error).__name__

    def close(self) -> None:
        if not self._loop.is_closed():
            with suppress(errors.Error, OSError):
                self._loop.run_until_complete(self._client.close())
            self._loop.close()

    def check(self) -> None:
        """Whether JetStream is on for us."""
        self._run(self._streams.account_info())

    def send(self, messages: Sequence[Message]) -> Sequence[Answer]:
        answers: Sequence[Answer] = self._run(self._send_all(messages))
        return answers

    def _run(self, work: Any) -> Any:
        try:
            return self._loop.run_until_complete(work)
        except (errors.Error, OSError) as error:
            raise _translated(error, self._lost) from None

    async def _send_all(self, messages: Sequence[Message]) -> Sequence[Answer]:
        return await asyncio.gather(*map(self._send, messages))

    async def _send(self, message: Message) -> Answer:
        headers = {"Nats-Msg-Id": message.id, **headers_of(message)}
        try:
            await self._streams.publish(message.name, message.value or b"", headers=headers)
        except stream_errors.NoStreamResponseError:
            return Later(f"no stream takes the subject {message.name}, or JetStream is not there")
        except errors.MaxPayloadError:
            return Refused("it is larger than the server's max_payload", "raise it")
        except stream_errors.APIError as error:
            said = f"the stream did not take it: {error.description} ({error.err_code})"
            too_large = error.err_code == _TOO_LARGE
            return Refused(said, "raise the stream's max_msg_size") if too_large else Later(said)
        except errors.TimeoutError:
            return Later(f"NATS did not answer in {_SECONDS:g} s")
        return TAKEN


def _translated(error: BaseException, lost: str) -> OperatorError | TransientError:
    said = lost or str(error) or type(error).__name__
    if wrong := certificate_error(error, "NATS"):
        return wrong
    if "authorization" in said.lower() or "permissions" in said.lower():
        return OperatorError(f"NATS refuses us: {said}", hint="correct `url`, or the rights of its user")
    return TransientError(f"NATS is out of reach: {said}", hint="look at its server")
