"""Orders that are paid in time are shipped, others are cancelled, by a process that follows the log.

    python -m examples.orders.service     starts an embedded server, and a log that follows it

Kill it where you like: what was asked for is done once, and a timer that was due meanwhile fires when it runs again.
"""

from __future__ import annotations

import tempfile
import threading
import time
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path

import psycopg
from sqlalchemy import create_engine, make_url

from examples.orders.order import Place, Receive, fulfilment, orders, payments
from tailrace import Stream, event_tables, handle, load
from tailrace.embedded.postgres import PostgresServer
from tailrace.testing.plugin import FollowingLog


def story(connection: psycopg.Connection, order: str, closing: str) -> str:
    """What happened to an order and its money, once ``closing`` has."""
    while True:
        streams = Stream("order", order), Stream("payment", order)
        happened = [each.type.name for stream in streams for each in load(connection, stream)]
        if closing in happened:
            return ", ".join(happened)
        time.sleep(0.05)


def main() -> None:
    with ExitStack() as stack:
        dsn = stack.enter_context(PostgresServer()).dsn()
        event_tables.install(dsn)  # `tailrace init --events` does this too
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        connection = stack.enter_context(psycopg.connect(dsn, autocommit=True))
        now = datetime.now(UTC)
        handle(connection, orders, "1", Place("1", Decimal(10), now))
        handle(connection, orders, "2", Place("2", Decimal(20), now - timedelta(hours=1)))

        log = FollowingLog(dsn, Path(folder))  # elsewhere, `tailrace capture`
        stack.callback(log.close)
        log.catch_up()
        engine = create_engine(make_url(dsn).set(drivername="postgresql+psycopg"))
        stack.callback(engine.dispose)
        process = log.store.process(fulfilment, engine, ["test.order", "test.payment"])
        running = threading.Thread(target=process.run)
        running.start()
        stack.callback(running.join)
        stack.callback(process.stop)

        print("order 2, not paid in time:", story(connection, "2", "order_was_cancelled"))
        handle(connection, payments, "1", Receive("1", Decimal(10)))
        handle(connection, payments, "2", Receive("2", Decimal(20)))
        log.catch_up()
        print("order 1, paid:", story(connection, "1", "order_was_shipped"))
        print("order 2, paid too late:", story(connection, "2", "payment_returned"))
        print("the process of order 1:")
        for each in load(connection, Stream("fulfilment", "1")):
            print(
                f"  {each.data.type or each.data.kind}: {', '.join(each.data.did) or 'wait'}".split(" at ")[0]
            )


if __name__ == "__main__":
    main()
