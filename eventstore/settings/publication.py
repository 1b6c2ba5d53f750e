"""What is published to other systems: where to, which topics, and in which form."""

from __future__ import annotations

import re
from string import Formatter
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, model_validator

from tailrace.eventstore.settings.base import Frozen, Name
from tailrace.eventstore.settings.kafka import KafkaConnectionSettings
from tailrace.eventstore.settings.store import Seconds

Format = Literal["debezium", "rows", "json", "cloudevents", "cloudevents-binary"]
NAME_PARTS = ("topic", "source", "schema", "table", "category", "projection")
_KAFKA_NAME = re.compile(r"[A-Za-z0-9._\-]*")
_TEST = dict.fromkeys(NAME_PARTS, "x")


def _template(text: str) -> str:
    try:
        fields = {field for _, field, *_ in Formatter().parse(text) if field is not None}
        filled = text.format(**_TEST) if fields <= _TEST.keys() else None
    except (ValueError, IndexError, KeyError):
        filled = None
    if not filled or not _KAFKA_NAME.fullmatch(filled):
        raise ValueError(
            "must be a name of letters, digits, '.', '_' and '-', and of {topic}, {source}, {schema}, {table},"
            " {category} and {projection}"
        )
    return text


class KafkaDestinationSettings(KafkaConnectionSettings):
    """A Kafka cluster that publications send to."""

    kind: Annotated[Literal["kafka"], Field(description="Kind of the destination.")]


class PublicationSettings(Frozen):
    """Topics of the log, or the result of a projection, that are published to a destination: to Kafka exactly once,
    elsewhere at least once."""

    destination: Annotated[Name, Field(description="Where to: a table [destinations.NAME].")]
    topics: Annotated[
        tuple[str, ...],
        Field(
            description="Topics of the log: names and patterns with * and ?. ! begins an exclusion. Either these or"
            " a projection.",
        ),
    ] = ()
    projection: Annotated[
        str | None,
        Field(description="Projection whose rows are published, to Kafka alone. Default: none."),
    ] = None
    format: Annotated[
        Format,
        Field(
            description="What records hold. Of tables: debezium, the envelope of its JSON without schema, or rows, the"
            " row alone. Of domain events: json, cloudevents (structured) or cloudevents-binary. A projection has rows."
        ),
    ] = "debezium"
    topic: Annotated[
        str,
        AfterValidator(_template),
        Field(
            description="How each topic is called there: Kafka's topic; what a bridge names after it. {topic} is"
            " SOURCE.SCHEMA.TABLE or SOURCE.CATEGORY, of a projection its name; the parts have names of their own."
        ),
    ] = "{topic}"
    partitions: Annotated[
        int | None,
        Field(
            ge=1,
            description="Partitions of a Kafka topic that is made; one that is there must have as many. Default: the"
            " cluster's default, and any number.",
        ),
    ] = None
    replication: Annotated[
        int | None,
        Field(ge=1, description="Replicas of a Kafka topic that is made. Default: the cluster's default."),
    ] = None
    compact: Annotated[
        bool, Field(description="Whether a Kafka topic that is made keeps the last record of each key.")
    ] = False
    dead_letter: Annotated[
        str | None,
        Field(
            pattern=r"^[A-Za-z0-9._\-]{1,249}$",
            description="Kafka topic to which records that wait go, too, with where they are from and why they wait."
            " Default: none.",
        ),
    ] = None
    transaction_bytes: Annotated[
        int | None,
        Field(
            ge=1,
            description="A transaction of Kafka, or what is sent before the position is stored, ends with the epoch"
            " that makes it this large. Default: 16 MiB; without transactions 1 MiB.",
        ),
    ] = None
    transaction_seconds: Annotated[
        float,
        Field(gt=0, description="… or with the epoch that is read so many seconds after the first one."),
    ] = 5.0
    retention_waits: Annotated[
        Seconds,
        Field(
            description="Time that retention keeps rows for a publication that stands still: seconds, or a text as 7d."
            " 0: it does not wait."
        ),
    ] = 7 * 86_400.0

    @model_validator(mode="after")
    def _either(self) -> PublicationSettings:
        if (self.projection is None) == (not self.topics):
            raise ValueError("must name either topics or a projection")
        if self.projection is not None and "format" in self.model_fields_set and self.format != "rows":
            raise ValueError("a projection is published as rows: leave format out")
        return self

    @property
    def for_kafka(self) -> tuple[str, ...]:
        """Settings that only a Kafka cluster has, where they are not the default."""
        given = {
            "partitions": self.partitions is not None,
            "replication": self.replication is not None,
            "compact": self.compact,
            "dead_letter": self.dead_letter is not None,
            "projection": self.projection is not None,
        }
        return tuple(name for name, is_given in given.items() if is_given)
