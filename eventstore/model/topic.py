"""Topics and the operations on their rows."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum

from tailrace.eventstore.errors import UsageError


class Op(StrEnum):
    """The field's codes for what happened to a row (those of Debezium's envelope)."""

    READ = "r"
    CREATE = "c"
    UPDATE = "u"
    DELETE = "d"
    TRUNCATE = "t"
    MESSAGE = "m"


class TopicKind(StrEnum):
    TABLE = "table"  # changes of one Postgres table; identity (source, schema, table)
    EVENTS = "events"  # domain events of one category; identity (source, category)
    MESSAGES = "messages"  # transactional logical messages of a source


_PLAIN = re.compile(r"[A-Za-z0-9_\-]+")
_PART = re.compile(r'"((?:[^"]|"")*)"|([^".]+)')


@dataclass(frozen=True, slots=True, order=True)
class TopicId:
    """A topic's identity: a tuple of parts; the text form joins them by dots and quotes what is not plain."""

    parts: tuple[str, ...]

    def __post_init__(self) -> None:
        if not 2 <= len(self.parts) <= 3 or not all(self.parts):
            raise UsageError(
                f"{'.'.join(self.parts)!r} does not name a topic",
                hint="a topic is SOURCE.SCHEMA.TABLE or SOURCE.CATEGORY",
            )

    @classmethod
    def table(cls, source: str, schema: str, table: str) -> TopicId:
        return cls((source, schema, table))

    @classmethod
    def events(cls, source: str, category: str) -> TopicId:
        return cls((source, category))

    @classmethod
    def messages(cls, source: str) -> TopicId:
        """The transactional logical messages of a source. No schema can have this name: ``pg_`` is reserved."""
        return cls((source, "pg_logical", "messages"))

    @classmethod
    def of(cls, name: TopicId | str) -> TopicId:
        """A topic as it is, or by its text form. Raises UsageError on a text that is not one."""
        return cls.parse(name) if isinstance(name, str) else name

    @classmethod
    def parse(cls, text: str) -> TopicId:
        """Read the text form. Raises UsageError on a text that is not one."""
        parts: list[str] = []
        at = 0
        while True:
            match = _PART.match(text, at)
            if match is None:
                raise UsageError(
                    f"{text!r} is not a topic name",
                    hint='write SOURCE.SCHEMA.TABLE or SOURCE.CATEGORY; quote unusual parts: shop."My Schema".t',
                )
            quoted, plain = match.groups()
            parts.append(plain if quoted is None else quoted.replace('""', '"'))
            at = match.end()
            if at == len(text):
                return cls(tuple(parts))
            if text[at] != ".":
                raise UsageError(f"{text!r} is not a topic name", hint="parts are separated by one dot")
            at += 1

    @property
    def source(self) -> str:
        return self.parts[0]

    @property
    def is_ours(self) -> bool:
        """Whether it is one of Tailrace's own, of which no source has rows: where rows of Kafka stood."""
        return self.parts[1] == "pg_kafka"

    @property
    def is_events(self) -> bool:
        """Whether it is one of domain events."""
        return len(self.parts) == 2

    @property
    def text(self) -> str:
        return ".".join(
            part if _PLAIN.fullmatch(part) else '"' + part.replace('"', '""') + '"' for part in self.parts
        )

    def __str__(self) -> str:
        return self.text
