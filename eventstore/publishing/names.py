"""How a publication calls a topic of the log at its destination."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

from tailrace.eventstore.errors import OperatorError
from tailrace.eventstore.publishing.records import Published, ResultId
from tailrace.eventstore.settings import PublicationSettings

_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9._\-]")
_TELLING = ("{topic}", "{table}", "{category}", "{projection}")
_BYTES_MAX = 249  # Kafka's limit; those of others are no smaller


def published_name(topic: Published, template: str) -> str:
    """The name that a publication gives to a topic. As Debezium does, it has _ in place of what Kafka's names cannot
    have. Raises OperatorError when it is too long, or names what the topic has not."""
    name = _NOT_IN_NAMES.sub("_", _wanted_name(topic, template))
    if len(name) > _BYTES_MAX:
        raise OperatorError(
            f"{name} is too long for a name at the destination: {len(name)} of {_BYTES_MAX} letters",
            hint="choose a shorter `topic` for the publication",
        )
    return name


def _wanted_name(topic: Published, template: str) -> str:
    try:
        if isinstance(topic, ResultId):
            return template.format(topic=topic.projection, projection=topic.projection)
        names = ("source", "schema", "table") if len(topic.parts) == 3 else ("source", "category")
        return template.format(topic=".".join(topic.parts), **dict(zip(names, topic.parts, strict=True)))
    except KeyError as missing:
        raise OperatorError(
            f"{topic} has no {missing.args[0]}, which `topic` of the publication names",
            hint="tables have {source}, {schema} and {table}, domain events {source} and {category}, projections"
            " {projection}, and all {topic}",
        ) from None


def require_apart(topics: Sequence[Published], settings: PublicationSettings, taken: Collection[str]) -> None:
    """Several topics share a name only where the settings say so, by naming no part that would tell them apart, and
    never where the last record of a key replaces others of that key. Nor has any a name that is ``taken`` by what the
    publication itself keeps there. Raises OperatorError."""
    shared = not settings.compact and not any(part in settings.topic for part in _TELLING)
    found: dict[str, Published] = {}
    for topic in topics:
        name = published_name(topic, settings.topic)
        if name in taken:
            raise OperatorError(
                f"{topic} would go to {name}, in which the publication's own records are",
                hint="choose another `topic` for the publication",
            )
        other = found.setdefault(name, topic)
        same = _wanted_name(topic, settings.topic) == _wanted_name(other, settings.topic)
        if other != topic and not (shared and same):
            raise OperatorError(
                f"{other} and {topic} would both go to {name}; nothing more is sent",
                hint="leave one of them out, or give it a publication of its own with another `topic`",
            )
