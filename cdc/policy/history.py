"""Under which names and policies the columns of a source have been protected, in all versions of all its topics. Pure.

A column is known by its table's oid and its attnum, whatever it and its table are called; and whatever has a name that
a protected column has had is protected too. So neither a rename nor a column dropped and added again lifts a policy.
Where nobody tells the oid (0, as in records of Kafka), the name alone counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Self

from tailrace.eventstore.model.info import InheritedPolicy
from tailrace.eventstore.model.schema import TopicSchema
from tailrace.eventstore.model.topic import TopicId, TopicKind

UNKNOWN = "drop:unknown"
"""The policy of a column that may be a protected one: it is left out as long as that is not known."""

Label = tuple[str, str]
Name = tuple[str, str, str]


@dataclass(frozen=True, slots=True)
class Partition:
    """A table that is part of another, directly or not: ``columns`` are attnum and name of each."""

    relid: int
    label: Label
    columns: tuple[tuple[int, str], ...]


@dataclass(frozen=True, slots=True)
class ProtectedColumn:
    """The policy that a column had last, and the names that it had while it was protected."""

    policy: str
    names: frozenset[Name]


@dataclass(frozen=True, slots=True)
class History:
    """``columns`` by table oid and attnum; ``names``: the policy of the column that had a name last; ``tables``: the
    labels of a table's topics by its oid."""

    columns: Mapping[tuple[int, int], ProtectedColumn] = field(default_factory=dict)
    names: Mapping[Name, str] = field(default_factory=dict)
    tables: Mapping[int, frozenset[Label]] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        versions: Iterable[tuple[TopicId, TopicSchema]],
        partitions: Mapping[int, Iterable[InheritedPolicy]] = MappingProxyType({}),
    ) -> Self:
        """``versions`` in the order in which the log got them. ``partitions``: by oid of a table that was one, what it
        has from its root."""
        found = cls({}, {}, {})
        for topic, schema in versions:
            found._add(topic, schema)
        for relid, columns in partitions.items():
            for each in columns:
                found._inherit(relid, each)
        return found

    def with_version(self, topic: TopicId, schema: TopicSchema) -> History:
        found = History(dict(self.columns), dict(self.names), dict(self.tables))
        found._add(topic, schema)
        return found

    def to_json(self) -> dict[str, Any]:
        """As a recording has it."""
        return {
            "columns": [[*key, column.policy, sorted(column.names)] for key, column in self.columns.items()],
            "names": [[*name, policy] for name, policy in self.names.items()],
            "tables": [[relid, sorted(labels)] for relid, labels in self.tables.items()],
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """Raises ValueError, TypeError and LookupError for anything that ``to_json`` does not make."""
        return cls(
            {
                (int(relid), int(number)): ProtectedColumn(str(policy), frozenset(map(_name, names)))
                for relid, number, policy, names in data["columns"]
            },
            {_name(name): str(policy) for *name, policy in data["names"]},
            {
                int(relid): frozenset((str(schema), str(table)) for schema, table in labels)
                for relid, labels in data["tables"]
            },
        )

    def labels(self, table: Label, relid: int) -> list[Label]:
        """All labels of a table: ``table`` first, which it has now."""
        return list(dict.fromkeys([table, *sorted(self.tables.get(relid, ()))]))

    def protected_ids(self, relid: int) -> frozenset[int]:
        return frozenset(number for table, number in self.columns if table == relid)

    def _inherit(self, relid: int, inherited: InheritedPolicy) -> None:
        """A policy of its own counts, too: the strictest of all names does."""
        assert isinstance(self.columns, dict) and isinstance(self.names, dict)
        before = self.columns.get((relid, inherited.number))
        names = (before.names if before else frozenset()) | {inherited.name}
        policy = before.policy if before else inherited.policy
        self.columns[relid, inherited.number] = ProtectedColumn(policy, names)
        self.names.setdefault(inherited.name, inherited.policy)

    def _add(self, topic: TopicId, schema: TopicSchema) -> None:
        if schema.kind is not TopicKind.TABLE:
            return
        assert isinstance(self.columns, dict) and isinstance(self.names, dict)
        assert isinstance(self.tables, dict)
        label = (topic.parts[1], topic.parts[2])
        if not schema.relid:
            self._add_names(label, schema)
            return
        self.tables[schema.relid] = self.tables.get(schema.relid, frozenset()) | {label}
        for column in schema.sent:
            key, name = (schema.relid, column.id), (*label, column.name)
            before = self.columns.get(key)
            if column.policy == UNKNOWN:
                continue
            if column.policy:
                names = (before.names if before else frozenset()) | {name}
                self.columns[key] = ProtectedColumn(column.policy, names)
                self.names.update(dict.fromkeys(names, column.policy))
            else:  # the configuration lifted it
                self.columns.pop(key, None)
                for each in (before.names if before else frozenset()) | {name}:
                    self.names.pop(each, None)

    def _add_names(self, label: Label, schema: TopicSchema) -> None:
        """Of a table whose oid is not known: its columns are known by their names alone."""
        assert isinstance(self.names, dict)
        for column in schema.sent:
            if column.policy:
                self.names[*label, column.name] = column.policy
            else:
                self.names.pop((*label, column.name), None)


def _name(parts: Iterable[Any]) -> Name:
    schema, table, column = map(str, parts)
    return schema, table, column
