"""A Kafka cluster: its brokers, and who one is to them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, SecretStr, model_validator

from tailrace.eventstore.settings.base import Frozen

_BROKER = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._\-]+):([0-9]{1,5})")


def _broker(text: str) -> str:
    found = _BROKER.fullmatch(text)
    if found is None or not 0 < int(found[2]) < 1 << 16:
        raise ValueError("must be HOST:PORT")
    return text


Broker = Annotated[str, AfterValidator(_broker)]


class KafkaConnectionSettings(Frozen):
    """How brokers are reached. TLS checks the broker's certificate and its name."""

    brokers: Annotated[
        tuple[Broker, ...],
        Field(min_length=1, description="Brokers to begin with, as HOST:PORT; they name the others."),
    ]
    tls: Annotated[bool, Field(description="Whether connections are encrypted.")] = False
    ca_file: Annotated[
        Path | None,
        Field(
            description="File of the authorities that brokers' certificates are from. Default: the system's."
        ),
    ] = None
    certificate: Annotated[Path | None, Field(description="File of our own certificate, PEM.")] = None
    certificate_key: Annotated[Path | None, Field(description="File of its private key, PEM.")] = None
    certificate_key_password: Annotated[SecretStr | None, Field(description="Password of that key.")] = None
    sasl: Annotated[
        Literal["plain", "scram-sha-256", "scram-sha-512"] | None,
        Field(description="How the password is given to a broker. Default: there is none."),
    ] = None
    username: Annotated[str | None, Field(description="User that sasl names.")] = None
    password: Annotated[SecretStr | None, Field(description="Password of that user.")] = None
    allow_unencrypted_password: Annotated[
        bool, Field(description='Whether sasl = "plain" may send the password without TLS.')
    ] = False

    @model_validator(mode="after")
    def _can_be_kept(self) -> Self:
        if self.sasl is not None and (self.username is None or self.password is None):
            raise ValueError(f'sasl = "{self.sasl}" needs username and password')
        if self.sasl is None and (self.username is not None or self.password is not None):
            raise ValueError("username and password go with sasl")
        if (self.certificate is None) != (self.certificate_key is None):
            raise ValueError("certificate and certificate_key go together")
        if not self.tls and (self.ca_file is not None or self.certificate is not None):
            raise ValueError("ca_file and certificate go with tls = true")
        if self.sasl == "plain" and not self.tls and not self.allow_unencrypted_password:
            raise ValueError(
                'sasl = "plain" sends the password as it is: set tls = true, or say that the network may see it with '
                "allow_unencrypted_password = true"
            )
        return self
