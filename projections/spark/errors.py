"""From an exception of the projection's code, or of Spark running it, to one readable error.

A user's mistake is reported by the projection's name, the user's own file and line, and the beginning of the
exception's message. Errors that our own tasks raise cross the JVM as text; they are found in it and raised again as
what they were.
"""

from __future__ import annotations

import re
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tailrace.eventstore import disclosure, errors
from tailrace.eventstore.errors import (
    HistoryGone,
    OperatorError,
    TailraceError,
    TransientError,
    UnknownCell,
    UnreadableCell,
)
from tailrace.projections.definition.model import ProjectionFailed
from tailrace.projections.definition.source import is_project_file, relative_path, user_place
from tailrace.projections.definition.sql_query import SqlQuery

if TYPE_CHECKING:
    from tailrace.projections.definition.model import Projection

FOR_GOOD = (ProjectionFailed, UnreadableCell, UnknownCell, HistoryGone)
"""Errors that come again however often a build is continued: code, input or output is at fault, or rows are gone."""

_FRAME = re.compile(r'File "([^"]+)", line (\d+)')
_OWN_MODULES = "|".join(re.escape(kind.__module__) for kind in (TailraceError, ProjectionFailed))
_OWN_ERROR = re.compile(rf"^(?:{_OWN_MODULES})\.(\w+): (.*?)(?=\n\tat |\n\n|\Z)", re.S | re.M)
_PYTHON_ERROR = re.compile(
    r"^([A-Za-z_][\w.]*(?:Error|Exception|Warning|Exit|Interrupt|Invalid)): ?(.*)$", re.M
)
_VIEW = re.compile(r"`?_pyspark_[0-9a-f]{32}`?")
"""pyspark's name for a DataFrame in SQL."""
_HINT = "\n  hint: "
_JAVA_CLASS = re.compile(r"\b(?:[a-z][a-z0-9]*\.)+[A-Z]\w*(?:Exception|Error)\b")
_MEMORY = "give the driver more memory (spark.driver_memory), or run fewer tasks at once (spark.master)"
_LACKED = {
    "java.lang.OutOfMemoryError": ("memory", _MEMORY),
    "SparkOutOfMemoryError": ("memory", _MEMORY),
    "Not enough memory to build and broadcast the table": ("memory", _MEMORY),
    "No space left on device": ("room on a disk", "make room where temporary files are (TMPDIR, SPARK_LOCAL_DIRS)"),
}  # fmt: skip
"""What Spark's JVM says when the machine is at fault, and not the projection."""
_MAX_WORDS = 600
_WORKER_GONE = "Python worker exited unexpectedly (crashed)"
_BEFORE_ROWS = frozenset({"AnalysisException", "ParseException", "PySparkAttributeError"})


_DRIVERS = ("psycopg", "redis.", "sqlalchemy.")


@contextmanager
def translate_errors(projection: Projection, doing: str) -> Iterator[None]:
    """Run a projection's code, or Spark on its plan; what it raises becomes a TailraceError. ``doing`` is a verb phrase
    for the message ("defining its result", "computing its result")."""
    try:
        yield
    except TailraceError:
        raise
    except Exception as error:
        if _was_interrupted(error):
            raise KeyboardInterrupt from error
        raise explain(projection, doing, error) from error


def let_go(error: BaseException | None) -> None:
    """Of an error that ends here: let go of what its frames hold. pyspark's refer to their own errors, so they live
    until Python collects cycles, and with them DataFrames, whose rows in the JVM Python does not see."""
    while error is not None:
        traceback.clear_frames(error.__traceback__)
        error = error.__cause__ or error.__context__


def _was_interrupted(error: BaseException | None) -> bool:
    """Whether Ctrl-C caused it. Spark's handler cancels the jobs and raises KeyboardInterrupt; the failure of a
    cancelled job may then replace it."""
    while error is not None:
        if isinstance(error, KeyboardInterrupt):
            return True
        error = error.__cause__ or error.__context__
    return False


@contextmanager
def translate_upkeep_errors(doing: str) -> Iterator[None]:
    """Run our own work, without a user's code, in Spark's tasks; errors of ours come out as what they were."""
    try:
        yield
    except TailraceError:
        raise
    except Exception as error:
        if _was_interrupted(error):
            raise KeyboardInterrupt from error
        text = _text(error)
        known = (
            _own_error(text)
            or _lacking(text, doing)
            or _lost_worker(text, doing)
            or _lost_session(text, doing)
        )
        if known is None:
            raise
        raise known from error


def explain(projection: Projection, doing: str, error: Exception) -> TailraceError:
    """The error to tell instead of ``error``."""
    text = _text(error)
    of_projection = f"{doing} of projection {projection.name!r}"
    known = (
        _own_error(text, f"projection {projection.name!r}: ")
        or _lacking(text, of_projection)
        or _lost_worker(text, of_projection)
        or _lost_session(text, of_projection)
    )
    if known is not None:
        return known
    query = projection.function
    in_query = query.place_of(error) if isinstance(query, SqlQuery) else None
    place = user_place(error) or _place_in_text(text) or in_query or projection.place
    cause = _cause(error)
    hidden = "; --show-values shows what is hidden" if "<hidden: " in cause else ""
    return ProjectionFailed(
        f"projection {projection.name!r} failed {doing} ({place}): {cause}",
        hint=f"mend the function{hidden}; the sink was not touched",
    )


def unforeseen_error(projection: Projection, doing: str, error: Exception) -> OperatorError:
    """The error for an exception that nobody foresaw, so that one projection's does not stop the others.

    Raises the exception itself when it comes from a disk or a server and not from the projection's code: it concerns
    all projections, and the command line explains it.
    """
    place = user_place(error)
    if place is None and (isinstance(error, OSError) or type(error).__module__.startswith(_DRIVERS)):
        raise error
    described = disclosure.describe_error(error)
    return OperatorError(
        f"projection {projection.name!r} failed {doing} ({place or projection.place}): {described}",
        hint="mend its definition; if nothing is wrong with it, this is a bug in Tailrace: please report it",
    )


def _own_error(text: str, prefix: str = "") -> TailraceError | None:
    """An error of our own that a Spark task raised, found in the text of the exception around it."""
    found = None
    for match in _OWN_ERROR.finditer(text):
        kind = ProjectionFailed if match[1] == "ProjectionFailed" else getattr(errors, match[1], None)
        if isinstance(kind, type) and issubclass(kind, TailraceError):
            found = (kind, match[2].rstrip())
    if found is None:
        return None
    kind, words = found
    message, _, hint = words.partition(_HINT)
    return kind(f"{prefix}{message}", hint=hint)


def _place_in_text(text: str) -> str | None:
    """The innermost user frame of a Python worker's traceback, which arrives as text."""
    places = [(path, line) for path, line in _FRAME.findall(text) if is_project_file(path)]
    return f"{relative_path(places[-1][0])}:{places[-1][1]}" if places else None


def _cause(error: Exception) -> str:
    """The class and the beginning of an exception's message, without plans and Java frames. Words that may hold values
    of rows are hidden; a plan that Spark refuses has not seen any."""
    text = str(error)
    name = type(error).__name__
    if getattr(error, "getCondition", None) is None:
        if not text:
            return name
        if disclosure.values_are_shown():
            return f"{name}: {_words(text)}"
        classes = ", ".join(dict.fromkeys(_JAVA_CLASS.findall(text))) if name == "Py4JJavaError" else ""
        return f"{name}: {f'{classes}: ' if classes else ''}{disclosure.exception_text(error)}"
    worker = [match for match in _PYTHON_ERROR.finditer(text) if not match[1].startswith("pyspark.")]
    if name == "PythonException" and worker:
        return f"{worker[-1][1]}: {disclosure.hide_text(worker[-1][2])}"
    if name in _BEFORE_ROWS or disclosure.values_are_shown():
        return _words(text)
    condition = re.match(r"\[[A-Z0-9_.]+\]", text)
    return f"{name}: {condition[0] + ' ' if condition else ''}{disclosure.hide_text(_words(text))}"


def _words(text: str) -> str:
    """The message without the JVM's stack, the plan and the query context."""
    head = re.split(
        r"\n\s*at |\nJVM stacktrace|;\n|\n== |\n\n'|\nDriver stacktrace", text.strip(), maxsplit=1
    )[0]
    head = _VIEW.sub("an input", head)
    return head if len(head) <= _MAX_WORDS else head[:_MAX_WORDS] + "…"


def _lacking(text: str, doing: str) -> TransientError | None:
    """The error when the machine has not enough of what Spark needs."""
    for words, (what, hint) in _LACKED.items():
        if words in text:
            return TransientError(
                f"Spark ran out of {what} while {doing}", hint=f"{hint}; then run the command again"
            )
    return None


def _lost_worker(text: str, doing: str) -> TransientError | None:
    """The error when a process that ran a task was killed as often as Spark tries, for example by a system out of
    memory."""
    if _WORKER_GONE not in text:
        return None
    return TransientError(
        f"a worker process of Spark's ended while {doing}",
        hint="run the command again; if it repeats, the machine lacks memory: fewer tasks at once (spark.master), or"
        " more of it",
    )


def _lost_session(text: str, doing: str) -> TransientError | None:
    """The error when Spark's JVM ended, or a server of Spark Connect."""
    from tailrace.projections.spark.connect import forget_if_lost, what_grpc_says
    from tailrace.projections.spark.session import is_ending

    if forget_if_lost(text):
        return TransientError(
            f"the server of Spark Connect went away while {doing}: {what_grpc_says(text)}",
            hint="run the command again when it is back",
        )
    if not is_ending():
        return None
    return TransientError(
        f"Spark went away while {doing}: {disclosure.hide_text(_words(text))}",
        hint="run the command again; if it repeats, give the driver more memory (spark.driver_memory)",
    )


def _text(error: Exception) -> str:
    """What an exception says. One of the JVM's is asked of the JVM, which may have ended since."""
    try:
        return str(error)
    except Exception:  # noqa: BLE001 a user's class may raise anything, too
        return type(error).__name__
