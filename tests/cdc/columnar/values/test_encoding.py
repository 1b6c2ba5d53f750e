"""Text in other encodings than UTF-8: converted by the server, or kept as the bytes it is."""

# ruff: noqa: S608 (constants)

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest

from tailrace.embedded import PostgresServer
from tailrace.eventstore.errors import UnreadableCell
from tailrace.eventstore.state.state import state
from tests.fixtures.databases import drop_database
from tests.support.capturing import (
    RunningCapture,
    Site,
    assert_equals_source,
    execute,
    init_and_capture,
    rows,
    table,
)


@pytest.fixture
def encoded(postgres: PostgresServer) -> Iterator[Callable[[str], str]]:
    """Makes a database in an encoding; its dsn."""
    made = []

    def create(encoding: str) -> str:
        name = f"test_{encoding.lower()}_{secrets.token_hex(4)}"
        with psycopg.connect(postgres.dsn(), autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name} ENCODING '{encoding}' TEMPLATE template0".encode())
        made.append(name)
        return postgres.dsn(name) + "?client_encoding=UTF8"

    yield create
    for name in made:
        drop_database(postgres, name)


def capture_twice(dsn: str, folder: Path, text: str, check: Callable[[RunningCapture], None]) -> None:
    """A table with the text as key and as value, loaded and streamed."""
    site = Site.at(folder, dsn)
    execute(
        dsn,
        "CREATE TABLE notes (id text PRIMARY KEY, note text, tags text[])",
        f"INSERT INTO notes VALUES ({text}, {text} || 'x', ARRAY[{text}]), ('plain', 'plain', '{{plain}}')",
    )
    with init_and_capture(site) as capture:
        execute(
            dsn,
            f"INSERT INTO notes VALUES ('s' || {text}, {text} || 'x', ARRAY[{text}])",
            f"UPDATE notes SET note = note || {text}",
            f"UPDATE notes SET id = id || {text} WHERE id LIKE 's%'",
        )
        capture.catch_up()
        assert_equals_source(site)
        check(capture)


def test_text_in_another_encoding_is_the_same_text(encoded: Callable[[str], str], tmp_path: Path) -> None:
    def check(capture: RunningCapture) -> None:
        found = [row["after"] for row in rows(capture.store, table("notes")) if row["after"]]
        assert {"id": "é", "note": "éx", "tags": ["é"]} in found
        assert {"id": "sé", "note": "éx", "tags": ["é"]} in found

    capture_twice(encoded("LATIN1"), tmp_path, r"E'\xe9'", check)


def test_bytes_that_are_no_text_are_kept_as_they_are(encoded: Callable[[str], str], tmp_path: Path) -> None:
    """SQL_ASCII means: the server does not know."""

    def check(capture: RunningCapture) -> None:
        store, topic = capture.store, table("notes")
        first = next(row for row in rows(store, topic) if row["after"] and row["after"]["id"] is None)
        assert first["after"] == {"id": None, "note": None, "tags": None}
        assert dict(first["_raw"]) == {1: b"caf\xe9", 2: b"caf\xe9x", 3: b"{caf\xe9}"}
        with pytest.raises(UnreadableCell, match="note"):
            list(state(store, topic, store.cut(), columns=["note"]))
        with pytest.raises(UnreadableCell, match="UTF-8"):
            list(state(store, topic, store.cut(), columns=["note"], on_unreadable="text"))
        (nulls,) = {
            note
            for part in state(store, topic, store.cut(), columns=["note"], on_unreadable="null")
            for note in part["note"].to_pylist()
        }
        assert nulls is None

    capture_twice(encoded("SQL_ASCII"), tmp_path, r"E'caf\xe9'", check)
