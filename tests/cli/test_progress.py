"""What a load and a refresh show while they run."""

from __future__ import annotations

import io
import json
import re

import pytest

from cdc.status import Progress
from tailrace.cli.capture import summary
from tailrace.cli.lifecycle import Reporter
from tailrace.cli.output import Output
from tailrace.cli.pace import Pace


def test_a_load_shows_rows_rate_and_the_time_that_is_left() -> None:
    progress = Progress("shop")
    progress.loading(["public.orders"], rows=3000, expected=10_000, rate=10.0)
    assert "3,000 of about 10,000 rows of 1 table, 10/s, 12 min left" in summary(progress.status())
    progress.loading(["public.orders"], rows=12_000, expected=10_000, rate=10.0)
    assert "0 s left" in summary(progress.status()), "the server's estimate was too low"


def test_a_refresh_shows_buckets_rate_and_the_time_that_is_left() -> None:
    lines, seconds = io.StringIO(), 100.0
    with Output(json=True, stderr=lines).progress("rebuild totals") as progress:
        report = Reporter(progress, Pace(lambda: seconds))
        for done, passed in ((0, 0.0), (2, 4.0), (6, 8.0)):
            seconds += passed
            report("applying totals", done, 8, "buckets")
        report("applying items", 1, 8, "buckets")
    told = [json.loads(line) for line in lines.getvalue().splitlines()]
    assert [(line["per_second"], line["seconds_left"]) for line in told] == [
        (None, None), (0.5, 12.0), (0.5, 4.0), (None, None),
    ]  # fmt: skip
    assert told[2]["text"] == "applying totals 6 of 8 buckets, 0.5/s, 4 s left"
    assert told[3]["text"] == "applying items 1 of 8 buckets"
    assert (told[2]["step"], told[2]["done"], told[2]["total"]) == ("applying totals", 6, 8)


def test_somebody_at_a_terminal_sees_one_line_that_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    screen, seconds = Terminal(), 100.0
    output = Output(stdout=screen, stderr=screen)
    with output.progress("rebuild totals") as progress:
        report = Reporter(progress, Pace(lambda: seconds))
        report("applying totals", 0, 8, "buckets")
        seconds += 4
        report("applying totals", 2, 8, "buckets")
        output.note("g1 was built")
    shown = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", screen.getvalue())
    assert "rebuild totals: applying totals 2 of 8 buckets, 0.5/s, 12 s left" in shown
    assert "g1 was built\n" in shown
    assert screen.getvalue().endswith("\x1b[1A\x1b[2K"), "the line is taken away in the end"


def test_in_a_pipe_a_line_is_written_now_and_then() -> None:
    lines = io.StringIO()
    with Output(stderr=lines).progress("rebuild totals") as progress:
        for done in range(8):
            Reporter(progress)("applying totals", done, 8, "buckets")
    assert lines.getvalue() == "rebuild totals: applying totals 0 of 8 buckets\n"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True
