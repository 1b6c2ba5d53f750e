"""What a terminal or a reader of lines would obey comes out as its escape, wherever it stands."""

from __future__ import annotations

import io
import json
import logging
import unicodedata

import pytest

from tailrace.cli import log_handler
from tailrace.cli.errors import report
from tailrace.eventstore.errors import OperatorError
from tailrace.terminal import Output, printable

EVIL = "a\x1b[31mb\x07\x08\r\x7f\x9b2J\u202e\u2066\u200b\u2028\u2029\u200f\ufeff\ud800\t"
FORGED = f"{EVIL}\nerror: forged"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def harmless(text: str) -> bool:
    """No control, format or surrogate character but the end of a line."""
    return all(
        each == "\n" or unicodedata.category(each) not in {"Cc", "Cf", "Cs", "Zl", "Zp"} for each in text
    )


def test_every_character_that_a_terminal_obeys_or_hides_is_escaped() -> None:
    for number in range(0x110000):
        each = chr(number)
        if unicodedata.bidirectional(each) in {"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"}:
            assert printable(each) != each
        if unicodedata.category(each) in {"Cc", "Cs", "Zl", "Zp"} and each != "\n":
            assert printable(each) != each
    assert printable("Zoë 日本 😀 a\u0301") == "Zoë 日本 😀 a\u0301"


@pytest.mark.parametrize("as_json", [False, True])
def test_texts_of_others_forge_no_line_and_move_no_cursor(as_json: bool) -> None:
    out, err = io.StringIO(), io.StringIO()
    output = Output(json=as_json, stdout=out, stderr=err)
    output.line(FORGED)
    output.note(FORGED)
    output.table([FORGED, "n"], [[FORGED, 1], [[FORGED, FORGED], None]], title=FORGED)
    output.document({FORGED: FORGED, "number": float("nan")})
    with output.progress(FORGED) as progress:
        progress.say(FORGED, source=FORGED)
    report(OperatorError(FORGED, hint=FORGED), output)
    output.traceback(FORGED)
    record = logging.LogRecord("tailrace.x", logging.WARNING, "", 0, "%s", (FORGED,), None)
    with log_handler.restore_handlers():
        log_handler.install(output, verbose=True)
        logging.getLogger("tailrace").handle(record)
    for printed in (out.getvalue(), err.getvalue()):
        assert printed and harmless(printed), repr(printed)
        assert not any(line.startswith("error: forged") for line in printed.splitlines())
    document = json.loads(out.getvalue().splitlines()[-1])
    assert document[FORGED] == FORGED


def test_on_a_terminal_only_our_own_escapes_are_printed() -> None:
    out, err = Terminal(), Terminal()
    output = Output(stdout=out, stderr=err)
    output.line(FORGED, style="green")
    output.table(["name"], [[FORGED]])
    with output.progress(FORGED) as progress:
        progress.say(FORGED)
        progress.watch(FORGED)
    output.note(FORGED)
    for printed in (out.getvalue(), err.getvalue()):
        assert "\x1b[31m" not in printed and not set("\x07\x08\x9b\u202e\u2066\u200b\u2028") & set(printed)
