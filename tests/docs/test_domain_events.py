"""The examples of the page on domain events run, in its order."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from decimal import Decimal
from types import ModuleType
from typing import Any

import psycopg
import pytest
from psycopg.types.json import Jsonb

from tailrace import Rejected, Stream, append, load
from tailrace.eventstore.model.event_schema import EVENTS_SCHEMA, schema_in_use
from tailrace.eventstore.streams.database.event_tables import install
from tailrace.eventstore.streams.inline_rows import projection
from tests.support import REPOSITORY

PAGE = (REPOSITORY / "docs" / "domain-events.md").read_text()


@pytest.fixture(scope="module")
def names() -> Iterator[dict[str, Any]]:
    """What the page's blocks of Python define."""
    module = sys.modules["page_of_domain_events"] = ModuleType("page_of_domain_events")
    with schema_in_use(EVENTS_SCHEMA):  # also after the block that chooses another one
        for block in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL):
            exec(block, vars(module))
    yield vars(module)
    projection._declared.pop("account")  # others append to that category, too
    del sys.modules[module.__name__]


@pytest.fixture
def connection(database: str) -> Iterator[psycopg.Connection[tuple[object, ...]]]:
    install(database)
    with psycopg.connect(database) as opened:
        (table,) = re.findall(r"^CREATE TABLE.*?;$", PAGE, re.MULTILINE)
        opened.execute(table)
        yield opened


def test_an_account_is_opened_once(names: dict[str, Any], connection: psycopg.Connection) -> None:
    assert names["open_account"](connection, "1", "Ada") and not names["open_account"](connection, "1", "Bo")
    assert [each.data for each in load(connection, Stream("account", "1"))] == [names["Opened"](owner="Ada")]


def test_earlier_versions_are_upcast(names: dict[str, Any], connection: psycopg.Connection) -> None:
    connection.execute(
        "INSERT INTO tailrace.events VALUES"
        " ('account', '1', 1, 'account_closed', 1, %s, '{}', gen_random_uuid(), now())",
        [Jsonb({"why": "eve: fraud"})],
    )
    (closed,) = load(connection, Stream("account", "1"))
    assert closed.data == names["Closed"](reason="eve: fraud", by="eve")


def test_commands_are_decided(names: dict[str, Any], connection: psycopg.Connection) -> None:
    append(connection, Stream("account", "1"), [names["Deposited"](amount=Decimal(5))])
    assert names["withdraw"](connection, "1", Decimal(2)) == 3
    with pytest.raises(Rejected, match="insufficient funds"):
        names["withdraw"](connection, "1", Decimal(4))
    assert names["put"](connection, "ada", Decimal(2)) == 2
    assert connection.execute("SELECT * FROM balances").fetchall() == [("1", Decimal(3))]


def test_a_transfer_is_guarded(names: dict[str, Any], connection: psycopg.Connection) -> None:
    giver, taker, limits = (Stream("account", id) for id in ("g", "t", "limits"))
    append(connection, limits, [names["Opened"](owner="bank")])
    assert not names["transfer"](connection, giver, 0, taker, Decimal(1), limits, 0)
    assert names["transfer"](connection, giver, 0, taker, Decimal(1), limits, 1)
    assert len(load(connection, giver)) == len(load(connection, taker)) == 1
