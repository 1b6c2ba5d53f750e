"""Runs of a state machine against a model, each example on a store of its own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from hypothesis import Phase, settings
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test

from tailrace.eventstore.settings import StoreSettings


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


def numbered_store(
    catalog_url: str, folder: Path, number: int, **settings: Any
) -> tuple[Path, StoreSettings]:
    """Folder and settings of a machine's store: no other has its folder, nor its schema on Postgres."""
    url = catalog_url if catalog_url.startswith("postgres") else "sqlite:///catalog.db"
    return folder / str(number), StoreSettings(
        name=f"s{number}", catalog=url, segments=Path("segments"), **settings
    )
