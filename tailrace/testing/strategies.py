"""A strategy of hypothesis: any history that a decider leads to.

    @given(histories(account, st.builds(Deposit, amount) | st.builds(Withdraw, amount)))
    def test_no_account_is_overdrawn(events):
        assert fold(events).balance >= 0

Needs the package hypothesis.
"""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from tailrace.eventstore.errors import UsageError
from tailrace.eventstore.streams.deciding.aggregate import Aggregate
from tailrace.eventstore.streams.deciding.decider import Decider, Rejected
from tailrace.eventstore.streams.deciding.handle import behaviour_of

_ID = "given"


def histories(
    decider: Decider[Any, Any, Any] | type[Aggregate],
    commands: st.SearchStrategy[Any],
    *,
    max_commands: int = 10,
) -> st.SearchStrategy[list[Any]]:
    """The events of a stream to which some of ``commands`` led, one after the other. Rejected ones change nothing.

    Raises UsageError for a decider with a boundary: its events are of several streams.
    """
    behaviour = behaviour_of(decider)
    if behaviour.boundary is not None:
        raise UsageError(
            "a decider with a boundary has no history of one stream",
            hint="draw events of its models, and give them to given()",
        )

    def led_to(asked: list[Any]) -> list[Any]:
        state, made = behaviour.begin(_ID), list[Any]()
        for command in asked:
            try:
                more, state = behaviour.run(command, state)
            except Rejected:
                state = behaviour.fold(behaviour.begin(_ID), made)  # an aggregate may have gone half the way
                continue
            made += more
        return made

    return st.lists(commands, max_size=max_commands).map(led_to)
