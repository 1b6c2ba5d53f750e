"""What the shop demands of its orders: no database, no mocks.

python -m pytest examples/orders
"""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal

from examples.orders.order import (
    PAY_WITHIN,
    CancelOrder,
    Paid,
    Placed,
    Return,
    Ship,
    fulfilment,
    orders,
    payments,
)
from tailrace import Cancel, Do, Due, End, Refused, Timer
from tailrace.testing import given

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
placed = Placed(order="7", total=Decimal(10), at=NOON)
late = Due("payment", NOON + PAY_WITHIN, "7")


def test_an_order_that_is_paid_is_shipped() -> None:
    waiting = given(fulfilment).when(placed).then(Timer("payment", NOON + PAY_WITHIN))
    waiting = waiting.when(Paid(order="7", amount=Decimal(4))).then()
    waiting.when(Paid(order="7", amount=Decimal(6))).then(Cancel("payment"), Do(orders, "7", Ship()), End())


def test_a_payment_may_be_known_before_its_order() -> None:
    story = given(fulfilment).when(Paid(order="7", amount=Decimal(10))).then()
    story.when(placed).then(Do(orders, "7", Ship()), End())


def test_one_that_is_not_is_cancelled() -> None:
    given(fulfilment, placed).when(late).then(Do(orders, "7", CancelOrder("not paid in time")))


def test_money_for_an_order_that_is_closed_goes_back() -> None:
    refused = Refused("order/7", "Ship", "the order is cancelled", "7")
    given(fulfilment, placed).when(refused).then(Do(payments, "7", Return("7", "the order is cancelled")))
