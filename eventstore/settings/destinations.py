"""Where publications send to beside Kafka: one model a kind, each with what its bridge needs."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, Discriminator, Field, SecretStr, Tag, model_validator

from tailrace.eventstore.settings.base import Frozen
from tailrace.eventstore.settings.publication import KafkaDestinationSettings

SIGNING_PREFIX = "whsec_"
_SIGNING_BYTES = (24, 64)  # what Standard Webhooks allows


def signing_key(secret: SecretStr) -> bytes:
    """The bytes of ``whsec_…``. Raises ValueError, which does not quote it."""
    text = secret.get_secret_value()
    try:
        key = base64.b64decode(text.removeprefix(SIGNING_PREFIX), validate=True)
    except binascii.Error:
        key = b""
    least, most = _SIGNING_BYTES
    if not text.startswith(SIGNING_PREFIX) or not least <= len(key) <= most:
        raise ValueError(f"must be {SIGNING_PREFIX} and {least} to {most} bytes in base64")
    return key


def _signing(secret: SecretStr) -> SecretStr:
    signing_key(secret)
    return secret


def _address(*schemes: str) -> AfterValidator:
    """Requires a URL of one of the schemes, with a host."""

    def check(url: SecretStr) -> SecretStr:
        try:
            parts = urlsplit(url.get_secret_value())
            _ = parts.port
        except ValueError:
            raise ValueError("must be an address") from None
        if parts.scheme not in schemes or not parts.hostname or parts.fragment:
            raise ValueError("must begin with " + " or ".join(f"{each}://HOST" for each in schemes))
        return url

    return AfterValidator(check)


_ENCRYPTED = ("https", "rediss", "amqps", "tls")
SigningSecret = Annotated[SecretStr, AfterValidator(_signing)]


class BridgeDestinationSettings(Frozen):
    """A destination without transactions, which keeps no position."""

    url: SecretStr

    @property
    def unprotected(self) -> tuple[str, str] | None:
        """What others on the network see, and what to do."""
        if urlsplit(self.url.get_secret_value()).scheme in _ENCRYPTED:
            return None
        return "records go through the network as they are", "use an address with TLS where others can listen"

    def secrets(self) -> list[SecretStr]:
        """What must not be shown: an address may hold a password or a token."""
        return [self.url]


CaFile = Annotated[
    Path | None,
    Field(description="File of the authorities that its certificate is from. Default: the system's."),
]


class WebhookDestinationSettings(BridgeDestinationSettings):
    """An HTTP endpoint that gets each record in a POST of its own, signed as Standard Webhooks says."""

    kind: Annotated[Literal["webhook"], Field(description="Kind of the destination.")]
    url: Annotated[
        SecretStr,
        _address("https", "http"),
        Field(
            description="Address of the endpoint: https://HOST/PATH, or http:// where the network is trusted."
        ),
    ]
    secret: Annotated[
        SigningSecret,
        Field(
            description="Key of the signatures: whsec_ and 24 to 64 bytes in base64. The receiver has it, too."
        ),
    ]
    previous_secret: Annotated[
        SigningSecret | None,
        Field(description="A key that also signs, while receivers change from it to the new one."),
    ] = None
    ca_file: CaFile = None
    timeout_seconds: Annotated[
        float, Field(gt=0, le=300, description="How long one request may take, its answer included.")
    ] = 15.0
    parallel: Annotated[
        int, Field(ge=1, le=100, description="Most requests at once. Those of one key never are.")
    ] = 8

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.ca_file is not None and self.unprotected:
            raise ValueError("ca_file goes with https")
        return self

    def secrets(self) -> list[SecretStr]:
        return [each for each in (self.url, self.secret, self.previous_secret) if each is not None]


class RedisDestinationSettings(BridgeDestinationSettings):
    """A Redis server whose streams get the records: each is an entry of the stream that the publication names."""

    kind: Annotated[Literal["redis"], Field(description="Kind of the destination.")]
    url: Annotated[
        SecretStr,
        _address("redis", "rediss"),
        Field(description="Address: redis://USER:PASSWORD@HOST:PORT/DB, or rediss:// with TLS."),
    ]
    length_max: Annotated[
        int | None,
        Field(
            ge=1,
            description="About how many entries a stream keeps; the oldest are removed. Default: all.",
        ),
    ] = None


class AmqpDestinationSettings(BridgeDestinationSettings):
    """A broker of AMQP 0-9-1, such as RabbitMQ. The routing key is the name that the publication gives."""

    kind: Annotated[Literal["amqp"], Field(description="Kind of the destination.")]
    url: Annotated[
        SecretStr,
        _address("amqps", "amqp"),
        Field(description="Address: amqps://USER:PASSWORD@HOST:PORT/VHOST; %2F is the virtual host /."),
    ]
    exchange: Annotated[
        str,
        Field(max_length=255, description="Exchange. Default: that which leads to the queue of the name."),
    ] = ""
    ca_file: CaFile = None


class Amqp1DestinationSettings(BridgeDestinationSettings):
    """A broker of AMQP 1.0, such as ActiveMQ Artemis. The subject is the name that the publication gives."""

    kind: Annotated[Literal["amqp1"], Field(description="Kind of the destination.")]
    url: Annotated[
        SecretStr,
        _address("amqps", "amqp"),
        Field(description="Address of the broker: amqps://USER:PASSWORD@HOST:PORT."),
    ]
    address: Annotated[
        str,
        Field(
            min_length=1,
            max_length=1024,
            description="Where messages go in the broker; {name} is the name that the publication gives.",
        ),
    ] = "{name}"
    ca_file: CaFile = None


class NatsDestinationSettings(BridgeDestinationSettings):
    """A NATS server with JetStream. The subject is the name that the publication gives; a stream must take it."""

    kind: Annotated[Literal["nats"], Field(description="Kind of the destination.")]
    url: Annotated[
        SecretStr,
        _address("tls", "nats"),
        Field(description="Address: tls://USER:PASSWORD@HOST:PORT, or nats:// without TLS."),
    ]
    credentials_file: Annotated[
        Path | None, Field(description="File of credentials (JWT and seed), as nsc writes it.")
    ] = None
    ca_file: CaFile = None


class SqsDestinationSettings(BridgeDestinationSettings):
    """A queue of Amazon SQS. Credentials are those that AWS' SDK finds."""

    kind: Annotated[Literal["sqs"], Field(description="Kind of the destination.")]
    url: Annotated[
        SecretStr,
        _address("https", "http"),
        Field(description="Address of the queue. The name of a FIFO queue ends with .fifo."),
    ]
    region: Annotated[
        str | None, Field(description="Region of the queue. Default: as AWS' SDK finds it.")
    ] = None
    endpoint: Annotated[
        str | None, Field(description="Address of another server that speaks SQS. Default: the region's.")
    ] = None


class KinesisDestinationSettings(Frozen):
    """Streams of Amazon Kinesis. The stream is the name that the publication gives. Credentials are those that AWS' SDK
    finds."""

    kind: Annotated[Literal["kinesis"], Field(description="Kind of the destination.")]
    region: Annotated[
        str | None, Field(description="Region of the streams. Default: as AWS' SDK finds it.")
    ] = None
    endpoint: Annotated[
        str | None, Field(description="Address of another server that speaks Kinesis. Default: the region's.")
    ] = None

    @property
    def unprotected(self) -> tuple[str, str] | None:
        """What others on the network see."""
        if self.endpoint is None or urlsplit(self.endpoint).scheme in _ENCRYPTED:
            return None
        return "records go through the network as they are", "use an address with TLS where others can listen"

    def secrets(self) -> list[SecretStr]:
        return []


_CLASS = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")


def _class(text: str) -> str:
    if not _CLASS.fullmatch(text):
        raise ValueError("must be package.module:Class")
    return text


class OwnDestinationSettings(Frozen):
    """A system that a bridge of your own sends to."""

    kind: Annotated[Literal["own"], Field(description="Kind of the destination.")]
    bridge: Annotated[
        str, AfterValidator(_class), Field(description="Class of the bridge: package.module:Class.")
    ]
    options: Annotated[
        dict[str, str], Field(description="What the class is called with, as a mapping of texts.")
    ] = {}
    secret_options: Annotated[
        dict[str, SecretStr], Field(description="More of them, which are never shown: passwords, tokens.")
    ] = {}
    folder: Annotated[
        Path,
        Field(description="Folder that its module is imported from. Default: that of the configuration."),
    ] = Path()

    @property
    def all_options(self) -> dict[str, str]:
        """Both kinds, as the class gets them."""
        return {
            **self.options,
            **{name: each.get_secret_value() for name, each in self.secret_options.items()},
        }

    @property
    def unprotected(self) -> tuple[str, str] | None:
        """What others on the network see: the bridge knows, we do not."""
        return None

    def secrets(self) -> list[SecretStr]:
        return list(self.secret_options.values())


BridgeSettings = (
    WebhookDestinationSettings
    | RedisDestinationSettings
    | AmqpDestinationSettings
    | Amqp1DestinationSettings
    | NatsDestinationSettings
    | SqsDestinationSettings
    | KinesisDestinationSettings
    | OwnDestinationSettings
)
DestinationSettings = KafkaDestinationSettings | BridgeSettings
DESTINATION_KINDS: Mapping[str, type[DestinationSettings]] = {
    "kafka": KafkaDestinationSettings,
    "webhook": WebhookDestinationSettings,
    "redis": RedisDestinationSettings,
    "amqp": AmqpDestinationSettings,
    "amqp1": Amqp1DestinationSettings,
    "nats": NatsDestinationSettings,
    "sqs": SqsDestinationSettings,
    "kinesis": KinesisDestinationSettings,
    "own": OwnDestinationSettings,
}


def _kind_of(destination: Any) -> Any:
    """What decides which settings a destination's table has."""
    return destination.get("kind") if isinstance(destination, dict) else getattr(destination, "kind", None)


AnyDestination = Annotated[
    Annotated[KafkaDestinationSettings, Tag("kafka")]
    | Annotated[WebhookDestinationSettings, Tag("webhook")]
    | Annotated[RedisDestinationSettings, Tag("redis")]
    | Annotated[AmqpDestinationSettings, Tag("amqp")]
    | Annotated[Amqp1DestinationSettings, Tag("amqp1")]
    | Annotated[NatsDestinationSettings, Tag("nats")]
    | Annotated[SqsDestinationSettings, Tag("sqs")]
    | Annotated[KinesisDestinationSettings, Tag("kinesis")]
    | Annotated[OwnDestinationSettings, Tag("own")],
    Discriminator(_kind_of),
]
