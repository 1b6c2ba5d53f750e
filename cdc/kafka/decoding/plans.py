"""How the values of one kind of record become columns of the topic: one plan for each schema that records have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from tailrace.cdc.kafka.decoding.fields import Field, field_of
from tailrace.cdc.kafka.decoding.protection import protected
from tailrace.cdc.kafka.decoding.types import told_column
from tailrace.cdc.kafka.decoding.values.cells import Reader
from tailrace.cdc.kafka.decoding.values.columns import null_if_unsent, placeholders, reader_of
from tailrace.cdc.kafka.topics.declaration import Declaration
from tailrace.eventstore.errors import OperatorError
from tailrace.eventstore.model.schema import Column, TopicSchema
from tailrace.eventstore.model.topic import TopicId, TopicKind

Fields = Mapping[str, Field]


@dataclass(frozen=True, slots=True)
class Plan:
    """``schema`` and, by its columns: how their values are read, what stands for one that was not sent, and whether
    that may be a null."""

    schema: TopicSchema
    readers: tuple[Reader, ...]
    unsent: tuple[pa.Array | None, ...]
    ambiguous: tuple[bool, ...]


def make_plan(
    topic: TopicId,
    fields: Fields | None,
    key: Sequence[str],
    declaration: Declaration,
    latest: TopicSchema | None,
) -> Plan:
    """``fields``: those of the schema in the record, None when it has none. ``latest``: the version before it.

    Raises OperatorError when it is not known what a value means: it says which, and what to declare."""
    label = ".".join(topic.parts[1:])
    if fields is None:
        fields = declared_fields(topic, declaration)
    columns, left_out = _columns(fields, key, declaration.table, latest)
    missing = [name for name in key if name not in fields]
    if missing:
        raise OperatorError(
            f"{label}: {', '.join(missing)} of its key is in no record",
            hint="the connector must not leave out columns of the key",
        )
    if not key and not declaration.full_identity:
        raise OperatorError(
            f"{label} has no key",
            hint="declare its key; or, if the table has none, that it has REPLICA IDENTITY FULL",
        )
    schema = TopicSchema(
        version=1 if latest is None else latest.version,
        columns=columns,
        kind=declaration.table.kind if declaration.table else TopicKind.TABLE,
        relid=declaration.table.relid if declaration.table else 0,
        bag=not key,
        left_out=left_out,
    )
    schema = protected(topic, schema, latest, declaration.policies)
    if latest is not None and schema != replace(latest, from_lsn=0):
        schema = replace(schema, version=latest.version + 1)
    elif latest is not None:
        schema = latest
    pairs = [(column, fields[column.name]) for column in schema.columns]
    return Plan(
        schema,
        tuple(reader_of(column, field, declaration.modes, label) for column, field in pairs),
        tuple(_value_set(field, declaration.placeholder) for _, field in pairs),
        tuple(
            not declaration.full_identity and null_if_unsent(column, field, declaration.modes)
            for column, field in pairs
        ),
    )


def declared_fields(topic: TopicId, declaration: Declaration) -> Fields:
    if declaration.table is None:
        raise OperatorError(
            f"records of {topic} come without a schema, and nothing says which columns and types its table has",
            hint="name the Postgres in catalog_dsn, or declare the table's columns and key",
        )
    found = {column.name: field_of(column, declaration.modes) for column in declaration.table.columns}
    return {name: field for name, field in found.items() if field is not None}


def _columns(
    fields: Fields, key: Sequence[str], table: TopicSchema | None, latest: TopicSchema | None
) -> tuple[tuple[Column, ...], tuple[Column, ...]]:
    """Columns of the topic, and those of which only the identity is known: of the table, but in no record; or that
    records had before, so that their numbers are not given again."""
    before = {column.name: column for column in latest.sent} if latest else {}
    known = _known_columns(table, before) if table else {}
    left_out = {column.name for column in table.left_out} if table else set()
    fields = {name: field for name, field in fields.items() if name not in left_out}
    is_key = set(key) if key else set(fields)
    number = max((column.id for each in (known, before) for column in each.values()), default=0)
    columns = []
    for name, field in fields.items():
        column = known.get(name)
        if column is None:
            earlier = before.get(name)
            number += earlier is None
            column = told_column(earlier.id if earlier else number, name, field, False)
        columns.append(replace(column, key=name in is_key))
    ids = {column.id for column in columns}
    rest = {column.id: replace(column, key=False) for each in (before, known) for column in each.values()}
    return (
        tuple(sorted(columns, key=lambda column: column.id)),
        tuple(column for number, column in sorted(rest.items()) if number not in ids),
    )


def _known_columns(table: TopicSchema, before: Mapping[str, Column]) -> dict[str, Column]:
    """The columns of a table by name. Settings say their order and no numbers: one that was there before has its own,
    and a new one has another than all of those."""
    if table.relid or not before:
        return {column.name: column for column in table.sent}
    number = max(column.id for column in before.values())
    found = {}
    for column in table.sent:
        number += column.name not in before
        found[column.name] = replace(column, id=before[column.name].id if column.name in before else number)
    return found


def _value_set(field: Field, placeholder: str) -> pa.Array | None:
    found = placeholders(field, placeholder)
    return pa.array(sorted(found), pa.binary()) if found else None
