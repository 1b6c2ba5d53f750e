"""Can a topic go on with what native capture brings, or must its table be read again? Pure.

It goes on with the same columns: each has its name, its number in the table and its type as Arrow has it, and the key
is the same. Then rows of before and of after are rows of one topic, and their keys have the same hashes.
"""

from __future__ import annotations

from dataclasses import replace

from tailrace.eventstore.model.schema import Column, TopicSchema


def difference(before: TopicSchema, table: TopicSchema) -> str:
    """Why rows of ``before`` are not rows of the table; "" when they are. A column that is gone is no difference."""
    known = {column.name: column for column in before.columns}
    missing = [column.name for column in table.columns if column.name not in known]
    if missing:
        return f"Kafka has no column {', '.join(missing)} of it"
    if any(column.policy for column in before.columns):
        return "column policies protect values of it, and native capture goes by its own"
    other = [column.name for column in table.columns if not _same(known[column.name], column)]
    if other:
        return f"{', '.join(other)} came from Kafka as another type, or in another place"
    if before.bag != table.bag or _key(before) != _key(table):
        return "it has another key than in Kafka"
    return ""


def next_version(before: TopicSchema, table: TopicSchema, lsn: int) -> TopicSchema:
    """The table's columns as the topic's next version; the version it has when it is that."""
    found = replace(table, version=before.version, from_lsn=before.from_lsn)
    return before if found == before else replace(found, version=before.version + 1, from_lsn=lsn)


def _same(before: Column, now: Column) -> bool:
    return before.id == now.id and before.arrow == now.arrow


def _key(schema: TopicSchema) -> list[tuple[int, str]]:
    return [(column.id, column.name) for column in schema.key]
