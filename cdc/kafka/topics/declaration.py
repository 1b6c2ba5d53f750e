"""What must be known of a table's Kafka topic to read its records: said in settings, by Postgres' catalog, or by the
records themselves."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from tailrace.cdc.policy.policies import Policies
from tailrace.eventstore.model.schema import TopicSchema
from tailrace.eventstore.model.topic import TopicKind

UNAVAILABLE = "__debezium_unavailable_value"


class DecimalMode(StrEnum):
    PRECISE = "precise"
    DOUBLE = "double"
    STRING = "string"


class TimeMode(StrEnum):
    ADAPTIVE = "adaptive"
    ADAPTIVE_TIME_MICROSECONDS = "adaptive_time_microseconds"
    CONNECT = "connect"
    ISOSTRING = "isostring"
    MICROSECONDS = "microseconds"
    NANOSECONDS = "nanoseconds"


class BinaryMode(StrEnum):
    BYTES = "bytes"
    BASE64 = "base64"
    BASE64_URL_SAFE = "base64-url-safe"
    HEX = "hex"


class IntervalMode(StrEnum):
    NUMERIC = "numeric"
    STRING = "string"


class HstoreMode(StrEnum):
    JSON = "json"
    MAP = "map"


@dataclass(frozen=True, slots=True)
class Modes:
    """The connector's settings ``*.handling.mode`` and ``time.precision.mode``. They count where records come without
    their schema."""

    decimal: DecimalMode = DecimalMode.PRECISE
    time: TimeMode = TimeMode.ADAPTIVE
    binary: BinaryMode = BinaryMode.BYTES
    interval: IntervalMode = IntervalMode.NUMERIC
    hstore: HstoreMode = HstoreMode.JSON


class Form(StrEnum):
    ENVELOPE = "envelope"  # {"before": …, "after": …, "source": …, "op": …}
    FLATTENED = "flattened"  # the row alone, by ExtractNewRecordState, with fields like __op and __deleted
    MESSAGES = "messages"  # logical messages, in the topic PREFIX.message


@dataclass(frozen=True, slots=True)
class Declaration:
    """How to read the records of one table.

    ``table``: the table's columns and key, from Postgres' catalog or from settings; None: the schema that each record
    carries tells. Columns that no record has are left out of the topic. What records say of columns that are left out
    here is ignored, as of generated ones, which only a snapshot sends. ``full_identity``: the table has REPLICA
    IDENTITY FULL, so old rows are whole; otherwise only their key is taken. ``placeholder``: the connector's
    ``unavailable.value.placeholder``. ``policies``: what is made of columns' values before they are written.

    Raises ValueError where the form is not that of the table's records: messages are no rows of a table.
    """

    form: Form = Form.ENVELOPE
    table: TopicSchema | None = None
    modes: Modes = field(default_factory=Modes)
    full_identity: bool = False
    placeholder: str = UNAVAILABLE
    policies: Policies = field(default_factory=Policies)

    def __post_init__(self) -> None:
        of_messages = self.table is not None and self.table.kind is TopicKind.MESSAGES
        if of_messages != (self.form is Form.MESSAGES):
            raise ValueError(f"records of the form {self.form.value} are not read as rows of this table")
