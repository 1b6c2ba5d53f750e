"""AMQP 0-9-1 (RabbitMQ): each record is a persistent message to one exchange, confirmed by the broker.

``mandatory``: what no queue takes comes back, and is parked. Without it a broker would confirm it and drop it.
"""

from __future__ import annotations

import ssl
from collections.abc import Sequence
from contextlib import suppress

from tailrace.eventstore.errors import OperatorError, TransientError, optional_part
from tailrace.eventstore.publishing.bridges.amqp.headers import application_headers, content_type
from tailrace.eventstore.publishing.bridges.bridge import TAKEN, Answer, Later, Message, Refused
from tailrace.eventstore.publishing.bridges.certificates import certificate_error
from tailrace.eventstore.settings import AmqpDestinationSettings

with optional_part("AMQP", "amqp"):
    import pika
    from pika import exceptions
    from pika.adapters.blocking_connection import BlockingChannel

_SECONDS = 15.0
_PRECONDITION_FAILED = 406  # of a message: it is too large
_PERSISTENT = 2


class AmqpBridge:
    """One connection with one channel. The routing key is the record's name."""

    def __init__(self, settings: AmqpDestinationSettings) -> None:
        self._exchange = settings.exchange
        parameters = pika.URLParameters(settings.url.get_secret_value())
        parameters.socket_timeout = parameters.stack_timeout = _SECONDS
        parameters.blocked_connection_timeout = _SECONDS
        if settings.ca_file is not None:
            context = ssl.create_default_context(cafile=settings.ca_file)
            parameters.ssl_options = pika.SSLOptions(context, parameters.host)
        try:
            self._connection = pika.BlockingConnection(parameters)
            self._channel = self._opened()
        except (exceptions.AMQPError, OSError) as error:  # of the second kind are those of TLS
            raise _translated(error) from None

    def close(self) -> None:
        with suppress(exceptions.AMQPError):
            self._connection.close()

    def check(self) -> None:
        """Whether the exchange is there. Opening has asked for the rest."""
        if self._exchange:
            try:
                self._channel.exchange_declare(self._exchange, passive=True)
            except exceptions.AMQPError as error:
                raise _translated(error) from None

    def send(self, messages: Sequence[Message]) -> Sequence[Answer]:
        """One after the other, each confirmed."""
        try:
            return [self._send(each) for each in messages]
        except exceptions.AMQPError as error:
            raise _translated(error) from None

    def _send(self, message: Message) -> Answer:
        try:
            self._channel.basic_publish(
                self._exchange, message.name, message.value or b"", _properties(message), mandatory=True
            )
        except exceptions.UnroutableError:
            return Refused(
                f"no queue takes the routing key {message.name}",
                f"bind a queue for it to the exchange {self._exchange or '(default)'}",
            )
        except exceptions.NackError:
            return Later("the broker did not take it")
        except exceptions.ChannelClosedByBroker as error:
            if error.reply_code != _PRECONDITION_FAILED:
                raise
            self._channel = self._opened()
            return Refused(
                f"the broker refuses it: {error.reply_text}", "raise the broker's max_message_size"
            )
        return TAKEN

    def _opened(self) -> BlockingChannel:
        channel = self._connection.channel()
        channel.confirm_delivery()
        return channel


def _properties(message: Message) -> pika.BasicProperties:
    return pika.BasicProperties(
        message_id=message.id,
        content_type=content_type(message),
        headers=application_headers(message),
        delivery_mode=_PERSISTENT,
    )


def _translated(error: exceptions.AMQPError | OSError) -> OperatorError | TransientError:
    """A broker's own sentences name exchanges, virtual hosts and users, never values."""
    if isinstance(
        error,
        exceptions.ChannelClosedByBroker
        | exceptions.ProbableAuthenticationError
        | exceptions.ProbableAccessDeniedError
        | exceptions.AuthenticationError,
    ):
        said = getattr(error, "reply_text", "") or type(error).__name__
        return OperatorError(
            f"the AMQP broker refuses us: {said}",
            hint="correct `url` and `exchange`, or the rights of its user",
        )
    if wrong := certificate_error(error, "the AMQP broker"):
        return wrong
    return TransientError(
        f"the AMQP broker is out of reach: {str(error) or type(error).__name__}", hint="look at its server"
    )
