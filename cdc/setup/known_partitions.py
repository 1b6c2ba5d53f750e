"""What the log remembers of names under which tables are protected, beside those of its topics: of partitions, so that
they keep their root's policies when they are detached, and of tables that are called otherwise than their topic."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tailrace.cdc.policy.history import UNKNOWN
from tailrace.cdc.policy.policies import DROP, Policies
from tailrace.cdc.postgres.tables import Table
from tailrace.eventstore.metadata.partitions import known_partitions, set_partitions
from tailrace.eventstore.model.info import InheritedPolicy
from tailrace.eventstore.model.schema import TopicSchema
from tailrace.eventstore.model.topic import TopicId
from tailrace.eventstore.store import Store

Known = dict[int, tuple[InheritedPolicy, ...]]


def remember_partitions(
    store: Store,
    source: str,
    policies: Policies,
    tables: Iterable[Table],
    topics: Mapping[int, tuple[TopicId, TopicSchema]],
) -> None:
    """Store what the policies of captured tables say of their partitions, and of them under another name. ``topics``:
    by the tables' oids, with their latest versions. Raises OperatorError for a policy that a column cannot have."""
    if not (policies.rules or policies.history.columns):
        return
    known = known_partitions(store.catalog, source)
    found: Known = {}
    for table in tables:
        if table.relid not in topics:
            continue
        topic, latest = topics[table.relid]
        if table.partitions:
            found |= inherited_policies(policies, table, topic, latest)
        if table.label != topic.parts[1:]:
            own = (*known.get(table.relid, ()), *_policies_by_name(policies, table, latest))
            found[table.relid] = tuple(dict.fromkeys(own))
    changed = {relid: columns for relid, columns in found.items() if known.get(relid, ()) != columns}
    if changed:
        set_partitions(store.catalog, source, changed)


def inherited_policies(policies: Policies, table: Table, topic: TopicId, latest: TopicSchema) -> Known:
    """What the policies of a partitioned table's columns say of those of its partitions, which have the same names."""
    protected = _protected_columns(policies, table, latest)
    label = topic.parts[1], topic.parts[2]
    return {
        part.relid: tuple(
            InheritedPolicy(number, protected[name], (*label, name))
            for number, name in part.columns
            if name in protected
        )
        for part in table.partitions
    }


def _policies_by_name(policies: Policies, table: Table, latest: TopicSchema) -> tuple[InheritedPolicy, ...]:
    """The protected columns under the table's name of now."""
    protected = _protected_columns(policies, table, latest)
    return tuple(
        InheritedPolicy(column.id, protected[column.name], (*table.label, column.name))
        for column in table.columns
        if column.name in protected
    )


def _protected_columns(policies: Policies, table: Table, latest: TopicSchema) -> dict[str, str]:
    """Policies by name of the column. Of one that may be a protected one nothing is to be shown."""
    covering = policies.covering(table.relid, table.partitions)
    schema = covering.schema(table.label, table.topic_schema(latest.version), latest)
    return {
        column.name: DROP if column.policy == UNKNOWN else column.policy
        for column in schema.sent
        if column.policy
    }
