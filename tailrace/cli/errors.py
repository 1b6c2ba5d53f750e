"""How a failed command ends: what, where, what to do, and an exit code. A traceback only for bugs of ours."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterable
from types import TracebackType
from typing import Self

import typer

from tailrace.eventstore import disclosure
from tailrace.eventstore.errors import (
    DifferenceFound,
    Fenced,
    OperatorError,
    TailraceError,
    TransientError,
    UsageError,
)
from tailrace.terminal import Output

BUG = 1
INTERRUPTED = 130  # what a shell makes of SIGINT
# Of several failures the first of these decides: what waiting does not repair comes before what it does.
_FIRST = (
    BUG,
    OperatorError.exit_code,
    UsageError.exit_code,
    DifferenceFound.exit_code,
    TransientError.exit_code,
    Fenced.exit_code,
)
# Base class of a wrong command line. Typer carries its own click since 0.26 and used click before: both name it so.
_WRONG_COMMAND: type[Exception] = next(
    kind for kind in typer.BadParameter.__mro__ if kind.__name__ == "ClickException"
)
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
# Drivers' errors that mean "out of reach" when a room let one through, by module and name: nothing is imported for it.
_UNREACHABLE = frozenset(
    {
        ("psycopg", "OperationalError"),
        ("redis.exceptions", "ConnectionError"),
        ("redis.exceptions", "TimeoutError"),
        ("sqlalchemy.exc", "OperationalError"),
    }
)


def worst_code(codes: Iterable[int]) -> int:
    """The exit code of a command that went on after failures; 0 when there was none."""
    found = {code for code in codes if code}
    return next((code for code in _FIRST if code in found), max(found, default=0))


def report(error: TailraceError, output: Output, *, verbose: bool = False) -> int:
    """Say it on standard error, return its exit code."""
    if output.json:
        output.json_line({"error": _document(error)})
    else:
        output.note(f"error: {error.message}", style="bold red")
        if error.hint:
            output.note(f" hint: {error.hint}")
    if verbose:
        output.traceback(disclosure.traceback_of(error))
    return error.exit_code


def report_bug(error: BaseException, output: Output, *, verbose: bool) -> int:
    """An unforeseen exception. Its text may hold values of rows, so only its class and place are printed."""
    summary = disclosure.describe_error(error)
    hint = "this is a bug in Tailrace; the log and the sinks keep what was committed. "
    hint += (
        "Please report the lines above." if verbose else "Run again with --verbose and report what it prints."
    )
    if "<hidden: " in summary:
        hint += " --show-values shows what is hidden: read it before you pass it on."
    if output.json:
        output.json_line({"error": {"kind": "Bug", "message": summary, "hint": hint, "exit_code": BUG}})
    if verbose:
        output.traceback(disclosure.traceback_of(error))
    if not output.json:
        output.note(f"error: {summary}", style="bold red")
        output.note(f" hint: {hint}")
    return BUG


class Edge:
    """The edge of the command line: nothing inside leaves as an exception, it becomes words and ``code``."""

    def __init__(self, output: Output, *, verbose: bool) -> None:
        self.code = 0
        self._output = output
        self._verbose = verbose

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if isinstance(error, SystemExit) and isinstance(error.__context__, BrokenPipeError):
            error = error.__context__  # the parser turns `| head` into an exit with 1
        if error is None or isinstance(error, SystemExit):
            return False
        self.code = self._report_any(error)
        return True

    def _report_any(self, error: BaseException) -> int:
        if isinstance(error, typer.Exit):
            return error.exit_code
        if isinstance(error, KeyboardInterrupt | typer.Abort):
            self._output.note(
                "interrupted; what was committed is kept, the same command continues from there"
            )
            return INTERRUPTED
        if isinstance(error, BrokenPipeError):
            # The reader of our output has gone (`| head`): that is no failure, and nothing can be said to it.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 0
        if type(error).__name__ == "NoArgsIsHelpError":  # the help has been printed
            return UsageError.exit_code
        known = error if isinstance(error, TailraceError) else wrong_command(error) or outside_cause(error)
        if known is None:
            return report_bug(error, self._output, verbose=self._verbose)
        return report(known, self._output, verbose=self._verbose)


def wrong_command(error: BaseException) -> UsageError | None:
    """A command line that the parser refuses; None for anything else."""
    if not isinstance(error, _WRONG_COMMAND):
        return None
    context = getattr(error, "ctx", None)
    command = context.command_path if context is not None else "tailrace"
    message: str = error.format_message()  # type: ignore[attr-defined]
    return UsageError(message, hint=f"{command} --help")


def outside_cause(error: BaseException) -> TailraceError | None:
    """The error of a disk, a permission or a server that reached the command line as such; None when it is none."""
    if any((kind.__module__, kind.__name__) in _UNREACHABLE for kind in type(error).__mro__):
        said = " ".join(_unreachable_reason(error).split())
        return TransientError(
            f"a server is out of reach: {said}",
            hint="tailrace doctor says which one; what was committed is kept",
        )
    if not isinstance(error, OSError):
        return None
    where = f" ({error.filename})" if error.filename else ""
    if error.errno in _FULL:
        return OperatorError(
            f"no space left to write{where}", hint="free space and run the same command again"
        )
    if isinstance(error, PermissionError):
        return OperatorError(f"permission denied{where}", hint="let this user read and write there")
    return None


def _unreachable_reason(error: BaseException) -> str:
    """Why a server is out of reach. SQLAlchemy's own text would repeat the statement and what it was given."""
    return disclosure.hide_quoted_values(str(getattr(error, "orig", None) or error))


def _document(error: TailraceError) -> dict[str, object]:
    return {
        "kind": type(error).__name__,
        "message": error.message,
        "hint": error.hint,
        "exit_code": error.exit_code,
        "retry": error.reaction.value,
    }
