"""Runs of a state machine against a model."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import Phase, settings
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test


def run_machine(make: Callable[[], RuleBasedStateMachine], *, examples: int, steps: int) -> None:
    """Random histories of up to ``steps`` steps. What failed is printed as it was: to make it small would take more
    runs than the test has time for."""
    run_state_machine_as_test(
        make,  # type: ignore[arg-type]  # any factory will do
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            phases=[Phase.explicit, Phase.generate],
            database=None,
        ),
    )
