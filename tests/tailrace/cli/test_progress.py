"""What a load and a refresh show while they run."""

from __future__ import annotations

import io
import json
import re

import pytest

from tailrace.cdc.status import CaptureProgress
from tailrace.cli.daily.capture import as_document, load_progress, summary
from tailrace.cli.progress import Pace, Reporter
from tailrace.cli.store.move import report_copied
from tailrace.terminal import Output


def test_a_load_shows_rows_rate_and_the_time_that_is_left() -> None:
    progress = CaptureProgress("shop")
    progress.set_load(["public.orders"], rows=3000, expected=10_000, rate=10.0)
    assert "3,000 of about 10,000 rows of 1 table, 10/s, 12 min left" in summary(progress.status())
    progress.set_load(["public.orders"], rows=12_000, expected=10_000, rate=10.0)
    assert "0 s left" in summary(progress.status()), "the server's estimate was too low"


def test_a_load_is_counted_in_the_fields_of_all_progress() -> None:
    progress = CaptureProgress("shop")
    assert load_progress(progress.status()) is None
    progress.set_load(["public.orders"], rows=3000, expected=10_000, rate=10.0)
    load = load_progress(progress.status())
    assert load is not None and load.facts() == {
        "step": "loading", "done": 3000, "total": 10_000, "unit": "rows", "per_second": 10.0, "seconds_left": 700.0,
    }  # fmt: skip


def test_records_of_a_source_with_thousands_of_tables_stay_short(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "tailrace.capture")
    progress = CaptureProgress("shop")
    names = [f"public.t{number}" for number in range(10_000)]
    progress.set_load(names)
    progress.set_pending(names)
    progress.note(f"{', '.join(names)} complete")
    progress.report(f"{', '.join(names)} must be read again")
    status = progress.status()
    document = as_document(status)
    assert (document["loading_count"], document["pending_tables_count"]) == (10_000, 10_000)
    assert "and 9,980 more" in summary(status) and "10,000 tables" in summary(status)
    texts = [json.dumps(document), summary(status), *(record.getMessage() for record in caplog.records)]
    assert len(texts) == 4 and max(map(len, texts)) < 5000


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


def test_elsewhere_than_on_a_terminal_progress_is_json_lines_now_and_then_and_the_last() -> None:
    lines, seconds = io.StringIO(), 100.0
    output = Output(stderr=lines)
    with output.progress("rebuild totals") as progress:
        report = Reporter(progress, Pace(lambda: seconds))
        for done in range(8):
            report("applying totals", done, 8, "buckets")
            seconds += 2
        output.note("g1 was built")
    first, note, last = lines.getvalue().splitlines()
    expected = {"activity": "rebuild totals", "step": "applying totals", "total": 8, "unit": "buckets"}
    assert json.loads(first) == expected | {
        "text": "applying totals 0 of 8 buckets", "done": 0, "per_second": None, "seconds_left": None,
    }  # fmt: skip
    assert note == "g1 was built", "what is for people stays for people"
    assert json.loads(last) == expected | {
        "text": "applying totals 7 of 8 buckets, 0.5/s, 2 s left", "done": 7, "per_second": 0.5, "seconds_left": 2.0,
    }  # fmt: skip


def test_elsewhere_than_on_a_terminal_a_line_is_written_each_five_seconds_of_each_source(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lines, seconds = io.StringIO(), 100.0
    monkeypatch.setattr("tailrace.terminal.time.monotonic", lambda: seconds)
    with Output(stderr=lines).progress("capture") as progress:
        for _ in range(12):
            for source in ("shop", "crm"):
                progress.say(f"{source} at {seconds:.0f}", source=source)
            seconds += 1
    told = [json.loads(line)["text"] for line in lines.getvalue().splitlines()]
    assert told == [f"{source} at {at}" for at in (100, 105, 110, 111) for source in ("shop", "crm")]


def test_a_move_shows_files_and_bytes_with_rate_and_the_time_that_is_left() -> None:
    lines, seconds = io.StringIO(), 100.0
    with Output(json=True, stderr=lines).progress("moving") as progress:
        report = Reporter(progress, Pace(lambda: seconds))
        for files in (1, 3):
            report_copied(report, files, 8, files << 20, 8 << 20)
            seconds += 4
    told = json.loads(lines.getvalue().splitlines()[-1])
    assert told["text"] == "3 of 8 files, 3.0 MiB of 8.0 MiB, 512.0 KiB/s, 10 s left"
    assert (told["files"], told["files_total"], told["unit"]) == (3, 8, "bytes")
    assert (told["done"], told["total"], told["per_second"]) == (3 << 20, 8 << 20, 512 << 10)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True
