"""A stream's identity."""

from __future__ import annotations

from dataclasses import dataclass

from tailrace.eventstore.errors import UsageError

# CHECK constraints of tailrace.streams, in bytes: together well below what an index row can hold.
CATEGORY_BYTES_MAX = 200
ID_BYTES_MAX = 1000


@dataclass(frozen=True, slots=True, order=True)
class Stream:
    """A sequence of events: one thing of one category, for example ``Stream("account", "42")``.

    The category is the name of the events' topic in the log. Raises UsageError for an empty or too long part.
    """

    category: str
    id: str

    def __post_init__(self) -> None:
        for name, value, most in (
            ("category", self.category, CATEGORY_BYTES_MAX),
            ("id", self.id, ID_BYTES_MAX),
        ):
            if not 0 < len(value.encode()) <= most or "\0" in value:
                raise UsageError(
                    f"{value[:80]!r} cannot be the {name} of a stream",
                    hint=f"1 to {most} bytes of UTF-8 without NUL",
                )

    def __str__(self) -> str:
        return f"{self.category}/{self.id}"
