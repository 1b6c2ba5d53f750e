"""For pytest in a mutant: the same examples each time, and no search for the smallest one that fails."""

from __future__ import annotations

from hypothesis import Phase, settings


def pytest_sessionstart() -> None:
    settings.register_profile(
        "mutants", settings(), phases=(Phase.explicit, Phase.generate), derandomize=True, database=None
    )
    settings.load_profile("mutants")
