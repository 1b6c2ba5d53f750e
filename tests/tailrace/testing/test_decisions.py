"""Given, when, then: what holds passes, and what does not says how it differs."""

from __future__ import annotations

import re
from collections.abc import Callable
from decimal import Decimal
from typing import assert_type

import pytest
from pydantic import BaseModel

from tailrace.eventstore.errors import UsageError
from tailrace.eventstore.streams import Decider
from tailrace.testing import Given, given
from tests.eventstore.streams.bank import Account, Deposit, Deposited, Purse, Withdraw, Withdrawn, account


def deposited(amount: int) -> Deposited:
    return Deposited(amount=Decimal(amount))


def withdrawn(amount: int) -> Withdrawn:
    return Withdrawn(amount=Decimal(amount))


def test_a_decider_in_sentences() -> None:
    assert_type(given(account, deposited(5)), Given[Deposit | Withdraw, Account])
    given(account).when(Deposit(5)).then(deposited(5))
    given(account, deposited(5)).when(Withdraw(10)).then_rejected("insufficient")
    given(account, deposited(5)).when(Deposit(0)).then()
    given(account, deposited(5)).when(Withdraw(2)).then_state(Account(3)).then(withdrawn(2))


def test_a_story_goes_on() -> None:
    story = given(account).when(Deposit(5)).then(deposited(5)).when(Withdraw(6)).then_rejected()
    story.when(Withdraw(5)).then(withdrawn(5)).when(Withdraw(1)).then_rejected("funds")


def test_an_aggregate_in_sentences() -> None:
    assert_type(given(Purse), Given[Callable[[Purse], object], Purse])
    given(Purse, deposited(5)).when(lambda purse: purse.take(2)).then(withdrawn(2))
    given(Purse, deposited(5)).when(lambda purse: purse.take(6)).then_rejected("insufficient")
    given(Purse).when(lambda purse: purse.put(1)).then(deposited(1)).when(lambda purse: purse.take(1)).then(
        withdrawn(1)
    )


FIVE = given(account).when(Deposit(5))
REFUSED = given(account).when(Withdraw(5))


@pytest.mark.parametrize(
    ("check", "message"),
    [
        (lambda: FIVE.then(), "events: \n  Deposited(amount=Decimal('5'))\nexpected: none"),
        (lambda: FIVE.then(deposited(6)), "'5'))\nexpected: \n  Deposited(amount=Decimal('6'))"),
        (lambda: FIVE.then(deposited(5), deposited(5)), "events: \n  Deposited"),
        (lambda: FIVE.then_rejected("closed"), "expected: rejected, 'closed'"),
        (lambda: FIVE.then_state(Account(4)), "state: Account(balance=5)\nexpected: Account(balance=4)"),
        (lambda: REFUSED.then(withdrawn(5)), "rejected: insufficient funds\nexpected: \n  Withdrawn"),
        (lambda: REFUSED.then(), "rejected: insufficient funds\nexpected: none"),
        (lambda: REFUSED.then_rejected("closed"), "rejected: insufficient funds\nexpected: 'closed'"),
    ],
)
def test_what_does_not_hold_says_how_it_differs(check: Callable[[], object], message: str) -> None:
    with pytest.raises(AssertionError, match=re.escape(message)):
        check()


def test_an_event_that_does_not_survive_is_not_taken() -> None:
    class Undeclared(BaseModel):
        pass

    def decide(command: None, state: None) -> list[Undeclared]:
        return [Undeclared()]

    decider = Decider("odd", None, decide, lambda state, event: state)
    with pytest.raises(UsageError, match="not declared as an event"):
        given(decider).when(None)
    with pytest.raises(UsageError, match="does not survive"):
        given(account, Deposited.model_construct(amount="five"))  # type: ignore[arg-type]


def test_what_a_decision_raises_beside_a_refusal_comes_out() -> None:
    def fails(command: None, state: None) -> list[Deposited]:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        given(Decider("odd", None, fails, lambda state, event: state)).when(None)
