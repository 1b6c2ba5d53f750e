"""A row change and the event that says why, in one transaction.

    python examples/bank.py [DSN]     without a DSN an embedded server is started

The event reaches the log with the row change, through the write-ahead log: there is no second write that could fail.
"""

from __future__ import annotations

import sys
from contextlib import ExitStack
from decimal import Decimal

import psycopg
from pydantic import BaseModel

from tailrace import NO_STREAM, Conflict, Stream, append, event, load
from tailrace.cdc.setup.events_schema import install
from tailrace.embedded.postgres import PostgresServer


@event("account_opened")
class Opened(BaseModel):
    owner: str


@event("deposited")
class Deposited(BaseModel):
    amount: Decimal


def open_account(connection: psycopg.Connection, account: str, owner: str) -> bool:
    """False when the account is open already."""
    with connection.transaction():
        outcome = append(connection, Stream("account", account), [Opened(owner=owner)], expected=NO_STREAM)
        if isinstance(outcome, Conflict):  # a value, not an error: the transaction goes on
            return False
        connection.execute("INSERT INTO accounts VALUES (%s, %s, 0)", [account, owner])
        return True


def deposit(connection: psycopg.Connection, account: str, amount: Decimal) -> None:
    with connection.transaction():
        connection.execute("UPDATE accounts SET balance = balance + %s WHERE id = %s", [amount, account])
        append(
            connection, Stream("account", account), [Deposited(amount=amount)], metadata={"by": "counter 3"}
        )


def main(dsn: str | None) -> None:
    with ExitStack() as stack:
        dsn = dsn or stack.enter_context(PostgresServer()).dsn()
        install(dsn)  # `tailrace init --events` does this too
        connection = stack.enter_context(psycopg.connect(dsn, autocommit=True))
        connection.execute(
            "CREATE TABLE IF NOT EXISTS accounts (id text PRIMARY KEY, owner text, balance numeric)"
        )
        print("opened:", open_account(connection, "42", "Ada"))
        print("opened again:", open_account(connection, "42", "Ada"))
        deposit(connection, "42", Decimal("12.50"))
        for recorded in load(connection, Stream("account", "42")):
            print(f"  {recorded.version} {recorded.type.name} {recorded.data!r}")
        same = connection.execute(
            "SELECT balance, a.xmin = e.xmin FROM accounts a, tailrace.events e WHERE e.version = 2"
        ).fetchone()
        print("balance, and whether row and event are of one transaction:", same)


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else None)
