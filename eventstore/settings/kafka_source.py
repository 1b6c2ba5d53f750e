"""A Kafka cluster whose topics hold the changes of tables."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, SecretStr, model_validator

from tailrace.eventstore.settings.base import MIB, Frozen
from tailrace.eventstore.settings.column_policies import ColumnPolicies, HashKey, require_hash_key
from tailrace.eventstore.settings.kafka import KafkaConnectionSettings
from tailrace.eventstore.settings.kafka_topics import OutboxSettings, PlainTopic


class DeclaredTable(Frozen):
    """What records without a schema do not say of their table."""

    columns: Annotated[
        dict[str, str],
        Field(
            min_length=1,
            description="Columns in the table's order, each with its type as Postgres writes it.",
        ),
    ]
    key: Annotated[
        tuple[str, ...], Field(description="Columns of the primary key. Default: there is none.")
    ] = ()
    full_identity: Annotated[
        bool, Field(description="Whether the table has REPLICA IDENTITY FULL, so that old rows are whole.")
    ] = False

    @model_validator(mode="after")
    def _key_is_of_columns(self) -> Self:
        unknown = [name for name in self.key if name not in self.columns]
        if unknown:
            raise ValueError(f"key names {', '.join(unknown)}, which columns does not have")
        return self


class ConnectorSettings(Frozen):
    """How Debezium's connector is configured: its own settings of these names. Records that carry their schema say most
    of it themselves."""

    decimal_handling_mode: Annotated[
        Literal["precise", "double", "string"], Field(description="How it writes numeric values.")
    ] = "precise"
    time_precision_mode: Annotated[
        Literal[
            "adaptive", "adaptive_time_microseconds", "connect", "isostring", "microseconds", "nanoseconds"
        ],
        Field(description="How it writes dates and times."),
    ] = "adaptive"
    binary_handling_mode: Annotated[
        Literal["bytes", "base64", "base64-url-safe", "hex"], Field(description="How it writes bytea values.")
    ] = "bytes"
    interval_handling_mode: Annotated[
        Literal["numeric", "string"], Field(description="How it writes intervals.")
    ] = "numeric"
    hstore_handling_mode: Annotated[
        Literal["json", "map"], Field(description="How it writes values of hstore.")
    ] = "json"
    unavailable_value_placeholder: Annotated[
        str, Field(description="What it writes for a long value that did not change.")
    ] = "__debezium_unavailable_value"


def _registry_url(text: str) -> str:
    parts = urlsplit(text)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
        raise ValueError(
            "must be http://HOST:PORT or https://HOST:PORT, with the path of its API if it has one"
        )
    if "@" in parts.netloc:
        raise ValueError("must be without a user: username and password are settings of their own")
    return text.rstrip("/")


class RegistrySettings(Frozen):
    """A schema registry with Confluent's API, as Confluent's own, Karapace, and Apicurio under /apis/ccompat/v7. TLS
    checks its certificate and its name."""

    url: Annotated[
        str, AfterValidator(_registry_url), Field(description="Its address; /schemas/ids/N is added to it.")
    ]
    username: Annotated[str | None, Field(description="User of the registry. Default: nobody.")] = None
    password: Annotated[SecretStr | None, Field(description="Password of that user.")] = None
    ca_file: Annotated[
        Path | None,
        Field(description="File of the authorities that its certificate is from. Default: the system's."),
    ] = None
    allow_unencrypted_password: Annotated[
        bool, Field(description="Whether the password may be sent to an address of http.")
    ] = False

    @model_validator(mode="after")
    def _can_be_kept(self) -> Self:
        encrypted = self.url.startswith("https:")
        if (self.username is None) != (self.password is None):
            raise ValueError("username and password go together")
        if self.ca_file is not None and not encrypted:
            raise ValueError("ca_file goes with an address of https")
        if self.password is not None and not encrypted and not self.allow_unencrypted_password:
            raise ValueError(
                "the password would go through the network as it is: take an address of https, or say that the network"
                " may see it with allow_unencrypted_password = true"
            )
        return self


class KafkaSourceSettings(KafkaConnectionSettings):
    """Topics of a Kafka cluster: those into which Debezium writes the changes of a Postgres database, and others."""

    kind: Annotated[Literal["kafka"], Field(description="Kind of the source.")]
    topics: Annotated[
        tuple[str, ...],
        Field(
            description="Kafka topics of Debezium to capture, as PREFIX.SCHEMA.TABLE: names and patterns with * and ?."
            " ! begins an exclusion.",
        ),
    ] = ()
    plain: Annotated[
        dict[str, PlainTopic], Field(description="Topics of plain JSON to capture, by their names in Kafka.")
    ] = {}
    outbox: Annotated[
        OutboxSettings | None,
        Field(description="Topics of Debezium's outbox event router, which become domain events."),
    ] = None
    format: Annotated[
        Literal["debezium", "debezium-flattened"],
        Field(description="What records hold: Debezium's envelope, or rows alone, by ExtractNewRecordState."),
    ] = "debezium"
    connector: Annotated[ConnectorSettings, Field(description="How Debezium's connector is configured.")] = (
        ConnectorSettings()
    )
    registry: Annotated[
        RegistrySettings | None,
        Field(description="Schema registry of records in Avro. Default: there are none, records are JSON."),
    ] = None
    transaction_topic: Annotated[
        str | None,
        Field(
            description="Topic of the connector's transaction metadata, PREFIX.transaction: epochs hold whole"
            " transactions then."
        ),
    ] = None
    without_snapshot: Annotated[
        Literal["incomplete", "complete"],
        Field(
            description="What a table is whose topic begins without a snapshot: incomplete until one comes, for it may"
            " have had rows before; or complete, for it had none, or all of them are in it, as `tailrace publish`"
            " writes them."
        ),
    ] = "incomplete"
    tables: Annotated[
        dict[str, DeclaredTable],
        Field(description="Columns and keys of tables whose records have no schema, by SCHEMA.TABLE."),
    ] = {}
    catalog_dsn: Annotated[
        SecretStr | None,
        Field(
            description="Connection string of the Postgres whose catalog says the tables' columns instead."
        ),
    ] = None
    columns: ColumnPolicies = {}
    hash_key: HashKey = None
    on_bad_record: Annotated[
        Literal["stop", "park"],
        Field(
            description="A record that cannot be read: stop capture, or go on and keep it to be tried again."
        ),
    ] = "stop"
    dead_letter: Annotated[
        str | None,
        Field(
            pattern=r"^[A-Za-z0-9._\-]{1,249}$",
            description="Kafka topic to which parked records go, too, with where they are from and why they wait."
            " Default: none.",
        ),
    ] = None
    offsets_group: Annotated[
        Annotated[str, Field(min_length=1, max_length=255)] | None,
        Field(
            description="Consumer group that is told how far each partition was read, for tools that show lag. It is"
            " never read back. Default: none is told."
        ),
    ] = None
    parked_bytes: Annotated[
        int,
        Field(
            ge=0,
            le=256 * MIB,
            description="Such a record is kept up to this size. A larger one is left in Kafka, where a retry reads it.",
        ),
    ] = MIB
    epoch_bytes: Annotated[
        int, Field(ge=1024, description="An epoch ends when its records have this size.")
    ] = 32 * MIB
    epoch_changes: Annotated[int, Field(ge=1, description="An epoch ends when it has this many records.")] = (
        200_000
    )
    linger_ms: Annotated[
        int, Field(ge=0, le=60_000, description="Milliseconds that an epoch waits for more records.")
    ] = 100

    @model_validator(mode="after")
    def _each_leads_somewhere(self) -> Self:
        if not self.topics and not self.plain and self.outbox is None:
            raise ValueError("name what to capture: topics of Debezium, plain ones, or an outbox")
        tables = {name: each.table or f"kafka.{name}" for name, each in self.plain.items()}
        owners = {table: name for name, table in tables.items()}
        for name, table in tables.items():
            if owners[table] != name:
                raise ValueError(f"plain topics {name} and {owners[table]} both lead to the table {table}")
        return self

    @model_validator(mode="after")
    def _dead_letters_are_parked(self) -> Self:
        if self.dead_letter is not None and self.on_bad_record != "park":
            raise ValueError('dead_letter goes with on_bad_record = "park"')
        return self

    @model_validator(mode="after")
    def _policies_can_be_kept(self) -> Self:
        require_hash_key(self.columns, self.hash_key)
        return self
