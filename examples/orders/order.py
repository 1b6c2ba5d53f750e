"""Orders and their payments, and the process that holds them together. Pure: no database, no clock."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import timedelta
from decimal import Decimal

from pydantic import AwareDatetime, BaseModel

from tailrace import Cancel, Decider, Do, Due, End, ProcessManager, Refused, Rejected, Timer, event

PAY_WITHIN = timedelta(minutes=30)


@event("order_was_placed")
class Placed(BaseModel, frozen=True):
    order: str
    total: Decimal
    at: AwareDatetime


@event("order_was_shipped")
class Shipped(BaseModel, frozen=True):
    order: str


@event("order_was_cancelled")
class Cancelled(BaseModel, frozen=True):
    order: str
    reason: str


@event("payment_received")
class Paid(BaseModel, frozen=True):
    order: str
    amount: Decimal


@event("payment_returned")
class Returned(BaseModel, frozen=True):
    order: str
    reason: str


@dataclass(frozen=True)
class Place:
    order: str
    total: Decimal
    at: AwareDatetime


@dataclass(frozen=True)
class Ship:
    pass


@dataclass(frozen=True)
class CancelOrder:
    reason: str


@dataclass(frozen=True)
class Order:
    id: str = ""
    total: Decimal = Decimal(0)
    closed: str = ""


def decide(command: Place | Ship | CancelOrder, order: Order) -> list[Placed | Shipped | Cancelled]:
    match command:
        case Place(id, total, at):
            return [] if order.id else [Placed(order=id, total=total, at=at)]
        case _ if order.closed:
            raise Rejected(f"the order is {order.closed}")
        case Ship():
            return [Shipped(order=order.id)]
        case CancelOrder(reason):
            return [Cancelled(order=order.id, reason=reason)]


def evolve(order: Order, event: Placed | Shipped | Cancelled) -> Order:
    match event:
        case Placed(order=id, total=total):
            return Order(id, total)
        case Shipped():
            return replace(order, closed="shipped")
        case Cancelled():
            return replace(order, closed="cancelled")


orders = Decider("order", Order(), decide, evolve)


@dataclass(frozen=True)
class Receive:
    order: str
    amount: Decimal


@dataclass(frozen=True)
class Return:
    order: str
    reason: str


def decide_payment(command: Receive | Return, received: Decimal) -> list[Paid | Returned]:
    match command:
        case Receive(order, amount):
            return [Paid(order=order, amount=amount)]
        case Return(order, reason):
            return [Returned(order=order, reason=reason)] if received else []


def evolve_payment(received: Decimal, event: Paid | Returned) -> Decimal:
    return received + event.amount if isinstance(event, Paid) else Decimal(0)


payments = Decider("payment", Decimal(0), decide_payment, evolve_payment)


def react(input: Placed | Paid | Due | Refused, missing: Decimal | None) -> list[Do | Timer | Cancel | End]:
    """``missing``: what is still to be paid; None before anything came. Events of two topics come in any order."""
    match input:
        case Placed(order=order, total=total) if missing is not None and total + missing <= 0:
            return [Do(orders, order, Ship()), End()]
        case Placed(at=at):
            return [Timer("payment", at + PAY_WITHIN)]
        case Paid(order=order, amount=amount) if missing is not None and 0 < missing <= amount:
            return [Cancel("payment"), Do(orders, order, Ship()), End()]
        case Due(key=order):
            return [Do(orders, order, CancelOrder("not paid in time"))]
        case Refused(key=order, reason=reason):  # cancelled before: the money goes back
            return [Do(payments, order, Return(order, reason))]
    return []


def evolve_process(missing: Decimal | None, input: Placed | Paid | Due | Refused) -> Decimal | None:
    match input:
        case Placed(total=total):
            return total + (missing or 0)
        case Paid(amount=amount):
            return (missing or 0) - amount
    return missing


fulfilment = ProcessManager("fulfilment", None, react, evolve_process, key={Placed: "order", Paid: "order"})
