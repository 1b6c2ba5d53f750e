"""Column policies on the schemas of topics that come from Kafka: which columns are written, and in which form. Pure.

A record tells a column by its name alone. So one that is new while a protected one is missing may be that one under
another name: then the configuration must say what it is. Where Postgres' catalog tells the columns' numbers, those
count, as in native capture.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from tailrace.cdc.policy.policies import Label, Policies, describe, is_left_out
from tailrace.eventstore.errors import OperatorError
from tailrace.eventstore.model.schema import Column, TopicSchema
from tailrace.eventstore.model.topic import TopicId

_SETTING = "[sources.NAME.columns]"


def label_of(topic: TopicId) -> Label:
    return topic.parts[1], topic.parts[2]


def protected(
    topic: TopicId, schema: TopicSchema, latest: TopicSchema | None, policies: Policies
) -> TopicSchema:
    """``schema``, whose columns are in records, under the policies. ``latest``: the version before it.

    Raises OperatorError for a policy that a column cannot have, or that names none, and for a column of which it is not
    known whether it is a protected one."""
    if not policies.protect_something:
        return schema
    label = label_of(topic)
    columns = policies.schema(label, schema.whole, latest).sent
    sent = {column.id for column in schema.columns}
    written = [column for column in columns if column.id in sent and not is_left_out(column)]
    left_out = [column for column in columns if column not in written]
    found = replace(schema, columns=_in_order(written), left_out=_in_order(left_out))
    if latest is None or found != replace(latest, version=found.version, from_lsn=found.from_lsn):
        require_named(topic, found, policies)
        _require_known(label, found, sent, latest, policies)
    return found


def _in_order(columns: Collection[Column]) -> tuple[Column, ...]:
    return tuple(sorted(columns, key=lambda column: column.id))


def changed_version(topic: TopicId, latest: TopicSchema, policies: Policies) -> tuple[TopicSchema, list[str]]:
    """The next version of a topic whose policies are no longer those of ``latest``, and a sentence for each column that
    is concerned: [] when they are the same. Raises OperatorError like ``protected``."""
    changes = policies.changed_columns(label_of(topic), latest)
    if not changes:
        return latest, []
    return replace(protected(topic, latest, latest, policies), version=latest.version + 1), changes


def require_named(topic: TopicId, schema: TopicSchema, policies: Policies) -> None:
    """Raises OperatorError for a policy that names a column which the table has not: it protects nothing."""
    label = label_of(topic)
    for rule, close in policies.misnamed_rules(label, [column.name for column in schema.sent]):
        raise OperatorError(
            f"the policy of {rule} names no column of table {'.'.join(label)}, so it protects nothing",
            hint=(f"did you mean {close}? " if close else "")
            + f"for a column that is still to come write a pattern: {rule}*",
        )


def _require_known(
    label: Label, schema: TopicSchema, sent: Collection[int], latest: TopicSchema | None, policies: Policies
) -> None:
    if latest is None or (schema.relid and schema.relid == latest.relid):
        return
    before = {column.name for column in latest.sent}
    new = [
        column.name
        for column in schema.sent
        if column.id in sent
        and column.name not in before
        and not column.policy
        and policies.policy_of((*label, column.name)) is None
    ]
    missing = [column for column in schema.left_out if column.policy and column.id not in sent]
    if new and missing:
        raise OperatorError(
            f"table {'.'.join(label)} has a new column {new[0]}, and its column {missing[0].name}"
            f" ({describe(missing[0].policy)}) is in no record any more: it may be that one under another name",
            hint=f'say in {_SETTING} what {new[0]} is: the policy of {missing[0].name}, or "plain"; nothing of these'
            " records is in the log yet",
        )
