"""A description of the DDL trigger is read whole; one with anything that no table has is failed, with the reason."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from tailrace.cdc.wire import ddl_message
from tailrace.cdc.wire.ddl_message import DdlChange, DdlMessage, parse, same_columns
from tailrace.eventstore.model.schema import Column, TopicSchema
from tests.cdc.messages import INT8, TEXT, Table, trigger_message

T = Table(500, "t", [("id", INT8, -1, True), ("note", TEXT, -1, False)])
FAILED, DESCRIBED = DdlChange.FAILED, DdlChange.DESCRIBED


def description(column: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    """Of ``T``, with other values of some fields; ``column``: of its second column."""
    data: dict[str, Any] = json.loads(trigger_message(T).content) | more
    if column:
        data["columns"][1] |= column
    return data


def parsed(data: object) -> DdlMessage:
    return parse(json.dumps(data).encode())


def test_a_description_is_read_whole() -> None:
    note = {
        "id": 3, "type_name": "varchar(9)", "type_oid": 1043, "typmod": 13, "fill": "x",
        "base_oid": 25, "base_typmod": 5, "type_kind": "d", "collation": "de",
    }  # fmt: skip
    found = parsed(description(note, changed="rewritten", roots=[7, 8], partial=True))
    columns = (
        Column(1, "id", INT8, key=True),
        Column(3, "note", 1043, 13, type_name="varchar(9)", fill="x", base_oid=25, base_typmod=5, type_kind="d",
               collation="de"),
    )  # fmt: skip
    assert found == DdlMessage(
        DdlChange.REWRITTEN,
        "ALTER TABLE",
        500,
        ("public", "t"),
        (7, 8),
        TopicSchema(1, columns, relid=500),
        True,
    )
    assert found.relids == (500, 7, 8)
    assert parsed(description()).partial is False


def test_a_table_that_is_gone_has_no_columns() -> None:
    found = parsed({"v": 2, "changed": "dropped", "command": "DROP TABLE", "relid": 500})
    assert found == DdlMessage(DdlChange.DROPPED, "DROP TABLE", 500)


def test_generated_columns_are_not_sent_and_are_no_key() -> None:
    def columns(**more: Any) -> list[tuple[int, bool]]:
        schema = parsed(description({"generated": "s"}, **more)).schema
        assert schema is not None
        return [(column.id, column.key) for column in schema.columns]

    assert columns() == [(1, True)]
    assert columns(key=[1, 2]) == columns(key=[2]) == [(1, False)]
    assert columns(key=[]) == [(1, False)]


NAME = "x" * 4096
POSSIBLE: list[dict[str, Any]] = [
    {"id": (1 << 15) - 1}, {"typmod": -(1 << 31)}, {"typmod": (1 << 31) - 1}, {"type_oid": (1 << 32) - 1},
    {"type_oid": 0}, {"name": NAME}, {"fill": 2 * NAME}, {"type_kind": ""}, {"type_kind": "e"},
]  # fmt: skip
IMPOSSIBLE: list[dict[str, Any]] = [
    {"id": 1 << 15}, {"id": 0}, {"id": 1}, {"id": True}, {"name": "id"}, {"typmod": -(1 << 31) - 1},
    {"typmod": 1 << 31}, {"type_oid": 1 << 32}, {"type_oid": -1}, {"name": NAME + "x"}, {"name": "é" * 2049},
    {"name": "a\0"}, {"name": 5}, {"type_kind": "ee"}, {"fill": 5}, {"base_oid": -1}, {"base_typmod": 1 << 31},
]  # fmt: skip


@pytest.mark.parametrize("column", POSSIBLE, ids=str)
def test_what_a_column_can_be_is_described(column: dict[str, Any]) -> None:
    (schema,) = (parsed(description(column)).schema,)
    assert schema is not None and len(schema.columns) == 2


@pytest.mark.parametrize("column", IMPOSSIBLE, ids=str)
def test_what_no_column_can_be_is_failed(column: dict[str, Any]) -> None:
    found = parsed(description(column))
    assert found.change is FAILED and found.error.startswith("not a message of the trigger")


@pytest.mark.parametrize(
    "more", [{"key": [9]}, {"key": 1}, {"roots": {}}, {"columns": {}}, {"relid": -1}, {"changed": "x"}]
)
def test_what_no_table_can_be_is_failed(more: dict[str, Any]) -> None:
    assert parsed(description(**more)).change is FAILED


@pytest.mark.parametrize(
    ("version", "said"),
    [(1, "version 1"), (3, "version 3"), (0, "version 0"), (999, "version 999"), (1000, "another version"),
     (-1, "another version"), ("2", "another version")],
)  # fmt: skip
def test_another_version_is_named(version: object, said: str) -> None:
    found = parsed({"v": version})
    assert (found.change, found.error) == (FAILED, f"a message of {said}, this release knows 2")


def test_a_message_that_is_too_long_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    content = json.dumps(description()).encode()
    monkeypatch.setattr(ddl_message, "_CONTENT_MAX", len(content))
    assert parse(content).change is DESCRIBED
    assert parse(content + b" ").error == f"a message of {len(content) + 1} bytes"


def test_what_the_trigger_could_not_describe_says_why_in_short_and_without_values() -> None:
    said = 'no collation "secret" ' + "x" * 400
    found = parsed({"v": 2, "changed": "failed", "command": "CREATE TABLE", "error": said})
    assert (found.change, found.command, found.relids) == (FAILED, "CREATE TABLE", (0,)), "of no table"
    assert "secret" not in found.error and found.error.endswith("x" * (300 - 22))


def test_columns_are_the_same_when_rows_show_no_difference() -> None:
    one = TopicSchema(1, (Column(1, "id", INT8, key=True), Column(2, "note", TEXT)))
    assert same_columns(
        one, replace(one, version=2, columns=(one.columns[0], replace(one.columns[1], fill="x")))
    )
    differing: list[dict[str, Any]] = [
        {"id": 3}, {"name": "other"}, {"type_oid": 1043}, {"typmod": 5}, {"key": True}, {"policy": "hash:1"},
    ]  # fmt: skip
    for each in differing:
        assert not same_columns(one, replace(one, columns=(one.columns[0], replace(one.columns[1], **each))))
    assert not same_columns(one, replace(one, bag=True))
