"""What a command prints: results on standard output, progress on standard error; rich on a terminal, plain in a pipe,
JSON with ``--json``. Progress is for people on a terminal only: elsewhere it is JSON lines.

Names and texts in it are others': whatever a terminal or a reader of lines would obey is written as its escape
(``printable``), here, for all commands."""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, is_dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from enum import Enum
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from rich.console import Console
    from rich.status import Status

# What a terminal obeys or what hides text: C0 and C1 controls, DEL, marks of direction, characters without a width,
# separators of lines; and halves of surrogates, which no encoding takes. Newlines are left to the caller.
_CONTROLS = re.compile(
    "[\x00-\x09\x0b-\x1f\x7f-\x9f\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    "\ud800-\udfff\U000e0000-\U000e007f]"
)
_INDENTED = "\n  "
UNBOUNDED_COLUMNS = 4096  # in a pipe nothing is wrapped or cut: lines are for grep
LINE_SECONDS = 5.0  # between two lines of progress where nobody asked for all of them (--json)


class Output:
    """Printer of one invocation. ``json`` turns every result into JSON on standard output, one document a line."""

    def __init__(
        self, *, json: bool = False, stdout: TextIO | None = None, stderr: TextIO | None = None
    ) -> None:
        self.json = json
        self._stdout = stdout or sys.stdout
        self._stderr = stderr or sys.stderr

    @property
    def interactive(self) -> bool:
        """Whether a person watches: standard error is a terminal and there is no ``--json``."""
        return not self.json and self._stderr.isatty()

    def load(self) -> None:
        """Import what lines for people need, and make the console, before several threads write some."""
        if not self.json:
            self.err.print(end="")

    def document(self, value: Any) -> None:
        """One JSON document on one line of standard output."""
        self._write(self._stdout, to_json(value))

    def line(self, text: str = "", style: str = "") -> None:
        """One line for people on standard output; nothing with ``--json``."""
        self.block(text.replace("\n", "\\n"), style)

    def block(self, text: str, style: str = "") -> None:
        """Lines for people on standard output, of a text that is ours; nothing with ``--json``."""
        if not self.json:
            shown = printable(text)
            self._out.print(shown, style=style or None, markup=False, highlight=False, soft_wrap=True)

    def note(self, text: str, style: str = "") -> None:
        """A line for people on standard error, further lines of it indented; nothing with ``--json``."""
        if not self.json:
            shown = printable(text, _INDENTED)
            self.err.print(shown, style=style or None, markup=False, highlight=False, soft_wrap=True)

    def traceback(self, text: str) -> None:
        """A traceback on standard error, indented, also with ``--json``."""
        self._write(self._stderr, printable("  " + text, _INDENTED))

    def table(self, columns: Sequence[str], rows: Sequence[Sequence[object]], *, title: str = "") -> None:
        """A table for people on standard output; nothing with ``--json``. Numbers are set to the right."""
        if self.json:
            return
        numeric = [
            bool(rows) and all(_is_number(row[index]) for row in rows) for index in range(len(columns))
        ]
        cells = [[cell_text(cell) for cell in row] for row in rows]
        columns, title = [printable(name, "\\n") for name in columns], printable(title, "\\n")
        if not self._out.is_terminal:
            _plain_table(self._stdout, columns, cells, numeric, title)
            return
        from rich import box
        from rich.table import Table
        from rich.text import Text

        table = Table(
            title=title or None, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False,
            show_header=any(columns),
        )  # fmt: skip
        for index, (name, right) in enumerate(zip(columns, numeric, strict=True)):
            table.add_column(name, justify="right" if right else "left", overflow="fold", no_wrap=not index)
        for row in cells:
            table.add_row(*(Text(cell) for cell in row))
        self._out.print(table)

    @contextmanager
    def progress(self, activity: str) -> Iterator[Progress]:
        """Progress of long work on standard error."""
        progress = Progress(self, activity)
        try:
            yield progress
        finally:
            progress.close()

    @cached_property
    def _out(self) -> Console:
        """On a terminal the same console as that of standard error: a line then goes above a running spinner."""
        if self.interactive and self._stdout.isatty():
            return self.err
        return _console(self._stdout)

    @cached_property
    def err(self) -> Console:
        """The one console of standard error: a spinner and lines above it do not mix on two."""
        return _console(self._stderr)

    def json_line(self, value: Any) -> None:
        """One JSON line of progress on standard error."""
        self._write(self._stderr, to_json(value))

    @staticmethod
    def _write(file: TextIO, text: str) -> None:
        file.write(text + "\n")
        file.flush()


class Progress:
    """What long work is doing: on a terminal one line that changes, elsewhere JSON lines on standard error. With
    ``--json`` every message is a line; without it each source has one every few seconds, and its last."""

    def __init__(self, output: Output, activity: str) -> None:
        self._output = output
        self._activity = activity
        self._said_at: dict[object, float] = {}
        self._held: dict[object, dict[str, object]] = {}
        self._status: Status | None = None
        if output.interactive:
            self._status = output.err.status(_markup(activity))
            self._status.start()

    def say(self, text: str, **facts: object) -> None:
        """``text`` for people, ``facts`` for programs. Sources that take turns carry the fact ``source``, so that none
        hides another."""
        if self._status is not None:
            self._status.update(_markup(f"{self._activity}: {text}"))
            return
        source, now = facts.get("source"), time.monotonic()
        self._held[source] = {"activity": self._activity, "text": text, **facts}
        if self._output.json or now - self._said_at.get(source, float("-inf")) >= LINE_SECONDS:
            self._said_at[source] = now
            self._output.json_line(self._held.pop(source))

    def watch(self, text: str) -> None:
        """``text`` on a terminal; nothing elsewhere."""
        if self._status is not None:
            self._status.update(_markup(f"{self._activity}: {text}"))

    def close(self) -> None:
        if self._status is not None:
            self._status.stop()
        for line in self._held.values():
            self._output.json_line(line)


def _is_number(value: object) -> bool:
    return value is None or (isinstance(value, int | float) and not isinstance(value, bool))


def _plain_table(
    file: TextIO, columns: Sequence[str], rows: Sequence[Sequence[str]], numeric: Sequence[bool], title: str
) -> None:
    """Columns aligned by spaces, one line a row, nothing wrapped or cut: for grep and awk."""
    lines = [
        *([list(columns)] if any(columns) else []),
        *([cell.replace("\n", " | ") for cell in row] for row in rows),
    ]
    widths = [max((len(line[index]) for line in lines), default=0) for index in range(len(columns))]
    if title:
        file.write(title + "\n")
    for line in lines:
        padded = [
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(line, widths, numeric, strict=True)
        ]
        file.write("  ".join(padded).rstrip() + "\n")


def _console(file: TextIO) -> Console:
    from rich.console import Console

    return Console(file=file, width=None if file.isatty() else UNBOUNDED_COLUMNS, emoji=False)


def printable(text: str, newline: str = "\n") -> str:
    """The text with escapes, as Python writes them, for characters that a terminal would obey or hide."""
    return _CONTROLS.sub(lambda found: ascii(found[0])[1:-1], text).replace("\n", newline)


def _markup(text: str) -> str:
    from rich.markup import escape

    return escape(printable(text, "\\n"))


def cell_text(value: object) -> str:
    """A value as a table shows it; a list has its lines."""
    match value:
        case None:
            return "-"
        case bool():
            return "yes" if value else "no"
        case int():
            return f"{value:,}"
        case float():
            return f"{value:,.1f}"
        case datetime():
            return when(value)
        case list():
            return "\n".join(map(cell_text, value))
        case _:
            return printable(str(value), "\\n")


def when(moment: datetime | None) -> str:
    """A moment in UTC to the millisecond."""
    if moment is None:
        return "-"
    utc = moment.astimezone(UTC) if moment.tzinfo else moment
    return utc.strftime("%Y-%m-%d %H:%M:%S.") + f"{utc.microsecond // 1000:03d}Z"


def count(number: int, noun: str) -> str:
    """A number with its noun: ``1 row``, ``22,500 rows``."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def size(count: int) -> str:
    """Bytes with a binary unit."""
    amount = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(amount) < 1024:
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1024
    return f"{amount:.1f} TiB"


def duration(seconds: float) -> str:
    """``50 s``, ``12 min``, ``3.4 h``."""
    if seconds < 100:
        return f"{max(seconds, 0):.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


def to_json(value: Any) -> str:
    """JSON as other languages read it: it has no NaN and no infinity, so these are texts."""
    try:
        text = json.dumps(value, default=_to_plain, ensure_ascii=False, allow_nan=False)
    except ValueError:
        readable = json.loads(json.dumps(value, default=_to_plain), parse_constant=str)
        text = json.dumps(readable, ensure_ascii=False, allow_nan=False)
    return _CONTROLS.sub(lambda found: json.dumps(found[0])[1:-1], text)


def _to_plain(value: Any) -> Any:
    match value:
        case datetime() | date():
            return value.isoformat()
        case Decimal() | Path():
            return str(value)
        case Enum():
            return value.value
        case bytes():
            return "\\x" + value.hex()
        case set() | frozenset() | tuple():
            return list(value)
        case _ if is_dataclass(value) and not isinstance(value, type):
            return asdict(value)
        case _:
            return str(value)
