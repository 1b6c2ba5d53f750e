"""Single rows of a service's own tables, by their key."""

from __future__ import annotations

import json
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from tailrace.eventstore.errors import OperatorError
from tailrace.eventstore.streams.database.connection import Ask


async def read_row(ask: Ask, table: str, key: str, value: str) -> Mapping[str, Any] | None:
    """The row, locked, as JSON has it; None where there is none. Raises OperatorError without such a table."""
    query = (
        f"SELECT CAST(to_json(t) AS text) FROM {_quoted(table)} t WHERE t.{_quoted(key)} = %(key)s FOR UPDATE"  # noqa: S608
    )
    for (text,) in await _run(ask, table, query, {"key": value}):
        return dict(json.loads(text, parse_float=Decimal))
    return None


async def put_row(ask: Ask, table: str, key: str, value: str, row: Mapping[str, Any]) -> None:
    """Write these columns of the row; make it if it is not there."""
    names = [name for name in row if name != key]
    columns = ", ".join(map(_quoted, [key, *names]))
    values = ", ".join(["%(key)s", *(f"%(c{number})s" for number in range(len(names)))])
    changes = ", ".join(f"{_quoted(name)} = EXCLUDED.{_quoted(name)}" for name in names)
    then = f"UPDATE SET {changes}" if changes else "NOTHING"
    query = (
        f"INSERT INTO {_quoted(table)} ({columns}) VALUES ({values})"  # noqa: S608
        f" ON CONFLICT ({_quoted(key)}) DO {then} RETURNING 1"
    )
    given = {f"c{number}": row[name] for number, name in enumerate(names)}
    await _run(ask, table, query, {"key": value, **given})


async def delete_row(ask: Ask, table: str, key: str, value: str) -> None:
    query = f"DELETE FROM {_quoted(table)} WHERE {_quoted(key)} = %(key)s RETURNING 1"  # noqa: S608
    await _run(ask, table, query, {"key": value})


async def holds_row(ask: Ask, table: str, key: str, value: str, row: Mapping[str, Any] | None) -> bool:
    """Whether the row is there with these values, as the server compares them; None: whether there is none."""
    names = [name for name in row or {} if name != key]
    same = "".join(
        f" AND t.{_quoted(name)} IS NOT DISTINCT FROM %(c{number})s" for number, name in enumerate(names)
    )
    query = f"SELECT 1 FROM {_quoted(table)} t WHERE t.{_quoted(key)} = %(key)s{same}"  # noqa: S608
    given = {f"c{number}": (row or {})[name] for number, name in enumerate(names)}
    there = await _run(ask, table, query, {"key": value, **given})
    return bool(there) == (row is not None)


async def keys_of(ask: Ask, table: str, key: str) -> list[str]:
    """The keys of all rows, as text."""
    query = f"SELECT CAST({_quoted(key)} AS text) FROM {_quoted(table)}"  # noqa: S608
    return [text for (text,) in await _run(ask, table, query, {})]


async def _run(ask: Ask, table: str, query: str, values: Mapping[str, object]) -> Any:
    try:
        return await ask(query, values)
    except OperatorError as error:
        raise OperatorError(
            f"table {table} of an inline projection is not there, or this user may not use it",
            hint="make it with a primary key, and grant SELECT, INSERT, UPDATE and DELETE on it",
        ) from error


def _quoted(name: str) -> str:
    """Names were checked when they were declared."""
    return ".".join(f'"{part}"' for part in name.split("."))
