"""A workload in which every row counts its own changes, so that whoever is given events knows whether one is missing,
there twice or out of order: of each account they are 0, 1, 2, … (0: as it was inserted)."""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import psycopg

from tailrace.eventstore.model.topic import TopicId

ACCOUNTS = TopicId.table("shop", "public", "accounts")
SCHEMA = "CREATE TABLE public.accounts (id int PRIMARY KEY, branch int NOT NULL, n bigint NOT NULL)"
BRANCHES = 8
_MOST_AT_ONCE = 500
Ints = np.ndarray[Any, np.dtype[np.int64]]


def prepare(dsn: str, accounts: int) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(SCHEMA)
        connection.execute(
            "INSERT INTO accounts SELECT i, i %% %s, 0 FROM generate_series(0, %s) i",
            [BRANCHES, accounts - 1],
        )


def counted(dsn: str) -> list[int]:
    """How often each account has changed."""
    with psycopg.connect(dsn) as connection:
        return [n for (n,) in connection.execute("SELECT n FROM accounts ORDER BY id")]


@contextlib.contextmanager
def changing(dsn: str, accounts: int, events: int, seed: int) -> Iterator[None]:
    """Two sessions change so many accounts beside what is done inside, whatever the server does to them: which of
    their transactions were committed is what the table says. They are through when the block ends."""
    half = accounts // 2
    threads = [
        threading.Thread(target=_change, args=(dsn, range(first, first + half), events // 2, seed + first))
        for first in (0, half)
    ]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        for thread in threads:
            thread.join()


def _change(dsn: str, mine: range, events: int, seed: int) -> None:
    rng = random.Random(seed)
    while events > 0:
        with (
            contextlib.suppress(psycopg.OperationalError),
            psycopg.connect(dsn, autocommit=True) as connection,
        ):
            while events > 0:
                count = min(events, len(mine), rng.randint(1, _MOST_AT_ONCE))
                first = rng.randrange(mine.start, mine.stop - count + 1)
                statement = "UPDATE accounts SET n = n + 1 WHERE id BETWEEN %s AND %s"
                events -= connection.execute(statement, [first, first + count - 1]).rowcount
        if events > 0:
            time.sleep(0.1)


def follow_on(seen: Ints, accounts: Ints, numbers: Ints) -> None:
    """Events in the order in which they were given; ``seen``: the last number of each account, -1 before the first.
    Raises AssertionError unless each account goes on with the next one."""
    if not len(accounts):  # all of it was given before
        return
    order = np.argsort(accounts, kind="stable")
    accounts, numbers = accounts[order], numbers[order]
    first = np.append(True, accounts[1:] != accounts[:-1])
    before = np.where(first, seen[accounts], np.append(0, numbers[:-1]))
    wrong = np.flatnonzero(numbers != before + 1)
    if len(wrong):
        at = wrong[0]
        raise AssertionError(f"account {accounts[at]}: {numbers[at]} was given behind {before[at]}")
    last = np.append(first[1:], True)
    seen[accounts[last]] = numbers[last]
