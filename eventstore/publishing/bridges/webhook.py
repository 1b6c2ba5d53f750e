"""Webhooks: each record is a signed POST to one address.

The receiver is another party: its answer is read up to a limit, and a request ends in time however slowly it is
answered. Redirects are not followed: they would take the records elsewhere.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

from tailrace.eventstore.disclosure import hide_text
from tailrace.eventstore.errors import OperatorError, TransientError, optional_part
from tailrace.eventstore.publishing.bridges.bridge import TAKEN, Answer, Later, Message, Refused
from tailrace.eventstore.publishing.bridges.certificates import certificate_error
from tailrace.eventstore.publishing.bridges.http_headers import headers_of
from tailrace.eventstore.publishing.bridges.signing import signed_headers
from tailrace.eventstore.settings import WebhookDestinationSettings, signing_key

with optional_part("a webhook", "webhook"):
    import httpx

_ANSWER_BYTES = 16 << 10  # what is read of an answer; its connection is closed when there is more
_SHOWN_CHARS = 200
_AFTER_SECONDS_MAX = 3600.0
_AGAIN = {408, 425, 429}
# What is wrong with the address or with us, and so with every record.
_FOR_AN_OPERATOR = {
    401: "it does not know us: compare `secret` with the receiver's",
    403: "it refuses us: compare `secret` with the receiver's",
    404: "correct `url`",
    405: "correct `url`: no POST goes there",
    407: "a proxy on the way wants a password",
    410: "it wants nothing more from this publication: remove it, or correct `url`",
}


class WebhookBridge:
    """Sends to one endpoint. Not for use from several threads at once."""

    def __init__(self, settings: WebhookDestinationSettings) -> None:
        self._url = settings.url.get_secret_value()
        secrets = (settings.secret, settings.previous_secret)
        self._keys = [signing_key(each) for each in secrets if each is not None]
        self._seconds = settings.timeout_seconds
        self._side_by_side = asyncio.Semaphore(settings.parallel)
        try:
            context = ssl.create_default_context(cafile=settings.ca_file)
        except (OSError, ssl.SSLError) as error:
            raise OperatorError(
                f"ca_file {settings.ca_file} cannot be read: {error}",
                hint="name a file of certificates in PEM",
            ) from None
        limits = httpx.Limits(max_connections=settings.parallel, max_keepalive_connections=settings.parallel)
        self._loop = asyncio.new_event_loop()
        self._client = httpx.AsyncClient(verify=context, limits=limits, timeout=None, follow_redirects=False)

    def close(self) -> None:
        if not self._loop.is_closed():
            self._loop.run_until_complete(self._client.aclose())
            self._loop.close()

    def send(self, messages: Sequence[Message]) -> Sequence[Answer]:
        return self._loop.run_until_complete(self._send_all(messages))

    def check(self) -> None:
        """Any answer will do: what it says to a HEAD says nothing of a POST."""
        answer = self._loop.run_until_complete(self._ask(httpx.Request("HEAD", self._url)))
        if isinstance(answer, Later):
            raise TransientError(answer.reason, hint="start it, or correct `url`")

    async def _send_all(self, messages: Sequence[Message]) -> Sequence[Answer]:
        """Each is answered before any of their errors is raised: none is under way then."""
        answers = await asyncio.gather(*map(self._send, messages), return_exceptions=True)
        for each in answers:
            if isinstance(each, BaseException):
                raise each
        return [each for each in answers if not isinstance(each, BaseException)]

    async def _send(self, message: Message) -> Answer:
        async with self._side_by_side:
            body = message.value or b""
            signed = signed_headers(self._keys, message.id, int(time.time()), body)
            headers = {**headers_of(message), **signed, "user-agent": "tailrace"}
            found = await self._ask(httpx.Request("POST", self._url, headers=headers, content=body))
            return found if isinstance(found, Later) else answer_to(*found)

    async def _ask(self, request: httpx.Request) -> tuple[int, str | None, str] | Later:
        """Status, ``Retry-After`` and the begin of the body."""
        try:
            async with asyncio.timeout(self._seconds):
                response = await self._client.send(request, stream=True)
                try:
                    return response.status_code, response.headers.get("retry-after"), await _begin(response)
                finally:
                    self._client.cookies.clear()  # a receiver may set any number
                    await response.aclose()
        except TimeoutError:
            return Later(f"it did not answer in {self._seconds:g} s")
        except httpx.TransportError as error:
            if wrong := certificate_error(error, "its server"):
                raise wrong from None
            return Later(f"it cannot be reached: {str(error) or type(error).__name__}")


async def _begin(response: httpx.Response) -> str:
    found = b""
    async for chunk in response.aiter_raw():
        found += chunk
        if len(found) > _ANSWER_BYTES:
            break
    return found[:_SHOWN_CHARS].decode(errors="replace")


def answer_to(status: int, retry_after: str | None, body: str) -> Answer:
    """What becomes of a message. Raises OperatorError for what concerns all of them."""
    said = f"it answered {status}" + (f": {hide_text(body.strip())}" if body.strip() else "")
    if 200 <= status < 300:
        return TAKEN
    if status >= 500 or status in _AGAIN:
        return Later(said, _seconds(retry_after))
    if status in _FOR_AN_OPERATOR:
        raise OperatorError(said, hint=_FOR_AN_OPERATOR[status])
    if status < 400:
        raise OperatorError(said, hint="it sends us elsewhere, where we do not follow: correct `url`")
    return Refused(said, "let the receiver take it; its own record says why it did not")


def _seconds(retry_after: str | None) -> float:
    """Source: RFC 9110, 10.2.3: a number of seconds, or a date."""
    if retry_after is None or len(retry_after) > 100:
        return 0.0
    if retry_after.isascii() and retry_after.isdigit():
        return min(float(retry_after), _AFTER_SECONDS_MAX)
    try:
        moment = parsedate_to_datetime(retry_after)
    except ValueError:
        return 0.0
    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return min(max((moment - datetime.now(UTC)).total_seconds(), 0.0), _AFTER_SECONDS_MAX)
