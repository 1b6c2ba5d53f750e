"""Accounts: what can happen to one, what may be asked of it, and what it says. Pure: no database, no clock."""

from __future__ import annotations

from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Annotated

from pydantic import BaseModel

from tailrace import Decider, Every, Personal, Rejected, event, upcast


@event("account_opened", version=2)  # the stored name: the class may be renamed or moved
class Opened(BaseModel, frozen=True):
    customer: str
    owner: Annotated[str, Personal(subject="customer")]  # encrypted until the customer is forgotten
    currency: str


# Until last year events said "name", and there were only euros. What is stored stays as it is.
upcast("account_opened", 1, rename={"name": "owner"}, default={"currency": "EUR", "customer": "unknown"})


@event("deposited")
class Deposited(BaseModel, frozen=True):
    amount: Decimal


@event("withdrawn")
class Withdrawn(BaseModel, frozen=True):
    amount: Decimal


Event = Opened | Deposited | Withdrawn


@dataclass(frozen=True)
class Open:
    customer: str
    owner: str
    currency: str = "EUR"


@dataclass(frozen=True)
class Deposit:
    amount: Decimal


@dataclass(frozen=True)
class Withdraw:
    amount: Decimal


Command = Open | Deposit | Withdraw


@dataclass(frozen=True)
class Account:
    is_open: bool = False
    owner: str = ""
    balance: Decimal = Decimal(0)


def decide(command: Command, account: Account) -> list[Event]:
    match command:
        case Open(customer, owner, currency):
            if account.is_open:
                raise Rejected(f"the account is {account.owner}'s already")
            return [Opened(customer=customer, owner=owner, currency=currency)]
        case _ if not account.is_open:
            raise Rejected("the account is not open")
        case Deposit(amount):
            return [Deposited(amount=amount)]
        case Withdraw(amount):
            if amount > account.balance:
                raise Rejected("insufficient funds")
            return [Withdrawn(amount=amount)]


def evolve(account: Account, event: Event) -> Account:
    match event:
        case Opened(owner=owner):
            return replace(account, is_open=True, owner=owner)
        case Deposited(amount=amount):
            return replace(account, balance=account.balance + amount)
        case Withdrawn(amount=amount):
            return replace(account, balance=account.balance - amount)


accounts = Decider("account", Account(), decide, evolve, snapshot=Every(events=100))
