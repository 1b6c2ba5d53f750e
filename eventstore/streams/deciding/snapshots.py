"""Snapshots of a decider's states, so that a long stream is not read from its beginning.

A snapshot is never the truth: one of other code, or that cannot be read, is passed over and made anew from the events.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Final

from pydantic import TypeAdapter, ValidationError
from pydantic.errors import PydanticUserError
from pydantic_core import PydanticSerializationError

from tailrace.eventstore.errors import UsageError

UNREADABLE: Final = object()


@dataclass(frozen=True, slots=True)
class Every:
    """When a snapshot is taken: with the command after which a stream has so many ``events``, or ``bytes`` of their
    JSON, above the last one.

    ``version`` is that of the code: raise it when ``evolve`` makes other states of the same events. ``state`` is the
    states' type, where it is not that of the initial state: a pydantic model, a dataclass, or what pydantic knows
    (``frozenset[str]``). A change of its fields counts as another version by itself.
    """

    events: int | None = None
    bytes: int | None = None
    version: int = 1
    state: Any = None

    def __post_init__(self) -> None:
        limits = [each for each in (self.events, self.bytes) if each is not None]
        if not limits or min(limits) < 1:
            raise UsageError(
                f"no snapshot can be taken every {self.events} events or {self.bytes} bytes",
                hint="Every(events=200), Every(bytes=100_000), or both",
            )

    def due(self, events: int, size: int) -> bool:
        return (self.events is not None and events >= self.events) or (
            self.bytes is not None and size >= self.bytes
        )


class Snapshots:
    """The states of one decider as JSON."""

    def __init__(self, category: str, every: Every, initial_state: object) -> None:
        self.every = every
        self._category = category
        import hashlib  # with OpenSSL: only for those who have snapshots

        kind = type(initial_state) if every.state is None else every.state
        try:
            self._adapter: TypeAdapter[Any] = TypeAdapter(kind)
            schema = json.dumps(self._adapter.json_schema(mode="serialization"), sort_keys=True)
        except PydanticUserError:
            raise self._lost() from None
        self.code = f"{every.version}-{hashlib.sha256(schema.encode()).hexdigest()[:16]}"
        """Whose states these are."""
        self.dump(initial_state)  # that there can be none is said at once, not at the first that is due

    def dump(self, state: object) -> str:
        """Raises UsageError for a state whose JSON does not read back as the same."""
        try:
            text = self._adapter.dump_json(state, warnings="error").decode()
        except (PydanticSerializationError, UnicodeEncodeError):
            text = ""
        if not text or "\\u0000" in text or self.load(text) != state:
            raise self._lost()
        return text

    def _lost(self) -> UsageError:
        return UsageError(
            f"a state of {self._category!r} does not survive as JSON, so it can have no snapshot",
            hint="name its type (Every(…, state=…)), and use fields whose JSON reads back as the same value",
        )

    def load(self, text: str) -> Any:
        """The state, or ``UNREADABLE``."""
        try:
            return self._adapter.validate_json(text)
        except ValidationError:
            return UNREADABLE
