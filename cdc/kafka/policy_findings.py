"""What stands in the way of a Kafka source's column policies, as far as its tables are known before they are read."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterator, Mapping

from tailrace.cdc.kafka.decoder import TableDecoder, policies_of
from tailrace.cdc.kafka.decoding.protection import changed_version, label_of, protected, require_named
from tailrace.cdc.policy.history import History
from tailrace.cdc.policy.policies import Policies
from tailrace.cdc.setup.table_choice import Level, SetupFinding
from tailrace.eventstore.errors import OperatorError
from tailrace.eventstore.metadata.topics import all_schemas
from tailrace.eventstore.model.schema import TopicSchema
from tailrace.eventstore.model.topic import TopicId
from tailrace.eventstore.settings import KafkaSourceSettings
from tailrace.eventstore.store import Store


def policy_findings(
    store: Store, source: str, settings: KafkaSourceSettings, topics: Collection[TopicId]
) -> list[SetupFinding]:
    """``topics``: those of the log that Kafka's lead to; events have no columns to protect. Raises what
    ``TableDecoder.of`` raises."""
    versions = all_schemas(store.catalog, source) if store.source(source) else []
    policies = policies_of(settings).remembering(History.of(versions))
    if not policies.protect_something:
        return []
    latest = dict(versions)
    topics = [topic for topic in topics if not topic.is_events]
    decoder = TableDecoder.of(settings, policies)
    declared = {topic: decoder.declarations.get(".".join(topic.parts[1:])) for topic in topics}
    tables = {topic: each.table for topic, each in declared.items() if each is not None and each.table}
    plain = {topic: decoder.plain.get(topic.parts[1:]) for topic in topics}
    tables |= {topic: each.table for topic, each in plain.items() if each is not None}
    findings = list(_unnamed(policies, topics))
    for topic in topics:
        findings += _of_table(topic, policies, latest.get(topic), tables)
    return findings


def _of_table(
    topic: TopicId, policies: Policies, latest: TopicSchema | None, tables: Mapping[TopicId, TopicSchema]
) -> Iterator[SetupFinding]:
    try:
        if latest is not None:
            require_named(topic, latest, policies)
            for change in changed_version(topic, latest, policies)[1]:
                yield SetupFinding(
                    Level.NOTE, topic.text, change, "capture reads the topic again when it starts"
                )
        elif topic in tables:
            protected(topic, tables[topic], None, policies)
    except OperatorError as error:
        yield SetupFinding(Level.BLOCKING, topic.text, error.message, error.hint)


def _unnamed(policies: Policies, topics: Collection[TopicId]) -> Iterator[SetupFinding]:
    """Policies of a table whose topic is not there: most often its name is another one."""
    known = [".".join(label_of(topic)) for topic in topics]
    for text, pattern, _ in policies.rules:
        if pattern.exact and not any(pattern.is_of(*label_of(topic)) for topic in topics):
            close = difflib.get_close_matches(text.rpartition(".")[0], known, 1)
            hint = f"did you mean the table {close[0]}? " if close else ""
            what = f"the policy of {text} names no table that has a topic in Kafka, so it protects nothing"
            yield SetupFinding(
                Level.BLOCKING,
                text,
                what,
                f"{hint}for a table that is still to come write a pattern: {text}*",
            )
