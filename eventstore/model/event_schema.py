"""The schema of a source database that has the tables of domain events: ``tailrace``, or one of a service's choice.

Statements name ``tailrace``. Where the tables are in another schema, that takes its place when a statement is sent.
"""

from __future__ import annotations

import functools
import re
from typing import Final, LiteralString

EVENTS_SCHEMA: Final = "tailrace"
EVENTS_TABLE: Final = "events"

_NAME: Final = re.compile(r"[a-z_][a-z0-9_]{0,62}")
_OTHERS: Final = ("public", "information_schema")
_NAMED: Final = re.compile(r"\btailrace\.(?!(?:forgetting|emit)\b)|(?<=SCHEMA )tailrace\b")
"""Not in the names of a setting and of messages in the WAL."""


def is_schema_name(text: str) -> bool:
    """Whether a schema of this name can have the tables, and nothing else: not Postgres' own, nor the one that
    everybody's tables are in."""
    return bool(_NAME.fullmatch(text)) and not text.startswith("pg_") and text not in _OTHERS


@functools.lru_cache(maxsize=1000)
def in_schema(text: LiteralString, schema: str) -> LiteralString:
    """A statement whose tables and functions are in this schema, whose name ``is_schema_name``."""
    if schema == EVENTS_SCHEMA:
        return text
    return _NAMED.sub(lambda found: found[0].replace(EVENTS_SCHEMA, f'"{schema}"'), text)
