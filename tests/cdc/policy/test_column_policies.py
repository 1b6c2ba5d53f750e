"""Protected columns, from a real server into a real store: what is hashed, cut or left out is written nowhere else."""

# ruff: noqa: S608 (statements of a test, about values of its own)

from __future__ import annotations

import hmac
import random
from pathlib import Path

import pytest

from tailrace.eventstore.errors import OperatorError
from tailrace.eventstore.maintenance.files.seal import seal
from tailrace.eventstore.state.state import state
from tailrace.eventstore.store import Store
from tests.fixtures.scale import Scale
from tests.support.capturing import (
    RunningCapture,
    Site,
    assert_equals_source,
    assert_sound,
    execute,
    init_and_capture,
    query,
    table,
)
from tests.support.plaintext import places_of

pytestmark = pytest.mark.timeout(300)

KEY = "only the environment knows this key"
OTHER_KEY = "another key that only it knows of"
SECRET = "Zq7xVn2w"  # every protected value begins with it; two characters of it may be kept
LATE = "Wy3kPt8m"  # begins keys that were never captured in plain text
POLICIES = {
    "public.people.email": "hash",
    "public.people.phone": "drop",
    "*.*.name": "truncate:2",
    "public.people.born": "truncate:8",
    "public.people.story": "drop",
    "public.people.letter": "hash",
    "public.accounts.number": "hash",
    "public.accounts.nick*": "hash",
    "public.full_identity.body": "truncate:2",
    "public.bag.word": "truncate:3",
    "public.bag.note": "drop",
}
TABLES = """
CREATE TABLE public.people (
  id int PRIMARY KEY, email text, phone text, name varchar(100), born date, story text, letter text, seen int);
CREATE TABLE public.accounts (number text PRIMARY KEY, name text, balance numeric(12,2));
CREATE TABLE public.full_identity (id int PRIMARY KEY, body text, n int);
ALTER TABLE public.full_identity REPLICA IDENTITY FULL;
CREATE TABLE public.bag (n int, word text, note text);
ALTER TABLE public.bag REPLICA IDENTITY FULL;
"""


@pytest.fixture
def site(database: str, store_dir: Path) -> Site:
    execute(database, TABLES)
    return Site.at(store_dir, database, columns=POLICIES, hash_key=KEY)


def hash_text(text: str | None, key: str = KEY) -> str | None:
    return None if text is None else hmac.digest(key.encode(), text.encode(), "sha256").hex()


def rows_of(store: Store, name: str) -> list[dict[str, object]]:
    tables = [part.select(part.column_names) for part in state(store, table(name), store.cut())]
    found = [
        {name: cell for name, cell in row.items() if not name.startswith("_")}
        for part in tables
        for row in part.to_pylist()
    ]
    return sorted(found, key=lambda row: str(next(iter(row.values()))))


def change(site: Site, seed: int, transactions: int) -> None:
    """Random changes of every kind, every protected value with the mark."""
    chance = random.Random(seed)

    def secret(length: int = 8) -> str:
        return "NULL" if chance.random() < 0.1 else f"'{SECRET}{chance.randbytes(length).hex()}'"

    def day() -> str:
        return chance.choice(["NULL", "'infinity'", "'4713-01-01 BC'", "'1987-06-05'"])

    def one() -> str:
        number, account = chance.randrange(40), f"'{SECRET}-{chance.randrange(20)}'"
        return chance.choice(
            [
                f"INSERT INTO people VALUES ({number}, {secret()}, {secret()}, {secret()}, {day()}, {secret(2000)},"
                f" {secret(2000)}, 0) ON CONFLICT (id) DO UPDATE SET email = EXCLUDED.email",
                f"UPDATE people SET seen = seen + 1 WHERE id = {number}",
                f"UPDATE people SET id = {number + 100}, phone = {secret()} WHERE id = {number}"
                f" AND NOT EXISTS (SELECT FROM people WHERE id = {number + 100})",
                f"DELETE FROM people WHERE id = {number}",
                f"INSERT INTO accounts VALUES ({account}, {secret()}, 5) ON CONFLICT DO NOTHING",
                f"UPDATE accounts SET number = number || '-moved' WHERE number = {account}"
                f" AND NOT EXISTS (SELECT FROM accounts WHERE number = {account} || '-moved')",
                f"UPDATE accounts SET name = {secret()} WHERE number LIKE {account} || '%'",
                f"DELETE FROM accounts WHERE number = {account}",
                f"INSERT INTO full_identity VALUES ({number}, {secret()}, 1)"
                " ON CONFLICT (id) DO UPDATE SET body = EXCLUDED.body",
                f"DELETE FROM full_identity WHERE id = {number}",
                f"INSERT INTO bag VALUES ({number % 3}, {secret()}, {secret()})",
                f"UPDATE bag SET note = {secret()} WHERE n = {number % 3}",
                f"DELETE FROM bag WHERE ctid = (SELECT min(ctid) FROM bag WHERE n = {number % 3})",
            ]
        )  # fmt: skip

    execute(site.dsn, *("; ".join(one() for _ in range(chance.randrange(1, 6))) for _ in range(transactions)))


def test_the_plain_text_of_a_protected_column_is_nowhere_in_the_store(site: Site, scale: Scale) -> None:
    small = site.with_settings(epoch_bytes=16384, queue_bytes=65536, hash_key=KEY)
    change(site, 1, scale.pick(smoke=60, full=2000))
    with init_and_capture(small) as capture:
        change(site, 2, scale.pick(smoke=150, full=20_000))
        execute(
            site.dsn,
            f"ALTER TABLE accounts ADD COLUMN nick text DEFAULT '{SECRET} as a default'",
            "ALTER TABLE people RENAME COLUMN email TO mail",
            "ALTER TABLE people RENAME COLUMN phone TO mobile",
            f"INSERT INTO people SELECT i, '{SECRET}' || i, '{SECRET}', '{SECRET}', NULL, '{SECRET}', '{SECRET}', 1"
            " FROM generate_series(1000, 1999) i",  # larger than an epoch
            f"UPDATE accounts SET balance = 6 WHERE number LIKE '{SECRET}-1%'",
        )
        capture.catch_up()
        assert_equals_source(
            small, [("public", name) for name in ("people", "accounts", "full_identity", "bag")]
        )
        assert_sound(capture.store)
        status = repr(capture.status)
        assert SECRET not in status and KEY not in status
        people = query(
            site.dsn, "SELECT id, mail, name, born::text, letter, seen FROM people ORDER BY id::text"
        )
        assert rows_of(capture.store, "people") == [
            {
                "id": id, "mail": hash_text(mail), "name": name and name[:2], "born": born and born[:8],
                "letter": hash_text(letter), "seen": seen,
            }
            for id, mail, name, born, letter, seen in people
        ]  # fmt: skip
        accounts = query(site.dsn, "SELECT number, name, balance, nick FROM accounts")
        assert rows_of(capture.store, "accounts") == sorted(
            (
                {
                    "number": hash_text(number),
                    "name": name and name[:2],
                    "balance": balance,
                    "nick": hash_text(nick),
                }
                for number, name, balance, nick in accounts
            ),
            key=lambda row: str(row["number"]),
        )
        assert seal(capture.store)
        assert places_of(capture.store, site.root, SECRET, KEY) == []
        held = str(rows_of(capture.store, "people")[0]["mail"])
        assert places_of(capture.store, site.root, held), "what is there is found"


def test_a_change_of_policy_is_reported_and_the_table_is_read_again(site: Site) -> None:
    execute(site.dsn, f"INSERT INTO people SELECT i, '{SECRET}' || i FROM generate_series(1, 5) i")
    plain = site.with_settings(columns={}, hash_key=None)
    plain.init()

    def since(store: Store) -> list[int | None]:
        return [store.topic(table(name)).complete_since for name in ("people", "accounts")]

    def captured(setting: Site, reason: str = "") -> list[object]:
        with setting.open() as store:
            before = since(store)
        with RunningCapture(setting) as capture:

            def whole() -> bool:
                now = since(capture.store)
                changed = all(new != old for new, old in zip(now, before, strict=True))
                return None not in now and (changed or not reason)

            capture.wait_until(whole)
            capture.catch_up()
            execute(site.dsn, "UPDATE people SET seen = coalesce(seen, 0) + 1 WHERE id = 3")
            capture.catch_up()
            assert_equals_source(setting)
            messages = [message for message in capture.status.messages if "people is read again" in message]
            assert [reason in message for message in messages] == [True] * bool(reason)
            return [row["email"] for row in rows_of(capture.store, "people")]

    mails = [f"{SECRET}{number}" for number in range(1, 6)]
    assert captured(plain) == mails
    hash_it = {"public.people.email": "hash", "public.accounts.number": "hash"}
    protected = site.with_settings(columns=hash_it, hash_key=KEY)
    assert captured(protected, "email: in plain text until now, hashed") == [
        hash_text(mail) for mail in mails
    ]
    execute(site.dsn, f"INSERT INTO accounts SELECT '{LATE}' || i FROM generate_series(1, 5) i")
    other = site.with_settings(columns=hash_it, hash_key=OTHER_KEY)
    assert captured(other, "email: hashed with key") == [hash_text(mail, OTHER_KEY) for mail in mails]
    with site.open() as store:
        assert len(rows_of(store, "accounts")) == 5
        assert places_of(store, site.root, LATE) == [], "not even where a load had come to"


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"public.people.id": "drop"}, r"public\.people\.id is part of the key"),
        ({"public.people.id": "truncate:1"}, r"public\.people\.id is part of the key"),
        ({"public.people.e_mail": "drop"}, "names no column that is captured"),
    ],
)
def test_a_policy_that_cannot_be_is_said_before_anything_is_written(
    site: Site, columns: dict[str, str], said: str
) -> None:
    wrong = site.with_settings(columns=columns, hash_key=KEY)
    findings = wrong.init(dry_run=True).blocking_findings
    assert len(findings) == 1 and findings[0].hint
    with pytest.raises(OperatorError, match=said):
        wrong.init()
    with site.open() as store:
        assert store.topics() == []
    assert query(site.dsn, "SELECT count(*) FROM pg_publication WHERE pubname = 'acme_shop'") == [(0,)]
