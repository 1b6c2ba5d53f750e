"""``tailrace log tail``: rows of topics, the latest or from a position on, and new ones as they come."""

from __future__ import annotations

import csv
import io
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from enum import StrEnum
from itertools import islice
from typing import TYPE_CHECKING, Annotated

import typer

from tailrace.cli.invocation import Invocation, invocation_of
from tailrace.cli.log.key import key_of
from tailrace.cli.position import fixed
from tailrace.eventstore.errors import UsageError
from tailrace.terminal import to_json, when

if TYPE_CHECKING:
    from tailrace.cli.log.row_format import Document
    from tailrace.eventstore.model.info import TopicInfo
    from tailrace.eventstore.model.position import Cut
    from tailrace.eventstore.store import Store
    from tailrace.eventstore.subscriptions.filter import Filter

LATEST = 20
LATEST_EPOCHS = 16  # looked at first
CSV_COLUMNS = ("topic", "partition", "offset", "epoch", "lsn", "commit_ts", "op", "key", "after")


class Format(StrEnum):
    LINE = "line"
    CSV = "csv"


def tail(
    context: typer.Context,
    topics: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[TOPIC]...",
            help="Names, or patterns with * and ?; '!PATTERN' leaves out. Default: all.",
            show_default=False,
        ),
    ] = None,
    count: Annotated[
        int | None,
        typer.Option(
            "--limit",
            "--lines",
            "-n",
            min=0,
            show_default=False,
            help=f"How many rows: the latest (default {LATEST}), or with --from the first (default: all).",
        ),
    ] = None,
    start: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="POSITION",
            show_default=False,
            help="earliest, latest, first EPOCH, first LSN, after a TIME, or PARTITION:OFFSET[,…] of one topic.",
        ),
    ] = None,
    until: Annotated[
        str | None,
        typer.Option(
            "--to", metavar="EPOCH|LSN|TIME", show_default=False, help="Last position. Default: the head."
        ),
    ] = None,
    keys: Annotated[
        list[str] | None,
        typer.Option(
            "--key", metavar="KEY", help="Only rows of this key (of several columns: A,B), or these."
        ),
    ] = None,
    ops: Annotated[
        list[str] | None,
        typer.Option(
            "--op", metavar="OP", help="Only these: read, create, update, delete, truncate, message."
        ),
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on as new epochs come.")] = False,
    form: Annotated[Format, typer.Option("--format", help="Form of a row; --json has all of it.")] = (
        Format.LINE
    ),
) -> None:
    """Print rows of topics in commit order: the latest, or from a position on."""
    if follow and until is not None:
        raise UsageError("--to ends it and --follow goes on", hint="leave one of them out")
    invocation = invocation_of(context)
    start, until = fixed(invocation, "--from", start), fixed(invocation, "--to", until)
    with invocation.store() as store:
        patterns = _patterns(store, topics, follow=follow)
        row_filter = _filter(store, patterns, keys, ops)
        show = _printer(invocation, form)
        if start is None:
            rows = _latest_and_following(
                store, patterns, row_filter, LATEST if count is None else count, until, follow
            )
        else:
            rows = islice(_from(store, patterns, row_filter, start, until, follow), count)
        for row in rows:
            show(row)


def _patterns(store: Store, given: Sequence[str] | None, *, follow: bool) -> list[str]:
    """The given names and patterns. Raises UsageError for a name that is no topic, and when nothing matches and
    nothing can come."""
    from tailrace.eventstore.subscriptions.filter import is_pattern, matches

    wanted = [text if is_pattern(text) else store.topic(text).id.text for text in given or ["*"]]
    if all(text.startswith("!") for text in wanted):
        wanted = ["*", *wanted]
    names = store.topics()
    if given and not follow and not any(matches(info.id, wanted) for info in names):
        shown = ", ".join(info.id.text for info in names[:10]) or "none yet"
        raise UsageError(f"no topic matches {' '.join(given)}", hint=f"the log's topics are: {shown}")
    return wanted


def _filter(
    store: Store, patterns: Sequence[str], keys: Sequence[str] | None, ops: Sequence[str] | None
) -> Filter:
    from tailrace.eventstore.subscriptions.filter import Filter, matching_topics

    found = None
    if keys:
        infos = matching_topics(store, patterns)
        found = [key for text in keys for key in _key(store, infos, text)]
    return Filter.of(_ops(ops) if ops else None, found, None)


def _ops(given: Sequence[str]) -> list[str]:
    from tailrace.cli.log.row_format import ROW_OPS

    letters = {**{letter: letter for letter in ROW_OPS}, **{name: letter for letter, name in ROW_OPS.items()}}
    words = [word.strip().lower() for text in given for word in text.split(",")]
    for word in words:
        if word not in letters:
            raise UsageError(
                f"{word!r} is no operation of a row",
                hint=", ".join(f"{letter} or {name}" for letter, name in ROW_OPS.items()),
            )
    return [letters[word] for word in words]


def _key(store: Store, infos: Sequence[TopicInfo], text: str) -> list[tuple[str, ...]]:
    """The key in the form of the topics' keys: whole, or its parts. Raises UsageError when it fits none of them."""
    forms: set[tuple[str, ...]] = set()
    widths: dict[int, str] = {}
    for info in infos:
        columns = [column.name for column in store.schemas(info.id)[-1].key]
        widths.setdefault(len(columns), f"{info.id.text}: {','.join(columns) or 'no key'}")
        if columns and (key := key_of(text, len(columns))) is not None:
            forms.add(key)
    if not forms:
        raise UsageError(
            f"none of these topics has a key like {text!r}",
            hint="write its value, or those of its columns with commas between;"
            f" {'; '.join(widths.values()) or 'no topics yet'}",
        )
    return sorted(forms)


def _latest_and_following(
    store: Store, patterns: Sequence[str], row_filter: Filter, count: int, until: str | None, follow: bool
) -> Iterator[Document]:
    from tailrace.cli.log.row_format import sort_by_commit
    from tailrace.eventstore.subscriptions.tail import tail

    end = store.cut(until)
    yield from _latest(store, patterns, row_filter, count, end)
    if follow:
        yield from sort_by_commit(tail(store, patterns, end.epoch, None, row_filter, None))


def _latest(
    store: Store, patterns: Sequence[str], row_filter: Filter, count: int, end: Cut
) -> Sequence[Document]:
    """The last ``count`` rows, looking back over ever more epochs until there are enough."""
    from tailrace.cli.log.row_format import sort_by_commit
    from tailrace.eventstore.subscriptions.filter import matching_topics
    from tailrace.eventstore.subscriptions.tail import read_between

    infos = matching_topics(store, patterns)
    window = LATEST_EPOCHS
    while count:
        after = max(0, end.epoch - window)
        found = deque(sort_by_commit(read_between(store, infos, after, end, row_filter)), maxlen=count)
        if len(found) == count or not after:
            return found
        window *= 4
    return ()


def _from(
    store: Store, patterns: Sequence[str], row_filter: Filter, start: str, until: str | None, follow: bool
) -> Iterator[Document]:
    from tailrace.cli.log.row_format import sort_by_commit
    from tailrace.eventstore.subscriptions.tail import tail

    timeout = None if follow else 0.0
    behind = str(max(int(start) - 1, 0)) if start.isascii() and start.isdigit() else start
    return sort_by_commit(tail(store, patterns, behind, until, row_filter, timeout))


def _printer(invocation: Invocation, form: Format) -> Callable[[Document], None]:
    output = invocation.output
    if output.json:
        return output.document
    if form is Format.CSV:
        output.line(",".join(CSV_COLUMNS))
        return lambda document: output.line(_csv(document))
    return lambda document: output.line(_line(document))


def _line(document: Document) -> str:
    from tailrace.cli.log.row_format import ROW_OPS, one_line

    where = f"{document['epoch']:>8,}  {document['lsn']:>12}  {when(document['commit_ts'])}"
    return f"{where}  {ROW_OPS[document['op']]:<8} {document['topic']}  {one_line(document)}"


def _csv(document: Document) -> str:
    text = io.StringIO()
    cells = (document[name] for name in CSV_COLUMNS)
    row = ["" if cell is None else to_json(cell) if isinstance(cell, dict) else str(cell) for cell in cells]
    csv.writer(text, lineterminator="").writerow(row)
    return text.getvalue()
