"""How the records of each of a source's tables are read: by what settings or Postgres' catalog say of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Self

import pyarrow as pa

from tailrace.cdc.kafka.decoded import Decoded, Place
from tailrace.cdc.kafka.decoding.decode import decode
from tailrace.cdc.kafka.decoding.outbox.decode import decode_outbox
from tailrace.cdc.kafka.decoding.outbox.events import OutboxDeclaration
from tailrace.cdc.kafka.decoding.plain.declaration import KeyFormat, PlainDeclaration
from tailrace.cdc.kafka.decoding.plain.decode import decode_plain
from tailrace.cdc.kafka.decoding.records import in_topic_name
from tailrace.cdc.kafka.decoding.types import declared_table
from tailrace.cdc.kafka.registry.schemas import SchemaRegistry, schemas_of
from tailrace.cdc.kafka.topics.declaration import (
    BinaryMode,
    DecimalMode,
    Declaration,
    Form,
    HstoreMode,
    IntervalMode,
    Modes,
    TimeMode,
)
from tailrace.cdc.kafka.topics.routes import plain_table
from tailrace.cdc.policy.policies import Policies
from tailrace.cdc.postgres.connect import Address, connect
from tailrace.cdc.postgres.tables import Table, read_tables
from tailrace.eventstore.model.schema import TopicSchema
from tailrace.eventstore.model.topic import TopicId
from tailrace.eventstore.settings import ConnectorSettings, KafkaSourceSettings, OutboxSettings, PlainTopic

_FULL_IDENTITY = "f"
_UNITS = {"seconds": 1_000_000, "milliseconds": 1000, "microseconds": 1, "nanoseconds": 0.001}  # µs


@dataclass(frozen=True, slots=True)
class TableDecoder:
    """Calls are ``epoch.Decode``. ``declarations`` by SCHEMA.TABLE, as it is in the topic's name; the other tables'
    records tell by their schema. ``plain``: topics of plain JSON, by schema and table in the log; ``outbox``: those of
    domain events. ``registry``: of schemas of records in Avro."""

    declarations: Mapping[str, Declaration]
    otherwise: Declaration
    registry: SchemaRegistry | None = None
    plain: Mapping[tuple[str, ...], PlainDeclaration] = field(default_factory=dict)
    outbox: OutboxDeclaration | None = None

    @classmethod
    def of(cls, settings: KafkaSourceSettings, policies: Policies | None = None) -> Self:
        """``policies``: with what the log knows; default: those of the settings alone.

        Asks the Postgres that ``catalog_dsn`` names. Raises UsageError on a type that is not known, OperatorError,
        TransientError (out of reach)."""
        form = Form.ENVELOPE if settings.format == "debezium" else Form.FLATTENED
        modes = _modes(settings.connector)
        given = policies or policies_of(settings)
        placeholder = settings.connector.unavailable_value_placeholder

        def declaration(table: TopicSchema | None, *, full_identity: bool = False) -> Declaration:
            return Declaration(form, table, modes, full_identity, placeholder, given)

        found = {
            in_topic_name(table.text): declaration(
                # Debezium's snapshots send generated columns, its stream does not.
                replace(table.topic_schema(1), left_out=table.generated),
                full_identity=table.identity == _FULL_IDENTITY,
            )
            for table in _catalog_tables(settings)
        }
        for label, table in settings.tables.items():
            schema = declared_table(table.columns, table.key, label)
            found[in_topic_name(label)] = declaration(schema, full_identity=table.full_identity)
        registry = SchemaRegistry.of(settings.registry) if settings.registry else None
        plain: dict[tuple[str, ...], PlainDeclaration] = {
            plain_table(name, each): _plain(name, each, given) for name, each in settings.plain.items()
        }
        outbox = _outbox(settings.outbox) if settings.outbox else None
        return cls(found, declaration(None), registry, plain, outbox)

    def __call__(
        self, topic: TopicId, latest: TopicSchema | None, records: pa.Table, place: Place
    ) -> Decoded:
        plain = self.plain.get(topic.parts[1:])
        if plain is not None:
            return decode_plain(records, topic, plain, latest, place)
        if self.outbox is not None and topic.is_events:
            return decode_outbox(records, topic, self.outbox, latest, place)
        declared = self.declarations.get(".".join(topic.parts[1:]), self.otherwise)
        return decode(records, topic, declared, latest, place, schemas_of(self.registry, records))


def policies_of(settings: KafkaSourceSettings) -> Policies:
    """Names of schemas and tables are as they are in names of topics."""
    return Policies.of(settings, in_topic_name)


def _plain(name: str, topic: PlainTopic, policies: Policies) -> PlainDeclaration:
    return PlainDeclaration(
        declared_table(topic.columns, topic.key, name),
        events=topic.records == "events",
        key_format=KeyFormat(topic.key_format),
        closed=topic.unknown_fields == "refuse",
        unit=_UNITS.get(topic.numbers_as_times),
        policies=policies,
    )


def _outbox(outbox: OutboxSettings) -> OutboxDeclaration:
    places = outbox.placed
    headers, envelope = (
        {name: column for column, (where, name) in places.items() if where == kind}
        for kind in ("header", "envelope")
    )
    return OutboxDeclaration(
        headers, envelope, outbox.type_column, outbox.version_column, outbox.schema_version_column
    )


def _catalog_tables(settings: KafkaSourceSettings) -> list[Table]:
    if settings.catalog_dsn is None:
        return []
    address = Address.parse(settings.catalog_dsn.get_secret_value())
    with connect(address, "tailrace capture") as connection:
        return list(read_tables(connection, address))


def _modes(connector: ConnectorSettings) -> Modes:
    return Modes(
        DecimalMode(connector.decimal_handling_mode),
        TimeMode(connector.time_precision_mode),
        BinaryMode(connector.binary_handling_mode),
        IntervalMode(connector.interval_handling_mode),
        HstoreMode(connector.hstore_handling_mode),
    )
