"""Histories that are drawn are those that the decider itself leads to."""

from __future__ import annotations

from decimal import Decimal
from itertools import accumulate

import pytest
from hypothesis import given as drawn
from hypothesis import strategies as st

from tailrace.eventstore.errors import UsageError
from tailrace.eventstore.streams import Decider, Query
from tailrace.testing import given, histories
from tests.eventstore.streams.bank import Deposit, Deposited, Purse, Withdraw, Withdrawn, account

AMOUNTS = st.integers(0, 9)
COMMANDS = st.builds(Deposit, AMOUNTS) | st.builds(Withdraw, AMOUNTS)
CALLS = AMOUNTS.map(lambda n: lambda purse: purse.put(n)) | AMOUNTS.map(lambda n: lambda purse: purse.take(n))


def balances(history: list[Deposited | Withdrawn]) -> list[Decimal]:
    return list(accumulate(each.amount if isinstance(each, Deposited) else -each.amount for each in history))


@drawn(histories(account, COMMANDS))
def test_a_history_of_a_decider_is_one_that_it_leads_to(history: list[Deposited | Withdrawn]) -> None:
    assert min(balances(history), default=0) >= 0
    given(account, *history).when(Withdraw(10**6)).then_rejected("insufficient")


@drawn(histories(Purse, CALLS))
def test_and_of_an_aggregate(history: list[Deposited | Withdrawn]) -> None:
    assert min(balances(history), default=0) >= 0


def test_what_has_no_history_is_refused() -> None:
    beyond: Decider[object, int, Deposited] = Decider(
        "account", 0, lambda command, state: [], lambda state, event: state, boundary=lambda c: Query(tag=c)
    )
    with pytest.raises(UsageError, match="boundary"):
        histories(beyond, COMMANDS)
