"""How long an epoch waits for more transactions."""

from __future__ import annotations

import pytest

from tailrace.cdc.stream.receive import linger_of


@pytest.mark.parametrize(
    ("declared", "append", "waits"),
    [
        (0.03, 0.0, 0.03),  # nothing was appended yet
        (0.03, 0.01, 0.03),
        (0.03, 0.025, 0.05),  # appending takes a third of the time
        (0.03, 2.0, 0.09),  # one that was large keeps the next small one back for a moment only
        (0.0, 0.5, 0.0),  # whoever wants none gets none
    ],
)
def test_it_is_as_declared_and_longer_where_appends_are_slow(
    declared: float, append: float, waits: float
) -> None:
    assert linger_of(declared, append) == pytest.approx(waits)
