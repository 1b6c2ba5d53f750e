"""Kafka topics that a producer of one's own writes: JSON of which settings say the columns."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from tailrace.eventstore.settings.base import Frozen


class PlainTopic(Frozen):
    """A Kafka topic of plain JSON, by its name: one object a record, whose members are the columns."""

    columns: Annotated[
        dict[str, str],
        Field(min_length=1, description="Columns, each with its type as Postgres writes it."),
    ]
    key: Annotated[tuple[str, ...], Field(description="Columns of the key. Default: there is none.")] = ()
    records: Annotated[
        Literal["rows", "events"],
        Field(
            description="What a record is: the row of its key after a change, of which no value is the delete; or one"
            " more row, which nothing changes."
        ),
    ] = "rows"
    key_format: Annotated[
        Literal["json", "text", "value"],
        Field(
            description="Where the key is: in the record's key, as a JSON object or the JSON of the only column; there"
            " as the text of the only column; or in the value alone."
        ),
    ] = "json"
    unknown_fields: Annotated[
        Literal["refuse", "ignore"],
        Field(description="A record with a member that is no column: cannot be read, or is read without it."),
    ] = "refuse"
    numbers_as_times: Annotated[
        Literal["refuse", "seconds", "milliseconds", "microseconds", "nanoseconds"],
        Field(
            description="A number in a column of a timestamp: cannot be read, or counts these units since 1970 UTC."
        ),
    ] = "refuse"
    table: Annotated[
        str | None,
        Field(
            pattern=r"^[^.]+\.[^.]+$",
            description="SCHEMA.TABLE of the topic in the log. Default: kafka and the name of the Kafka topic.",
        ),
    ] = None

    @model_validator(mode="after")
    def _key_can_be_found(self) -> Self:
        unknown = [name for name in self.key if name not in self.columns]
        if unknown:
            raise ValueError(f"key names {', '.join(unknown)}, which columns does not have")
        if not self.key and self.records == "rows":
            raise ValueError('rows need a key: name its columns, or say records = "events"')
        if self.key_format == "text" and len(self.key) != 1:
            raise ValueError('key_format = "text" is for a key of one column')
        return self


class OutboxSettings(Frozen):
    """Topics of Debezium's outbox event router, whose records become domain events."""

    topics: Annotated[
        tuple[str, ...],
        Field(
            min_length=1,
            description="Names and patterns of Kafka topics. What the * of one stands for is the category of its"
            " events; a name without one is a category.",
        ),
    ] = ("outbox.event.*",)
    additional_placement: Annotated[
        str,
        Field(
            description="The router's table.fields.additional.placement, as the connector has it: where records have"
            " which columns of the outbox table."
        ),
    ]
    type_column: Annotated[str, Field(description="Column with the type of an event.")] = "type"
    version_column: Annotated[
        str | None,
        Field(
            description="Column with an event's version in its stream. Default: the offset of its record in Kafka + 1."
        ),
    ] = None
    schema_version_column: Annotated[
        str | None, Field(description="Column with the version of an event's type. Default: it is 1.")
    ] = None
    remembered_events: Annotated[
        int,
        Field(
            ge=1,
            le=10_000_000,
            description="So many of a topic's latest events are told from ones that come again, by their ids; each"
            " costs about 20 bytes of memory.",
        ),
    ] = 1_000_000

    @model_validator(mode="after")
    def _columns_are_placed(self) -> Self:
        placed = self.placed
        for name in (self.type_column, self.version_column, self.schema_version_column):
            if name is not None and name not in placed:
                raise ValueError(
                    f"additional_placement does not say where records have column {name}: let the router place it,"
                    f' such as "{name}:header:{name}"'
                )
        many = [each for each in self.topics if each.count("*") > 1 or "?" in each or "[" in each]
        if many:
            raise ValueError(f"a pattern has one *, which stands for the category: {', '.join(many)}")
        return self

    @property
    def placed(self) -> dict[str, tuple[str, str]]:
        """By column of the outbox table: ``header`` or ``envelope``, and its name there. Raises ValueError."""
        found = {}
        for text in filter(None, (each.strip() for each in self.additional_placement.split(","))):
            column, *where = text.split(":")
            if not column or not 1 <= len(where) <= 2 or where[0] not in ("header", "envelope", "partition"):
                raise ValueError(f"{text!r} is no COLUMN:header or COLUMN:envelope, with :NAME behind it")
            if where[0] != "partition":
                found[column] = (where[0], where[-1] if len(where) == 2 else column)
        return found

    def category(self, name: str) -> str | None:
        """Of the events of a Kafka topic; None: it is none of the router's."""
        for pattern in self.topics:
            before, star, behind = pattern.partition("*")
            if not star and name == pattern:
                return name
            if (
                star
                and name.startswith(before)
                and name.endswith(behind)
                and len(name) > len(before + behind)
            ):
                return name[len(before) : len(name) - len(behind)]
        return None
