"""Terms of those who write files besides a source's writer: the newest caller wins, earlier ones commit nothing."""

from __future__ import annotations

import re
import uuid

from sqlalchemy import Connection, bindparam, insert, select, update
from sqlalchemy.exc import IntegrityError as Duplicate

from tailrace.eventstore.catalog import tables
from tailrace.eventstore.catalog.database import Catalog
from tailrace.eventstore.errors import Fenced

SEAL = "seal"
MERGE = "merge"
FOLD = "fold"
RETAIN = "retain"
STATE = "state"
REDACT = "redact"
# Who names files; the term is in the name.
WRITERS = (SEAL, MERGE, FOLD, RETAIN, STATE, REDACT)
RETIRED = "retired"  # counts retired files
FILE_NAME = re.compile(
    rf"(epochs|log/(?P<source>[^/]+)/\d+)/((?P<writer>{'|'.join(WRITERS)})-)?t(?P<term>\d+)-[0-9a-f]+"
    r"\.(parquet|frames)(\.partial)?"
)
"""Names of the log's files: a source's writer gives its term alone, others their name, too."""
_CURRENT = select(tables.terms.c.term).where(tables.terms.c.name == bindparam("of"))
_NUMBERS = re.compile(r"-[0-9a-f]{32}([0-9a-f]{16})([0-9a-f]{16})\.parquet$")


def new_file(folder: str, writer: str, term: int) -> str:
    """A name, without an ending, that nobody else gives; ``orphans`` reads writer and term from it."""
    return f"{folder}/{writer}-t{term}-{uuid.uuid4().hex}"


def new_parquet(folder: str, writer: str, term: int, of: tuple[int, int] | None = None) -> str:
    """The name of a Parquet file. ``of``: two numbers that it tells of the file (``numbers_of``)."""
    more = "" if of is None else f"{of[0]:016x}{of[1]:016x}"
    return f"{new_file(folder, writer, term)}{more}.parquet"


def numbers_of(path: str) -> tuple[int, int] | None:
    """The numbers that a file's name tells; None when it tells none."""
    found = _NUMBERS.search(path)
    return None if found is None else (int(found[1], 16), int(found[2], 16))


def begin(catalog: Catalog, name: str) -> int:
    """A new term of ``name``; the previous one has ended."""
    try:
        with catalog.write() as connection:
            return advance(connection, name)
    except Duplicate:
        return begin(catalog, name)


def advance(connection: Connection, name: str, by: int = 1) -> int:
    """Raise the number ``name``, and give it; others wait for the end of this transaction."""
    table = tables.terms
    raised = connection.execute(
        update(table).where(table.c.name == name).values(term=table.c.term + by).returning(table.c.term)
    ).scalar_one_or_none()
    if raised is not None:
        return int(raised)
    connection.execute(insert(table).values(name=name, term=by))
    return by


def current(connection: Connection, name: str) -> int:
    return int(connection.scalar(_CURRENT, {"of": name}) or 0)


def check(connection: Connection, name: str, term: int) -> None:
    """Inside the committing transaction: lock the term's row and raise Fenced when it is over."""
    table = tables.terms
    held = connection.execute(
        update(table).where(table.c.name == name, table.c.term == term).values(term=term)
    )
    if held.rowcount != 1:
        raise Fenced(
            f"another {name} began; this one stops and has changed nothing since", hint="run one at a time"
        )
