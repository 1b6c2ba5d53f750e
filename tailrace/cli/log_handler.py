"""What the rooms log (logger ``tailrace``), on standard error: warnings always, the rest with ``--verbose``."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime

from tailrace.terminal import Output

NAME = "tailrace"


class _Handler(logging.Handler):
    def __init__(self, output: Output) -> None:
        super().__init__()
        self._output = output

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage().replace("\n", "\\n")  # one record, one line
        if self._output.json:
            at = datetime.fromtimestamp(record.created, UTC)
            self._output.json_line(
                {"log": record.levelname.lower(), "at": at, "from": record.name, "text": text}
            )
        else:
            self._output.note(text, style="yellow" if record.levelno >= logging.WARNING else "dim")


@contextmanager
def restore_handlers() -> Iterator[None]:
    """Afterwards the log of this process goes where it went before: a command may run inside of another program."""
    loggers = [logging.getLogger(name) for name in (NAME, "py4j", None)]
    before = [(each.handlers, each.propagate, each.level) for each in loggers]
    try:
        yield
    finally:
        for logger, (handlers, propagate, level) in zip(loggers, before, strict=True):
            logger.handlers, logger.propagate = handlers, propagate
            logger.setLevel(level)


def install(output: Output, *, verbose: bool) -> None:
    """Send the log of this process to ``output``."""
    logger = logging.getLogger(NAME)
    logger.handlers = [_Handler(output)]
    logger.propagate = False
    logger.setLevel(logging.INFO if verbose else logging.WARNING)
    if not verbose:  # py4j logs a traceback, to the root logger, for each call that Ctrl-C cuts off
        logging.getLogger("py4j").setLevel(logging.CRITICAL + 1)
        logging.getLogger().handlers = [logging.NullHandler()]
