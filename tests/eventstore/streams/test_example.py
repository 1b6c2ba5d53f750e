"""``examples/bank``, ``courses`` and ``orders`` do what their files say."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import psycopg
from psycopg.types.json import Jsonb

from tests.support import REPOSITORY


def run(*arguments: str) -> str:
    """In a process of its own: the names of its events are its own."""
    return subprocess.run(
        [sys.executable, "-m", *arguments],
        cwd=REPOSITORY,
        env=os.environ | {"PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    ).stdout


def test_the_service_decides_and_writes_rows_and_events_in_one_transaction(database: str) -> None:
    *lines, last, forgotten = run("examples.bank.service", database).splitlines()
    assert lines == [
        "open: version 1, balance 0",
        "open again: no: the account is Ada's already",
        "deposit: version 2, balance 12.50",
        "withdraw too much: no: insufficient funds",
        "withdraw: version 3, balance 10.50",
        "  1 account_opened Opened(customer='c1', owner='Ada', currency='EUR')",
        "  2 deposited Deposited(amount=Decimal('12.50'))",
        "  3 withdrawn Withdrawn(amount=Decimal('2'))",
        "balance, and whether row and event are of one transaction: (Decimal('10.50'), True)",
    ]
    assert forgotten == "forgotten: customer='c1' owner=Erased currency='EUR'"
    assert re.fullmatch(r"the log has all of it at: [0-9A-F]+/[0-9A-F]+", last)
    with psycopg.connect(database) as connection:  # as the release before wrote it
        connection.execute(
            "UPDATE tailrace.events SET schema_version = 1, data = %s WHERE version = 1",
            [Jsonb({"name": "Ada"})],
        )
        connection.commit()
        again = run("examples.bank.service", database).splitlines()
    assert again[1] == "open again: no: the account is Ada's already"
    assert again[5] == "  1 account_opened Opened(customer='unknown', owner='Ada', currency='EUR')"


def test_decisions_across_streams_hold_whoever_asks_at_the_same_time(database: str) -> None:
    assert run("examples.courses.service", database).splitlines() == [
        "Ada: registered",
        "Bo, with her address: no: somebody has that address",
        "eight at once:",
        "  3 × enrolled",
        "  5 × no: the course is full",
        "Ada, botany: enrolled",
        "Ada, botany: enrolled already",
        "Ada, chess: enrolled",
        "Ada, drawing: enrolled",
        "Ada, algebra: no: the course is full",
        "Ada's: ['botany', 'chess', 'drawing']",
    ]


def test_a_process_ships_what_is_paid_and_cancels_what_is_not() -> None:
    assert run("examples.orders.service").splitlines() == [
        "order 2, not paid in time: order_was_placed, order_was_cancelled",
        "order 1, paid: order_was_placed, order_was_shipped, payment_received",
        "order 2, paid too late: order_was_placed, order_was_cancelled, payment_received, payment_returned",
        "the process of order 1:",
        "  order_was_placed: timer payment",
        "  payment_received: cancel payment, do Ship on order/1, end",
    ]


def test_their_own_tests_pass() -> None:
    folders = ("examples/bank", "examples/courses", "examples/orders")
    assert "10 passed" in run("pytest", "-q", "-p", "no:cacheprovider", *folders)
