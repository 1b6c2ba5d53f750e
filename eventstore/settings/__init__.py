"""Typed settings: what ``tailrace.toml`` holds, as frozen values. Reading the file is ``tailrace.config.load``'s
work.

May import the model, and what may be said of a secret.
"""

from tailrace.eventstore.settings.base import MIB
from tailrace.eventstore.settings.column_policies import HASH_KEY_BYTES_MIN
from tailrace.eventstore.settings.destinations import (
    DESTINATION_KINDS,
    Amqp1DestinationSettings,
    AmqpDestinationSettings,
    BridgeSettings,
    DestinationSettings,
    KinesisDestinationSettings,
    NatsDestinationSettings,
    OwnDestinationSettings,
    RedisDestinationSettings,
    SqsDestinationSettings,
    WebhookDestinationSettings,
    signing_key,
)
from tailrace.eventstore.settings.environment import (
    SINK_ADDRESS,
    SOURCE_KINDS,
    MetricsSettings,
    OnUnfollowed,
    ProjectionSettings,
    Settings,
    SinkKind,
    SinkSettings,
    SourceSettings,
    SparkSettings,
)
from tailrace.eventstore.settings.kafka import KafkaConnectionSettings
from tailrace.eventstore.settings.kafka_source import (
    ConnectorSettings,
    DeclaredTable,
    KafkaSourceSettings,
    RegistrySettings,
)
from tailrace.eventstore.settings.kafka_topics import OutboxSettings, PlainTopic
from tailrace.eventstore.settings.postgres_source import MESSAGE_BYTES_MIN, PostgresSourceSettings
from tailrace.eventstore.settings.publication import KafkaDestinationSettings, PublicationSettings
from tailrace.eventstore.settings.store import (
    OBJECTS,
    PARTITIONS_MAX,
    ObjectStoreSettings,
    StoreSettings,
    TopicSettings,
    UpkeepSettings,
)

__all__ = [
    "DESTINATION_KINDS",
    "HASH_KEY_BYTES_MIN",
    "MESSAGE_BYTES_MIN",
    "MIB",
    "OBJECTS",
    "PARTITIONS_MAX",
    "SINK_ADDRESS",
    "SOURCE_KINDS",
    "Amqp1DestinationSettings",
    "AmqpDestinationSettings",
    "BridgeSettings",
    "ConnectorSettings",
    "DeclaredTable",
    "DestinationSettings",
    "KafkaConnectionSettings",
    "KafkaDestinationSettings",
    "KafkaSourceSettings",
    "KinesisDestinationSettings",
    "MetricsSettings",
    "NatsDestinationSettings",
    "ObjectStoreSettings",
    "OnUnfollowed",
    "OutboxSettings",
    "OwnDestinationSettings",
    "PlainTopic",
    "PostgresSourceSettings",
    "ProjectionSettings",
    "PublicationSettings",
    "RedisDestinationSettings",
    "RegistrySettings",
    "Settings",
    "SinkKind",
    "SinkSettings",
    "SourceSettings",
    "SparkSettings",
    "SqsDestinationSettings",
    "StoreSettings",
    "TopicSettings",
    "UpkeepSettings",
    "WebhookDestinationSettings",
    "signing_key",
]
