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
VERSION = 1
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
    try:
        data = json.loads(content)
        if data["v"] != VERSION:
            return _failure(f"a message of version {data['v']}, this release knows {VERSION}")
        return _message(data)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        return _failure(
            f"not a message of the trigger ({type(error).__name__}: {disclosure.hide_text(str(error))})"
        )


def _failure(error: str) -> DdlMessage:
    return DdlMessage(DdlChange.FAILED, "", error=error)


def _message(data: dict[str, Any]) -> DdlMessage:
    change, command = DdlChange(data["changed"]), str(data["command"])
    if change is DdlChange.FAILED:
        return DdlMessage(change, command, error=disclosure.hide_quoted_values(str(data["error"])))
    columns = data.get("columns")
    return DdlMessage(
        change,
        command,
        relid=int(data["relid"]),
        label=(str(data.get("schema", "")), str(data.get("name", ""))),
        roots=tuple(int(root) for root in data.get("roots", ())),
        schema=None if columns is None else _schema(data, columns),
        partial=bool(data.get("partial")),
    )


def _schema(data: dict[str, Any], columns: list[dict[str, Any]]) -> TopicSchema:
    key = {int(number) for number in data["key"]}
    if any(column["generated"] and int(column["id"]) in key for column in columns):
        key = set()  # as ``tailrace.cdc.postgres.tables`` has it: generated columns are not sent
    found = [
        Column(
            id=int(column["id"]),
            name=str(column["name"]),
            type_oid=int(column["type_oid"]),
            typmod=int(column["typmod"]),
            type_name=str(column["type_name"]),
            key=int(column["id"]) in key,
            fill=None if column["fill"] is None else str(column["fill"]),
        )
        for column in columns
        if not column["generated"]
    ]
    return TopicSchema(version=1, columns=tuple(found), relid=int(data["relid"]))


def keeps_values(old: Column, new: Column) -> bool:
    """Whether stored values of a column read right under its new type, given that no row was rewritten: another length
    or precision of the type, or text and varchar. Other casts without a rewrite (oid, timestamptz) change the text."""
    return old.type_oid == new.type_oid or {old.type_oid, new.type_oid} <= _TEXTS


def same_columns(one: TopicSchema, other: TopicSchema) -> bool:
    """Whether two versions have the same columns, key and policies, as far as rows show it."""
    return one.bag == other.bag and [*map(_identity, one.sent)] == [*map(_identity, other.sent)]


def _identity(column: Column) -> tuple[int, str, int, int, bool, str]:
    return column.id, column.name, column.type_oid, column.typmod, column.key, column.policy
