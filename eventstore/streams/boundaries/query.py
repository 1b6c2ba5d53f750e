"""Events by their tags and types."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from tailrace.eventstore.errors import UsageError
from tailrace.eventstore.streams.models.event_types import event_type_of, may_be_hidden, tags_of
from tailrace.eventstore.streams.models.tags import tag, tagged_fields
from tailrace.eventstore.streams.models.upcasters import names_of_code

ITEMS_MAX: Final = 100


@dataclass(frozen=True, slots=True)
class Item:
    """Events of one of these ``models`` (none: of any) that have all of these ``tags``: one at least, sorted."""

    models: tuple[type[Any], ...]
    tags: tuple[str, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """Stored names of events that it may ask for, none for all: also of those of which code makes others."""
        if not self.models:
            return ()
        return tuple(sorted({event_type_of(each).name for each in self.models} | names_of_code()))

    def matches(self, event: object) -> bool:
        """Whether it asks for an event, as today's code has it."""
        kinds = {event_type_of(each).name for each in self.models}
        return (not kinds or event_type_of(type(event)).name in kinds) and set(self.tags) <= {*tags_of(event)}


class Query:
    """``Query(Enrolled, course="c1")`` asks for events of these models, none for all, that have all of these tags;
    ``|`` for those of one query or the other. Each names a tag: what is asked for is what decisions wait for each
    other by.

    Raises UsageError without a tag, for a model that is no event or has no such tag, and for a value that cannot be
    one.
    """

    __slots__ = ("items",)

    def __init__(self, *models: type[Any], **tags: object) -> None:
        if not tags:
            raise UsageError("a query names at least one tag", hint='Query(Enrolled, course="c1")')
        for model in models:
            event_type_of(model)
            missing = sorted(tags.keys() - tagged_fields(model).keys())
            if missing:
                raise UsageError(
                    f"events {model.__qualname__} have no tag {missing[0]!r}",
                    hint=f"annotate a field: {missing[0]}: Annotated[str, Tag()]",
                )
        self.items: tuple[Item, ...] = (
            Item(models, tuple(sorted(tag(name, value) for name, value in tags.items()))),
        )

    def __or__(self, other: Query) -> Query:
        found = object.__new__(Query)
        found.items = tuple(dict.fromkeys((*self.items, *other.items)))
        if len(found.items) > ITEMS_MAX:
            raise UsageError(
                f"a query has {len(found.items)} parts",
                hint=f"at most {ITEMS_MAX}: a decision that depends on so much needs a tag of its own",
            )
        return found

    def matches(self, event: object) -> bool:
        """Whether it asks for an event."""
        return any(each.matches(event) for each in self.items)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Query) and self.items == other.items

    def __hash__(self) -> int:
        return hash(self.items)

    def __repr__(self) -> str:
        parts = (
            f"Query({', '.join([*(each.__qualname__ for each in item.models), *map(_shown, item.tags)])})"
            for item in self.items
        )
        return " | ".join(parts)


def _shown(tag: str) -> str:
    """For messages: without a value that is personal."""
    name = tag.partition(":")[0]
    return f"{name}:…" if may_be_hidden(name) else tag
