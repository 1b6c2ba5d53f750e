"""What a load shows while it runs."""

from __future__ import annotations

from cdc.status import Progress
from tailrace.cli.capture import summary


def test_a_load_shows_rows_rate_and_the_time_that_is_left() -> None:
    progress = Progress("shop")
    progress.loading(["public.orders"], rows=3000, expected=10_000, rate=10.0)
    assert "3,000 of about 10,000 rows of 1 table, 10/s, 12 min left" in summary(progress.status())
    progress.loading(["public.orders"], rows=12_000, expected=10_000, rate=10.0)
    assert "0 s left" in summary(progress.status()), "the server's estimate was too low"
