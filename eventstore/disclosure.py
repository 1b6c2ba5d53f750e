"""Whether diagnostics may show values of rows, and what they show instead; and passwords inside addresses.

An error, a log line or a verification's sample goes to terminals, log collectors and tickets, where values of rows have
no business. So code that writes such a text passes each value through ``value``, and each foreign sentence (of the
server, a driver, Arrow, Spark, a user's function) through ``hide_text``, ``server_text`` or ``exception_text``. What is
hidden never gets into the text, so no handler, traceback or other process further up can let it out.

``TAILRACE_SHOW_VALUES=1`` lets values through; the command line's ``--show-values`` sets it. It is an environment
variable so that Spark's workers, which are processes of their own, follow the command that started them.
"""

from __future__ import annotations

import os
import re
import traceback
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from urllib.parse import parse_qs, unquote, urlsplit

from tailrace.eventstore.errors import TailraceError

VARIABLE = "TAILRACE_SHOW_VALUES"

# Exceptions whose text names attributes, modules and files, never a value.
_ABOUT_CODE = (AttributeError, ImportError, NameError, NotImplementedError, SyntaxError)
# From the first mark of quotation to the last, in the languages a server speaks; without a second one to the end.
_QUOTED = re.compile(r"[\"'«»„“”‘’「『].*[\"'«»„“”‘’」』]|[\"'«»„“”‘’「『].*", re.S)
_BYTES = re.compile(r"0x[0-9A-Fa-f]{2}(?: 0x[0-9A-Fa-f]{2})*")
# Classes of SQLSTATEs (appendix A of the manual) whose first sentence names things of the schema and of the server. In
# others (22, data exceptions, above all) what is quoted may be a value; DETAIL and CONTEXT may hold whole rows in all.
_ABOUT_SCHEMA = frozenset(
    {"00", "01", "02", "08", "0A", "0B", "23", "25", "26", "28", "2B", "2D", "34", "3B", "3D", "3F", "40", "42", "53",
     "54", "55", "57", "58"}
)  # fmt: skip
_WRITTEN_BY_USERS = frozenset({"P0", "38", "39", "F0", "HV"})  # RAISE and its like: any sentence at all
ESCAPES = "in a password write %40 for @ and %2F for /"
_DISTINCT_CHARS = 8  # a shorter password may stand in a text by chance


def values_are_shown() -> bool:
    """Whether values are shown."""
    return os.environ.get(VARIABLE) == "1"


@contextmanager
def show_values(wanted: bool) -> Iterator[None]:
    """Inside, values are shown if ``wanted``, in child processes too; otherwise as the environment says."""
    before = os.environ.get(VARIABLE)
    if wanted:
        os.environ[VARIABLE] = "1"
    try:
        yield
    finally:
        if before is None:
            os.environ.pop(VARIABLE, None)
        else:
            os.environ[VARIABLE] = before


def value(cell: object) -> str:
    """A value as a diagnostic gives it: as Python writes it, or only how long it is."""
    if values_are_shown():
        return repr(cell)
    return _placeholder(cell) if isinstance(cell, str | bytes) else _placeholder(str(cell))


def hide_text(text: str) -> str:
    """Words of somebody else of which nothing is known."""
    return text if values_are_shown() or not text else _placeholder(text)


def hide_quoted_values(text: str) -> str:
    """Words of somebody else that may quote values, between marks of quotation or as bytes in hex."""
    if values_are_shown():
        return text
    without = _QUOTED.sub(lambda match: _placeholder(match[0][1:-1] or match[0]), text)
    return _BYTES.sub(lambda match: _placeholder(match[0]), without)


def server_text(
    state: str | None, primary: str, detail: str | None = None, context: str | None = None
) -> str:
    """What a Postgres server complained about, on one line: its sentence; with values shown also the rest."""
    if values_are_shown():
        more = [f"DETAIL: {detail}"] if detail else []
        more += [f"CONTEXT: {context}"] if context else []
        return " ".join(" ".join([primary, *more]).split())
    kind = (state or "")[:2]
    if kind in _WRITTEN_BY_USERS or " RAISE" in (context or ""):  # "PL/pgSQL function f() line 1 at RAISE"
        return hide_text(primary)
    return primary if kind in _ABOUT_SCHEMA else hide_quoted_values(primary)


def exception_text(error: BaseException) -> str:
    """The text of an exception that is not ours."""
    about_files = isinstance(error, OSError) and error.errno is not None
    return str(error) if about_files or isinstance(error, _ABOUT_CODE) else hide_text(str(error))


def describe_error(error: BaseException) -> str:
    """Class, text and place of an exception on one line."""
    kind = type(error)
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    text = str(error) if isinstance(error, TailraceError) else exception_text(error)
    frames = traceback.extract_tb(error.__traceback__)
    place = f" ({os.path.basename(frames[-1].filename)}:{frames[-1].lineno})" if frames else ""
    return f"{name}: {text}{place}" if text else f"{name}{place}"


def traceback_of(error: BaseException) -> str:
    """The frames of an exception and of those that led to it. (Python's own printing quotes all their texts.)"""
    cause = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    before = f"{traceback_of(cause)}\n\nwhich led to:\n\n" if cause is not None else ""
    frames = "".join(traceback.format_tb(error.__traceback__))
    return f"{before}Traceback (most recent call last):\n{frames}{describe_error(error)}"


def _placeholder(text: str | bytes) -> str:
    unit = "byte" if isinstance(text, bytes) else "character"
    return f"<hidden: {len(text):,} {unit}{'' if len(text) == 1 else 's'}>"


def is_ambiguous(url: str) -> bool:
    """Whether a password with an ``@`` or ``/`` that is not escaped would be taken for a host or a database, whose
    names are printed. (``user:pa/ss@host/db`` leads to host ``user``.)"""
    authority, _, path = url.partition("://")[2].partition("/")
    return authority.count("@") > 1 or "@" in path.partition("?")[0]


def password_of(address: str) -> str | None:
    """The password in a URL or in libpq's ``key=value`` form, as the server gets it."""
    if "://" not in address:
        match = re.search(r"\bpassword\s*=\s*(?:'((?:[^'\\]|\\.)*)'|(\S+))", address)
        return re.sub(r"\\(.)", r"\1", match[1] if match[1] is not None else match[2]) if match else None
    try:
        parts = urlsplit(address)
    except ValueError:
        return None
    if parts.password:
        return unquote(parts.password)
    return next(iter(parse_qs(parts.query).get("password", [])), None)


def reveals(text: str, secrets: Iterable[str]) -> bool:
    """Whether a text is one of the secrets, or has one in it."""
    return any(text == secret or (len(secret) >= _DISTINCT_CHARS and secret in text) for secret in secrets)
