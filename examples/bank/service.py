"""A service that decides from events: a row change and the event that says why are one transaction.

    python -m examples.bank.service [DSN]     without a DSN an embedded server is started

The event reaches the log with the row change, through the write-ahead log: there is no second write that could fail.
"""

from __future__ import annotations

import sys
from contextlib import ExitStack
from decimal import Decimal

import psycopg

from examples.bank.account import Command, Deposit, Open, Withdraw, accounts
from tailrace import Rejected, Stream, event_tables, forget, handle, load, position
from tailrace.embedded.postgres import PostgresServer
from tailrace.errors import UsageError


def ask(connection: psycopg.Connection, number: str, command: Command) -> str:
    """Decide a command, and keep the account's row with it."""
    try:
        with connection.transaction():
            done = handle(connection, accounts, number, command, metadata={"by": "counter 3"})
            connection.execute(
                "INSERT INTO accounts VALUES (%s, %s, %s) ON CONFLICT (id) DO UPDATE SET balance = EXCLUDED.balance",
                [number, str(done.state.owner), done.state.balance],
            )
    except Rejected as refused:
        return f"no: {refused}"
    return f"version {done.version}, balance {done.state.balance}"


def main(dsn: str | None) -> None:
    with ExitStack() as stack:
        dsn = dsn or stack.enter_context(PostgresServer()).dsn()
        event_tables.install(dsn)  # `tailrace init --events` does this too
        connection = stack.enter_context(psycopg.connect(dsn, autocommit=True))
        connection.execute(
            "CREATE TABLE IF NOT EXISTS accounts (id text PRIMARY KEY, owner text, balance numeric)"
        )
        print("open:", ask(connection, "42", Open("c1", "Ada")))
        print("open again:", ask(connection, "42", Open("c2", "Bo")))
        print("deposit:", ask(connection, "42", Deposit(Decimal("12.50"))))
        print("withdraw too much:", ask(connection, "42", Withdraw(Decimal(20))))
        print("withdraw:", ask(connection, "42", Withdraw(Decimal(2))))
        for recorded in load(connection, Stream("account", "42")):
            print(f"  {recorded.version} {recorded.type.name} {recorded.data!r}")
        same = connection.execute(
            "SELECT balance, a.xmin = e.xmin FROM accounts a, tailrace.events e WHERE e.version = 3"
        ).fetchone()
        print("balance, and whether row and event are of one transaction:", same)
        print("the log has all of it at:", position(connection))  # what wait_for takes
        try:
            with connection.transaction():  # `tailrace forget` also has projections computed again
                forget(connection, "c1")
                connection.execute("UPDATE accounts SET owner = 'Erased' WHERE id = '42'")
        except UsageError:
            print("nothing is known of the customer any more")
        print("forgotten:", load(connection, Stream("account", "42"))[0].data)


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else None)
