"""What the bank demands of its accounts: no database, no mocks.

python -m pytest examples/bank
"""

from __future__ import annotations

from decimal import Decimal

from examples.bank.account import Deposit, Deposited, Open, Opened, Withdraw, Withdrawn, accounts
from tailrace.testing import given

OPENED = Opened(customer="c1", owner="Ada", currency="EUR")
FIVE = Decimal(5)


def test_an_account_is_opened_once() -> None:
    given(accounts).when(Open("c1", "Ada")).then(OPENED)
    given(accounts, OPENED).when(Open("c2", "Bo")).then_rejected("Ada's already")


def test_nothing_is_done_to_an_account_that_is_not_open() -> None:
    given(accounts).when(Deposit(FIVE)).then_rejected("not open")


def test_nobody_takes_more_than_there_is() -> None:
    story = given(accounts, OPENED).when(Deposit(FIVE)).then(Deposited(amount=FIVE))
    story.when(Withdraw(Decimal(6))).then_rejected("insufficient funds")
    story.when(Withdraw(FIVE)).then(Withdrawn(amount=FIVE)).when(Withdraw(Decimal(1))).then_rejected()
