"""AMQP 1.0 (ActiveMQ, Azure Service Bus, Solace, ...): each record is a durable message that the broker settles.

Proton's blocking connection knows nothing of sessions that the broker ends, and waits for ever; so waits are our own.
Outcomes, and conditions of errors: OASIS, "AMQP 1.0", 3.4 and 2.8.15.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any
from urllib.parse import unquote, urlsplit

from tailrace.eventstore.errors import OperatorError, TransientError, optional_part
from tailrace.eventstore.publishing.bridges.amqp.headers import application_headers, content_type
from tailrace.eventstore.publishing.bridges.bridge import TAKEN, Answer, Later, Message, Refused
from tailrace.eventstore.publishing.bridges.certificates import certificate_error
from tailrace.eventstore.settings import Amqp1DestinationSettings

with optional_part("AMQP 1.0", "amqp1"):
    import proton
    from proton import reactor, utils

_SECONDS = 15.0
_PLACEHOLDER = "{name}"
_FULL = "amqp:resource-limit-exceeded"
_TOO_LARGE = ("amqp:link:message-size-exceeded", "amqp:precondition-failed")
_ACT = ("amqp:not-found", "amqp:unauthorized-access", "amqp:not-allowed", "amqp:precondition-failed")


class _Ended(Exception):
    """The broker has ended the session of a link, and says why."""

    def __init__(self, condition: str, said: str) -> None:
        super().__init__(f"{condition}: {said}" if said else condition)
        self.condition = condition


class Amqp1Bridge:
    """One connection, with a link for each address. A message's subject is the record's name."""

    def __init__(self, settings: Amqp1DestinationSettings) -> None:
        self._settings = settings
        self._links: dict[str, Any] = {}
        self._connection: Any = None
        self._open()

    def _open(self) -> None:
        self._links.clear()
        try:
            self._connection = _connected(self._settings)
        except (proton.ProtonException, OSError) as error:  # of the second kind is a name that is not known
            raise _translated(error) from None

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(proton.ProtonException):
                connection.close()

    def check(self) -> None:
        """Whether the address is there, if it is one for all. Opening has asked for the rest."""
        if _PLACEHOLDER not in self._settings.address:
            self._link(self._settings.address)

    def send(self, messages: Sequence[Message]) -> Sequence[Answer]:
        """All are on their way before the first is settled."""
        links = [self._link(self._settings.address.replace(_PLACEHOLDER, each.name)) for each in messages]
        try:
            tried = [_put(link, each) for link, each in zip(links, messages, strict=True)]
            return [self._answer(link, each) for link, each in zip(links, tried, strict=True)]
        except (proton.ProtonException, _Ended) as error:
            self.close()
            if _condition(error) not in _TOO_LARGE:
                raise _translated(error) from None
            reason = f"the broker refuses it: {error}"
        self._open()
        if len(messages) == 1:
            return [Refused(reason, "raise what the broker takes")]
        return [answer for each in messages for answer in self.send([each])]

    def _answer(self, link: Any, tried: Any) -> Answer:
        if isinstance(tried, Refused):
            return tried
        self._wait(link, lambda: tried.settled)
        answer = _outcome(tried)
        tried.settle()
        return answer

    def _link(self, address: str) -> Any:
        if address not in self._links:
            try:
                self._links[address] = self._attached(address)
            except (proton.ProtonException, _Ended) as error:
                raise _translated(error) from None
        return self._links[address]

    def _attached(self, address: str) -> Any:
        connection = self._connection
        link = connection.container.create_sender(connection.conn, address, options=reactor.AtLeastOnce())
        self._wait(link, lambda: not link.state & proton.Endpoint.REMOTE_UNINIT)
        if link.remote_target.address is None:  # then the broker refuses it and says why: AMQP 1.0, 2.6.3
            self._wait(link, lambda: False)
        return link

    def _wait(self, link: Any, done: Callable[[], bool]) -> None:
        session = link.session
        self._connection.wait(lambda: done() or session.state & proton.Endpoint.REMOTE_CLOSED)
        if not done():
            condition = session.remote_condition or proton.Condition("the session ended")
            raise _Ended(condition.name, condition.description or "")


def _connected(settings: Amqp1DestinationSettings) -> Any:
    parts = urlsplit(settings.url.get_secret_value())
    secure = parts.scheme == "amqps"
    who: dict[str, Any] = {"allowed_mechs": "ANONYMOUS"}
    if parts.username:
        password = unquote(parts.password or "")
        who = {"allowed_mechs": "PLAIN", "user": unquote(parts.username), "password": password}
    host = f"[{parts.hostname}]" if ":" in str(parts.hostname) else parts.hostname
    return utils.BlockingConnection(
        f"{parts.scheme}://{host}:{parts.port or (5671 if secure else 5672)}",
        timeout=_SECONDS,
        ssl_domain=_authorities(settings) if secure else None,
        allow_insecure_mechs=not secure,  # PLAIN: whoever writes amqp:// says so
        **who,
    )


def _authorities(settings: Amqp1DestinationSettings) -> Any:
    systems = ssl.get_default_verify_paths()
    domain = proton.SSLDomain(proton.SSLDomain.MODE_CLIENT)
    domain.set_trusted_ca_db(str(settings.ca_file or systems.cafile or systems.capath))
    domain.set_peer_authentication(proton.SSLDomain.VERIFY_PEER_NAME)
    return domain


def _put(link: Any, message: Message) -> Any:
    """Its delivery, or that it is refused."""
    made = proton.Message(
        body=message.value or b"",
        id=message.id,
        subject=message.name,
        content_type=content_type(message),
        properties=application_headers(message),
        durable=True,
        inferred=True,  # the value is the message's data, as it is
    )
    limit = link.remote_max_message_size
    if limit and len(made.encode()) > limit:
        return Refused(
            f"it is larger than the {limit} bytes that the broker takes", "raise the broker's limit"
        )
    return link.send(made)


def _outcome(delivery: Any) -> Answer:
    condition = delivery.remote.condition
    said = f": {condition.name}: {condition.description}" if condition else ""
    match delivery.remote_state:
        case proton.Delivery.ACCEPTED:
            return TAKEN
        case proton.Delivery.REJECTED if condition is None or condition.name != _FULL:
            return Refused(f"the broker refuses it{said}", "look at the broker's own log")
        case proton.Delivery.MODIFIED if delivery.remote.undeliverable:
            return Refused("no queue takes it", "bind one to the address")
    return Later(f"the broker did not take it{said}")


def _condition(error: Exception) -> str:
    return str(getattr(error, "condition", None) or "")


def _translated(error: Exception) -> OperatorError | TransientError:
    """A broker's own sentences name addresses and users, never values."""
    if wrong := certificate_error(error, "the AMQP broker"):
        return wrong
    if _condition(error) in _ACT or "amqp:unauthorized-access" in str(error):
        return OperatorError(
            f"the AMQP broker refuses us: {error}",
            hint="correct `url` and `address`, or the rights of its user",
        )
    return TransientError(f"the AMQP broker is out of reach: {error}", hint="look at its server")
