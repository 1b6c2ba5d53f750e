"""The shop at work: a thread that sells, ships and cancels, with the domain event of each in the same transaction."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from decimal import Decimal
from typing import Any

import psycopg

from tailrace.demo.events import OrderCancelled, OrderPaid, OrderPlaced, OrderShipped, record

CUSTOMERS = 2_000
PRODUCTS = 500
ORDERS = 20_000
SECONDS_BETWEEN = 0.004  # two cores are shared with the servers, the capture and Spark
CITIES = ("Bergen", "Brno", "Graz", "Lund", "Porto", "Trento", "Turku", "Utrecht")
MATERIALS = ("oak", "steel", "wool", "linen", "glass", "copper", "cork", "clay")
THINGS = ("chair", "lamp", "kettle", "blanket", "bottle", "clock", "bowl", "shelf", "basket", "mirror")
USES = ("for the kitchen", "for long winters", "for small flats", "made to last", "folds away", "a present")
_STATEMENTS = {
    "customers": """
        INSERT INTO customers (name, email, city)
        SELECT 'Customer ' || n, 'c' || n || '@example.org', (%s::text[])[1 + n %% 8] FROM generate_series(1, %s) n
    """,
    "products": """
        INSERT INTO products (name, description, price)
        SELECT initcap((%s::text[])[1 + n %% 8] || ' ' || (%s::text[])[1 + n %% 10]) || ' ' || n,
               'A ' || (%s::text[])[1 + n %% 10] || ' ' || (%s::text[])[1 + n %% 6],
               5 + n %% 190 + 0.95
        FROM generate_series(1, %s) n
    """,
    "orders": """
        INSERT INTO orders (customer_id, product_id, quantity, amount, status)
        SELECT 1 + n * 7919 %% %s, p.id, 1 + n %% 3, p.price * (1 + n %% 3),
               (ARRAY['placed', 'paid', 'shipped', 'cancelled'])[1 + n %% 4]
        FROM generate_series(1, %s) n JOIN products p ON p.id = 1 + n * 104729 %% %s
    """,
}


def seed(dsn: str) -> int:
    """Fill the empty shop; the number of rows."""
    with psycopg.connect(dsn) as connection:
        connection.execute(_STATEMENTS["customers"], [list(CITIES), CUSTOMERS])
        texts = [list(MATERIALS), list(THINGS), list(THINGS), list(USES)]
        connection.execute(_STATEMENTS["products"], [*texts, PRODUCTS])
        connection.execute(_STATEMENTS["orders"], [CUSTOMERS, ORDERS, PRODUCTS])
    return CUSTOMERS + PRODUCTS + ORDERS


class Workload:
    """Runs until stopped, ``pause`` seconds between two transactions. ``committed`` counts those that changed something
    and are confirmed, by kind."""

    def __init__(self, dsn: str, seed_number: int = 7, *, pause: float = SECONDS_BETWEEN) -> None:
        self._dsn, self._pause = dsn, pause
        self._random = random.Random(seed_number)
        self._stop = threading.Event()
        self._turn = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="shop", daemon=True)
        self._open: list[int] = []
        self.committed: Counter[str] = Counter()
        self.error: psycopg.Error | None = None

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join()

    @property
    def transactions(self) -> int:
        return self.committed.total()

    @contextmanager
    def pause(self) -> Iterator[None]:
        """No transaction runs inside."""
        with self._turn:
            yield

    @contextmanager
    def closed(self, *, for_good: bool) -> Iterator[None]:
        """No transaction runs inside, nor afterwards where it is for good."""
        if for_good:
            self.stop()
            yield
        else:
            with self.pause():
                yield

    def _run(self) -> None:
        actions = [self._place] * 8 + [self._pay] * 4 + [self._ship] * 4 + [self._cancel] * 2
        actions += [self._move] * 2 + [self._reprice] * 2 + [self._forget]
        try:
            with psycopg.connect(self._dsn) as connection:
                while not self._stop.wait(self._pause):
                    action = self._random.choice(actions)
                    with self._turn, connection.transaction():
                        changed = action(connection)
                    self.committed[action.__name__.removeprefix("_")] += changed
        except psycopg.Error as error:
            self.error = error

    def _place(self, connection: psycopg.Connection[Any]) -> bool:
        product, quantity = self._random.randint(1, PRODUCTS), self._random.randint(1, 4)
        row = connection.execute(
            "INSERT INTO orders (customer_id, product_id, quantity, amount)"
            " SELECT %s, id, %s, price * %s FROM products WHERE id = %s RETURNING id, amount",
            [self._random.randint(1, CUSTOMERS), quantity, quantity, product],
        ).fetchone()
        assert row is not None
        order, amount = row
        self._open.append(order)
        placed = OrderPlaced(product=product, quantity=quantity, amount=amount)
        record(connection, order, placed)
        return True

    def _pay(self, connection: psycopg.Connection[Any]) -> bool:
        order = self._order(connection, "placed", "paid")
        if order is not None:
            record(connection, order, OrderPaid(method=self._random.choice(["card", "invoice"])))
        return order is not None

    def _ship(self, connection: psycopg.Connection[Any]) -> bool:
        order = self._order(connection, "paid", "shipped")
        if order is not None:
            record(connection, order, OrderShipped(parcel=f"parcel-{self._random.randrange(10**8):08d}"))
            self._open.remove(order)
        return order is not None

    def _cancel(self, connection: psycopg.Connection[Any]) -> bool:
        order = self._order(connection, "placed", "cancelled")
        if order is not None:
            reason = self._random.choice(["changed my mind", "too slow"])
            record(connection, order, OrderCancelled(reason=reason))
            self._open.remove(order)
        return order is not None

    def _order(self, connection: psycopg.Connection[Any], old: str, new: str) -> int | None:
        """Move one of our open orders from one status to the next."""
        if not self._open:
            return None
        order = self._random.choice(self._open[:200])
        changed = connection.execute(
            "UPDATE orders SET status = %s WHERE id = %s AND status = %s", [new, order, old]
        ).rowcount
        return order if changed else None

    def _move(self, connection: psycopg.Connection[Any]) -> bool:
        changed = connection.execute(
            "UPDATE customers SET city = %s WHERE id = %s",
            [self._random.choice(CITIES), self._random.randint(1, CUSTOMERS)],
        )
        return changed.rowcount > 0

    def _reprice(self, connection: psycopg.Connection[Any]) -> bool:
        price = Decimal(self._random.randint(500, 20_000)) / 100
        changed = connection.execute(
            "UPDATE products SET price = %s WHERE id = %s", [price, self._random.randint(1, PRODUCTS)]
        )
        return changed.rowcount > 0

    def _forget(self, connection: psycopg.Connection[Any]) -> bool:
        """An old order is deleted."""
        old = self._random.randint(1, ORDERS)
        return connection.execute("DELETE FROM orders WHERE id = %s", [old]).rowcount > 0


def wait_for(workload: Workload, transactions: int, seconds: float) -> bool:
    """Wait until so many more transactions are committed; False when that takes longer than ``seconds``."""
    wanted = workload.transactions + transactions
    deadline = time.monotonic() + seconds
    while workload.transactions < wanted:
        if workload.error is not None or time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True
