"""Why the first connection to a cluster failed.

A broker that does not let a client in ends the connection, and kafka-python then says no more than that time has run
out, as for a broker that is only just starting. So a failed start is looked into: is there anybody at that address,
does it speak TLS, is its certificate right, does it answer as a broker of Kafka does? Only what is sure is an error of
the operator's; the rest may be better the next time.
"""

from __future__ import annotations

import socket
import ssl
import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from tailrace.eventstore.errors import OperatorError, TailraceError, TransientError, optional_part
from tailrace.eventstore.kafka.connection import CREDENTIALS, client, speaking, tls_context
from tailrace.eventstore.settings.kafka import KafkaConnectionSettings

with optional_part("Kafka", "kafka"):
    from kafka.admin import KafkaAdminClient

_PROBE_SECONDS = 3.0
# Which versions do you speak? Every broker answers it, also before a password. Header of version 1 without a client's
# id, https://kafka.apache.org/protocol#protocol_messages: key, version, correlation id, length of the client's id.
_CORRELATION = 0x7461696C
_API_VERSIONS = struct.pack(">ihhih", 10, 18, 0, _CORRELATION, -1)
# Of no topic. Only who is let in is answered. Version 5: topics, whether to make them.
_METADATA = struct.pack(">ihhihi?", 15, 3, 5, _CORRELATION, -1, 0, False)
_ANSWER = struct.Struct(">ii")  # how many bytes follow, correlation id


@contextmanager
def starting(settings: KafkaConnectionSettings) -> Iterator[None]:
    """While a client connects for the first time. Raises ``OperatorError`` for what stays wrong until somebody changes
    it, else ``TransientError``."""
    try:
        with speaking():
            yield
    except TransientError as error:
        raise _why_not(settings) from error


def _why_not(settings: KafkaConnectionSettings) -> TailraceError:
    unreachable = ""
    for broker in settings.brokers:
        try:
            _ask(settings, broker)
            if _lets_in(settings) or (settings.sasl is None and _answers_anybody(settings, broker)):
                return TransientError(
                    f"{broker} did not answer in time, and does now",
                    hint="it was busy or starting; try again",
                )
            _ask(settings, broker)
        except OSError as error:
            unreachable = f"{broker}: {error.strerror or error}"
        except TailraceError as error:
            return error
        else:
            return _keeps_out(settings, broker)
    return TransientError(
        f"no broker of Kafka can be reached: {unreachable}",
        hint="check brokers (HOST:PORT) and that they run; try again",
    )


def _lets_in(settings: KafkaConnectionSettings) -> bool:
    """Asked once more, of a broker that is up: the first time it may have been starting."""
    with suppress(TransientError), speaking():
        client(KafkaAdminClient, settings).close()
        return True
    return False


def _answers_anybody(settings: KafkaConnectionSettings, broker: str) -> bool:
    """Whether it answers what only those are answered who are let in: then a client had too little time, as while the
    cluster chooses its leaders."""
    with suppress(OSError):
        return _is_kafka(_answer_of(settings, broker, _METADATA))
    return False


def _keeps_out(settings: KafkaConnectionSettings, broker: str) -> OperatorError:
    if settings.sasl is not None:
        said = f"{broker} does not let user {settings.username} in by {settings.sasl}"
        return OperatorError(said, hint=CREDENTIALS)
    return OperatorError(
        f"{broker} lets nobody in without a password", hint="set sasl, username and password of this cluster"
    )


def _ask(settings: KafkaConnectionSettings, broker: str) -> None:
    """Returns when there is a broker that answers. Raises ``OSError`` when nobody is there, ``OperatorError`` for what
    is surely wrong, ``TransientError`` without an answer."""
    address, answer = _address(broker), _answer_of(settings, broker, _API_VERSIONS)
    if _is_kafka(answer):
        return
    if settings.tls and _is_kafka(_plain_answer(address)):
        raise OperatorError(f"{broker} does not speak TLS, and tls is set", hint="name a listener that does")
    if not settings.tls and _speaks_tls(address):
        raise OperatorError(f"{broker} speaks TLS, and tls is not set", hint="set tls = true")
    if answer:
        raise OperatorError(
            f"{broker} does not answer as a broker of Kafka does", hint="check brokers (HOST:PORT)"
        )
    raise TransientError(
        f"{broker} takes connections and does not answer",
        hint="it may be starting: try again; else see whether it is a broker of Kafka",
    )


def _address(broker: str) -> tuple[str, int]:
    host, _, port = broker.rpartition(":")
    return host.strip("[]"), int(port)


def _answer_of(settings: KafkaConnectionSettings, broker: str, question: bytes) -> bytes:
    address = _address(broker)
    if settings.tls:
        return _encrypted_answer(settings, broker, address, question)
    return _plain_answer(address, question)


def _plain_answer(address: tuple[str, int], question: bytes = _API_VERSIONS) -> bytes:
    with socket.create_connection(address, _PROBE_SECONDS) as connection:
        return _answer(connection, question)


def _encrypted_answer(
    settings: KafkaConnectionSettings, broker: str, address: tuple[str, int], question: bytes
) -> bytes:
    try:
        with (
            socket.create_connection(address, _PROBE_SECONDS) as connection,
            tls_context(settings).wrap_socket(connection, server_hostname=address[0]) as encrypted,
        ):
            return _answer(encrypted, question)
    except ssl.SSLCertVerificationError as error:
        raise OperatorError(
            f"{broker} shows a certificate that is not right: {error.verify_message}",
            hint="set ca_file to the authority it is from, and name the broker as its certificate does",
        ) from error
    except (ssl.SSLEOFError, ConnectionResetError):  # a broker that does not speak TLS, or is gone
        return b""
    except ssl.SSLError as error:
        # With TLS 1.3, a certificate that the broker misses is said with its first answer.
        raise OperatorError(
            f"{broker} does not take a TLS connection: {error.strerror or error}",
            hint="if it asks for a certificate, set certificate and certificate_key of an authority that it trusts",
        ) from error


def _answer(connection: socket.socket, question: bytes) -> bytes:
    """Empty when the connection ends, or nothing comes."""
    got = b""
    with suppress(TimeoutError, ssl.SSLEOFError, ssl.SSLZeroReturnError, ConnectionError):
        connection.sendall(question)
        while len(got) < _ANSWER.size and (more := connection.recv(_ANSWER.size - len(got))):
            got += more
    return got


def _is_kafka(answer: bytes) -> bool:
    return len(answer) == _ANSWER.size and _ANSWER.unpack(answer)[1] == _CORRELATION


def _speaks_tls(address: tuple[str, int]) -> bool:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE  # nothing is sent; only whether it answers counts
    with suppress(OSError), socket.create_connection(address, _PROBE_SECONDS) as connection:
        context.wrap_socket(connection).close()
        return True
    return False
