"""What settings say of a topic of plain JSON, and the versions of its schema that follow."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import StrEnum

from tailrace.cdc.kafka.decoding.protection import protected
from tailrace.cdc.policy.policies import Policies
from tailrace.eventstore.errors import OperatorError
from tailrace.eventstore.model.schema import TopicSchema
from tailrace.eventstore.model.topic import TopicId


class KeyFormat(StrEnum):
    JSON = "json"  # of an object with the key's columns, or of the only column
    TEXT = "text"  # of the only column
    VALUE = "value"  # the record's key says nothing


@dataclass(frozen=True, slots=True)
class PlainDeclaration:
    """``table``: columns and key. ``events``: a record is one more row; otherwise the row of its key. ``closed``: a
    record has no other members than the columns. ``unit``: how many µs a number counts in a column of moments.
    ``policies``: what is made of columns' values before they are written."""

    table: TopicSchema
    events: bool = False
    key_format: KeyFormat = KeyFormat.JSON
    closed: bool = True
    unit: float | None = None
    policies: Policies = field(default_factory=Policies)


def schema_of(
    topic: TopicId, declared: TopicSchema, latest: TopicSchema | None, policies: Policies
) -> TopicSchema:
    """The version that the declaration makes; ``latest`` if that is the same. A column is known by its name, so its
    place among the declared ones does not matter. Raises OperatorError where the key is another one, and for a
    policy that a column cannot have."""
    before = {column.name: column for column in latest.sent} if latest else {}
    number = max((column.id for column in before.values()), default=0)
    columns = []
    for column in declared.columns:
        known = before.get(column.name)
        number += known is None
        columns.append(replace(column, id=known.id if known else number, key=column.key or declared.bag))
    names = {column.name for column in columns}
    schema = TopicSchema(
        version=1,
        columns=tuple(sorted(columns, key=lambda column: column.id)),
        bag=declared.bag,
        left_out=tuple(replace(column, key=False) for name, column in before.items() if name not in names),
    )
    schema = protected(topic, schema, latest, policies)
    if latest is None:
        return schema
    if _key(latest) != _key(schema):
        raise OperatorError(
            f"{topic}: its key was {_key(latest)}, and is declared as {_key(schema)}",
            hint="rows of one topic of the log have one key: declare it as it was, or give the topic of Kafka to a"
            " source of another name",
        )
    same = replace(schema, version=latest.version, from_lsn=latest.from_lsn) == latest
    return latest if same else replace(schema, version=latest.version + 1)


def _key(schema: TopicSchema) -> str:
    return "none" if schema.bag else ", ".join(sorted(column.name for column in schema.key))
