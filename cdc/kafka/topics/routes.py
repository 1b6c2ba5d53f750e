"""To which topic of the log does a topic of Kafka lead? What settings say; nothing is asked."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase

from tailrace.eventstore.errors import OperatorError
from tailrace.eventstore.model.topic import TopicId
from tailrace.eventstore.settings import KafkaSourceSettings, PlainTopic

_PLAIN_SCHEMA = "kafka"


@dataclass(frozen=True, slots=True)
class Routes:
    """Of one source. A topic that is declared as a plain one, or as one of the outbox router, holds no table's changes,
    also where a pattern matches it."""

    source: str
    settings: KafkaSourceSettings

    def chosen(self, name: str) -> bool:
        """Whether settings name the topic, or a pattern matches it."""
        if not self.needs_snapshot(name):
            return True
        return name != self.settings.transaction_topic and matches(name, self.settings.topics)

    def topic(self, name: str) -> TopicId | None:
        """None: it is not captured."""
        if not self.chosen(name):
            return None
        plain = self.settings.plain.get(name)
        if plain is not None:
            return TopicId.table(self.source, *plain_table(name, plain))
        category = self._category(name)
        if category is not None:
            return TopicId.events(self.source, category)
        return table_topic(self.source, name)

    def needs_snapshot(self, name: str) -> bool:
        """Whether only a snapshot by Debezium makes the topic whole, rather than its first record."""
        return name not in self.settings.plain and self._category(name) is None

    def _category(self, name: str) -> str | None:
        outbox = self.settings.outbox
        return None if outbox is None or name.startswith("__") else outbox.category(name)

    def leaving_out(self, name: str) -> str:
        """How a topic is left out, for hints."""
        if name in self.settings.plain:
            return "take it out of the source's plain topics"
        if not self.needs_snapshot(name):
            return "take it out of the topics of the source's outbox"
        return f"leave it out in the source's topics with !{name}"

    def reading_again(self, name: str) -> str:
        """How a topic is read again, for hints."""
        read = f"`tailrace source reread {self.topic(name)}` reads what is there"
        return (
            f"{read}, and the topic waits for a snapshot by Debezium" if self.needs_snapshot(name) else read
        )


def plain_table(name: str, plain: PlainTopic) -> tuple[str, str]:
    """Schema and table of a plain topic in the log."""
    schema, _, table = (plain.table or "").partition(".")
    return (schema, table) if plain.table else (_PLAIN_SCHEMA, name)


def matches(name: str, patterns: Collection[str]) -> bool:
    """Whether an inclusion matches a name, and no exclusion does."""
    included = any(fnmatchcase(name, each) for each in patterns if not each.startswith("!"))
    return included and not any(fnmatchcase(name, each[1:]) for each in patterns if each.startswith("!"))


def table_topic(source: str, name: str) -> TopicId | None:
    """The topic of the table whose changes Debezium writes to PREFIX.SCHEMA.TABLE; None for another name. A prefix may
    have dots."""
    parts = name.split(".")
    if len(parts) < 3 or not all(parts[-2:]) or name.startswith("__"):
        return None
    return TopicId.table(source, parts[-2], parts[-1])


def routes_of(names: Iterable[str], routes: Routes) -> dict[str, TopicId]:
    """By topic of Kafka the log's. Raises OperatorError where two lead to one."""
    found: dict[str, TopicId] = {}
    owners: dict[TopicId, str] = {}
    for name in sorted(names):
        topic = routes.topic(name)
        if topic is None:
            continue
        if topic in owners:
            raise OperatorError(
                f"topics {owners[topic]} and {name} of Kafka both lead to {topic}",
                hint="leave one of them out, make them two sources, or give a plain one another table",
            )
        found[name] = topic
        owners[topic] = name
    return found
