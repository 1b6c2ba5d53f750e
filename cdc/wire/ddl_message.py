"""Messages of the DDL event trigger, and what a change of a column means for stored values. Pure.

The messages are those of ``migrations/source/ddl/install.sql``, which describes their format. One that cannot be
understood says ``FAILED``: anybody may emit a logical message, and none of them may stop the stream.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from tailrace.eventstore import disclosure
from tailrace.eventstore.model.schema import Column, TopicSchema

PREFIX = "tailrace.ddl"
VERSION = 2
_CONTENT_MAX = 256 << 20
_NAME_MAX = 4096  # bytes of a name, of a type with its modifiers, of a command
_ERROR_CHARACTERS = 300
_TEXTS = frozenset({25, 1043})  # text and varchar: binary coercible, the same output


class DdlChange(StrEnum):
    """What happened to a table. All but ``DESCRIBED`` may have changed rows without an event."""

    DESCRIBED = ""
    REWRITTEN = "rewritten"
    REVALUED = "revalued"
    REPARTITIONED = "repartitioned"
    DROPPED = "dropped"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class DdlMessage:
    """One table as a command left it. ``schema`` (of ordinary columns; () for its key when there is none) is that of
    a description. ``roots``: of a partition, the tables it is part of; of one that moved, also those it was part of.
    ``partial``: a publication sends other columns than the ordinary ones. ``command`` is empty for what the trigger
    found when it was installed."""

    change: DdlChange
    command: str
    relid: int = 0
    label: tuple[str, str] = ("", "")
    roots: tuple[int, ...] = ()
    schema: TopicSchema | None = None
    partial: bool = False
    error: str = ""

    @property
    def relids(self) -> tuple[int, ...]:
        return (self.relid, *self.roots)


def parse(content: bytes) -> DdlMessage:
    """Parse a message. Never raises: a message that is not ours, or of a later version, is ``FAILED`` with the
    reason."""
    if len(content) > _CONTENT_MAX:
        return _failure(f"a message of {len(content)} bytes")
    try:
        data = json.loads(content)
        version = data["v"]
        if version != VERSION:
            of = (
                f"version {version}"
                if isinstance(version, int) and 0 <= version < 1000
                else "another version"
            )
            return _failure(f"a message of {of}, this release knows {VERSION}")
        return _message(data)
    except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError) as error:
        return _failure(
            f"not a message of the trigger ({type(error).__name__}: {disclosure.hide_text(str(error))})"
        )


def _failure(error: str) -> DdlMessage:
    return DdlMessage(DdlChange.FAILED, "", error=error)


def _message(data: dict[str, Any]) -> DdlMessage:
    change, command = DdlChange(data["changed"]), _text(data["command"])
    if change is DdlChange.FAILED:
        error = _text(data["error"], most=1 << 20)[:_ERROR_CHARACTERS]
        return DdlMessage(change, command, error=disclosure.hide_quoted_values(error))
    columns = data.get("columns")
    return DdlMessage(
        change,
        command,
        relid=_oid(data["relid"]),
        label=(_text(data.get("schema", "")), _text(data.get("name", ""))),
        roots=tuple(map(_oid, _list(data.get("roots", [])))),
        schema=None if columns is None else _schema(data, _list(columns)),
        partial=bool(data.get("partial")),
    )


def _schema(data: dict[str, Any], columns: list[Any]) -> TopicSchema:
    key = {_attnum(number) for number in _list(data["key"])}
    ids = [_attnum(column["id"]) for column in columns]
    names = [_text(column["name"]) for column in columns]
    if len(set(ids)) < len(ids) or len(set(names)) < len(names) or not key <= set(ids):
        raise ValueError("columns that are not those of a table")
    if any(column["generated"] and column["id"] in key for column in columns):
        key = set()  # as ``tailrace.cdc.postgres.tables`` has it: generated columns are not sent
    found = [
        Column(
            id=column["id"],
            name=column["name"],
            type_oid=_oid(column["type_oid"]),
            typmod=_integer(column["typmod"], -(1 << 31), 1 << 31),
            type_name=_text(column["type_name"]),
            key=column["id"] in key,
            fill=None if column["fill"] is None else _text(column["fill"], most=_CONTENT_MAX),
            base_oid=_oid(column.get("base_oid", 0)),  # none of these in messages of a trigger of before
            base_typmod=_integer(column.get("base_typmod", -1), -(1 << 31), 1 << 31),
            type_kind=_text(column.get("type_kind", ""), most=1),
            collation=_text(column.get("collation", "")),
        )
        for column in columns
        if not column["generated"]
    ]
    return TopicSchema(version=1, columns=tuple(found), relid=_oid(data["relid"]))


def _integer(value: object, least: int, end: int) -> int:
    if type(value) is not int or not least <= value < end:  # True is an int, too
        raise ValueError("a number out of its range")
    return value


def _oid(value: object) -> int:
    return _integer(value, 0, 1 << 32)


def _attnum(value: object) -> int:
    return _integer(value, 1, 1 << 15)


def _text(value: object, most: int = _NAME_MAX) -> str:
    """Raises ValueError (UnicodeEncodeError is one) for what no text of Postgres can be."""
    if not isinstance(value, str) or len(value.encode()) > most or "\0" in value:
        raise ValueError("a text that cannot be")
    return value


def _list(value: object) -> list[Any]:
    if not isinstance(value, list):
        raise TypeError("not a list")
    return value


def keeps_values(old: Column, new: Column) -> bool:
    """Whether stored values of a column read right under its new type, given that no row was rewritten: another length
    or precision of the type, or text and varchar. Other casts without a rewrite (oid, timestamptz) change the text."""
    return old.type_oid == new.type_oid or {old.type_oid, new.type_oid} <= _TEXTS


def same_columns(one: TopicSchema, other: TopicSchema) -> bool:
    """Whether two versions have the same columns, key and policies, as far as rows show it."""
    return one.bag == other.bag and [*map(_identity, one.sent)] == [*map(_identity, other.sent)]


def _identity(column: Column) -> tuple[int, str, int, int, bool, str]:
    return column.id, column.name, column.type_oid, column.typmod, column.key, column.policy
