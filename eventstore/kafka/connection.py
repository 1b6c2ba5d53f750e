"""From settings of a cluster to kafka-python's options, and from its errors to ours."""

from __future__ import annotations

import encodings.idna  # noqa: F401 - the codec of host names: else each client's own thread imports it and what it needs
import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from tailrace.eventstore.errors import (
    Fenced,
    OperatorError,
    ProtocolError,
    TailraceError,
    TransientError,
    optional_part,
)
from tailrace.eventstore.kafka.seams import closing_sockets
from tailrace.eventstore.settings.kafka import KafkaConnectionSettings

with optional_part("Kafka", "kafka"):
    from kafka import errors
    from kafka.net import KafkaNetClient

CLIENT_ID = "tailrace"
Client = TypeVar("Client")
START_SECONDS = 10.0


class OffsetLost(OperatorError):
    """Records that were to be read next are no longer in their Kafka topic: retention removed them, or the topic was
    made again or cut. Choose where to go on: the hint says how."""


def client_options(settings: KafkaConnectionSettings) -> dict[str, Any]:
    """What kafka-python's clients take. Raises ``OperatorError`` for a certificate that cannot be read."""
    options: dict[str, Any] = {
        "bootstrap_servers": list(settings.brokers),
        "client_id": CLIENT_ID,
        "bootstrap_timeout_ms": int(START_SECONDS * 1000),
        "security_protocol": ("SASL_" if settings.sasl else "") + ("SSL" if settings.tls else "PLAINTEXT"),
        **closing_sockets(),
    }
    if settings.tls:
        options["ssl_context"] = tls_context(settings)
    if settings.sasl is not None and settings.password is not None:
        options["sasl_mechanism"] = settings.sasl.upper()
        options["sasl_plain_username"] = settings.username
        options["sasl_plain_password"] = settings.password.get_secret_value()
    return options


def client(kind: Callable[..., Client], settings: KafkaConnectionSettings, **options: Any) -> Client:
    """One of kafka-python's clients. Its own leave a thread and sockets behind when they cannot start.

    Raises what ``client_options`` raises, and kafka-python's errors.
    """
    networks: list[KafkaNetClient] = []

    def network(**given: Any) -> KafkaNetClient:
        networks.append(KafkaNetClient(**given))
        return networks[-1]

    try:
        return kind(**client_options(settings), kafka_client=network, **options)
    except BaseException:
        for each in networks:
            each.close()
        raise


def tls_context(settings: KafkaConnectionSettings) -> ssl.SSLContext:
    """Checks the broker's certificate and its name, always."""
    password = settings.certificate_key_password
    what = "ca_file"
    try:
        context = ssl.create_default_context(cafile=settings.ca_file)
        if settings.certificate is not None and settings.certificate_key is not None:
            what = "certificate or certificate_key"
            secret = password.get_secret_value() if password is not None else ""
            context.load_cert_chain(settings.certificate, settings.certificate_key, secret)
    except (OSError, ssl.SSLError) as error:
        raise OperatorError(
            f"{what} cannot be used for connections to Kafka: {error.strerror or error}",
            hint="they are PEM files; certificate_key_password opens an encrypted key",
        ) from error
    return context


@contextmanager
def speaking(topic: str = "") -> Iterator[None]:
    """While brokers are asked something, about ``topic``: their errors become ours."""
    try:
        yield
    except errors.KafkaError as error:
        raise refusal(error, f"topic {topic}: " if topic else "") from error


def refusal(error: Exception, about: str = "") -> TailraceError:
    """Our error for one of kafka-python's, or for the one that it was raised for."""
    first = next((argument for argument in error.args if isinstance(argument, errors.KafkaError)), None)
    if first is not None:
        return refusal(first, about)
    said = f"{about}{_text(error)}"
    for kinds, ours, hint in _REFUSALS:
        if isinstance(error, kinds):
            return ours(said, hint=hint)
    if isinstance(error, errors.RetriableError):
        return TransientError(said, hint="the cluster is busy or changes its leaders; try again")
    return OperatorError(said, hint="see what the broker's log says")


def _text(error: Exception) -> str:
    """kafka-python's text without the numbers and names of Python."""
    said = str(error).strip()
    name = type(error).__name__
    detail = said.removeprefix(name).lstrip(": ") or getattr(error, "description", "")
    return f"Kafka says {name.removesuffix('Error')}" + (f": {detail}" if detail else "")


CREDENTIALS = (
    "check username, password and sasl of this cluster; `kafka-configs --add-config` makes users of SCRAM"
)
_RIGHTS = (
    "give the user the right, with `kafka-acls --add`: READ and DESCRIBE to read a topic, WRITE and DESCRIBE to write "
    "one, and to the transactional id for transactions"
)
_REFUSALS: tuple[tuple[tuple[type[Exception], ...], type[TailraceError], str], ...] = (
    (
        (
            errors.SaslAuthenticationFailedError,
            errors.UnsupportedSaslMechanismError,
            errors.IllegalSaslStateError,
        ),
        OperatorError,
        CREDENTIALS,
    ),
    ((errors.AuthorizationError,), OperatorError, _RIGHTS),
    (
        (errors.UnknownTopicOrPartitionError, errors.InvalidTopicError),
        OperatorError,
        "make the topic, or correct its name; one that the user may not describe is not seen either",
    ),
    (
        (errors.OffsetOutOfRangeError, errors.LogTruncationError, errors.NoOffsetForPartitionError),
        OffsetLost,
        "retention removed what was to be read next, or the topic was made again or cut",
    ),
    (
        (errors.ProducerFencedError, errors.InvalidProducerEpochError),
        Fenced,
        "another process writes with the same transactional id",
    ),
    (
        (errors.MessageSizeTooLargeError, errors.RecordListTooLargeError),
        OperatorError,
        "raise max.message.bytes of the topic",
    ),
    (
        (errors.CorruptRecordError, errors.KafkaProtocolError),
        ProtocolError,
        "if it says so again, look at the broker's files with `kafka-dump-log`",
    ),
    (
        (errors.UnsupportedVersionError,),
        OperatorError,
        "brokers have to be of version 2.8 or later",
    ),
)
