"""A domain that tests decide in: accounts, as a decider and as an aggregate."""

from __future__ import annotations

from dataclasses import dataclass, replace
from decimal import Decimal

from pydantic import BaseModel

from tailrace.eventstore.streams import Aggregate, Decider, Rejected, event, on


@event("bank_deposited")
class Deposited(BaseModel, frozen=True):
    amount: Decimal


@event("bank_withdrawn")
class Withdrawn(BaseModel, frozen=True):
    amount: Decimal


@dataclass(frozen=True)
class Deposit:
    amount: int


@dataclass(frozen=True)
class Withdraw:
    amount: int


@dataclass(frozen=True)
class Account:
    balance: int = 0


def decide(command: Deposit | Withdraw, state: Account) -> list[Deposited | Withdrawn]:
    match command:
        case Deposit(amount=0):
            return []
        case Deposit(amount=amount):
            return [Deposited(amount=Decimal(amount))]
        case Withdraw(amount=amount) if amount > state.balance:
            raise Rejected("insufficient funds")
        case Withdraw(amount=amount):
            return [Withdrawn(amount=Decimal(amount))]


def evolve(state: Account, event: Deposited | Withdrawn) -> Account:
    match event:
        case Deposited(amount=amount):
            return replace(state, balance=state.balance + int(amount))
        case Withdrawn(amount=amount):
            return replace(state, balance=state.balance - int(amount))


account = Decider("account", Account(), decide, evolve)


class Purse(Aggregate, category="purse"):
    """The same, as an object."""

    def __init__(self, id: str) -> None:
        super().__init__(id)
        self.balance = 0

    def put(self, amount: int) -> None:
        self.record(Deposited(amount=Decimal(amount)))

    def take(self, amount: int) -> None:
        if amount > self.balance:
            raise Rejected("insufficient funds")
        self.record(Withdrawn(amount=Decimal(amount)))

    @on(Deposited)
    def _deposited(self, event: Deposited) -> None:
        self.balance += int(event.amount)

    @on(Withdrawn)
    def _withdrawn(self, event: Withdrawn) -> None:
        self.balance -= int(event.amount)
