"""``tailrace log redact`` and ``log redactions``: erase the values of a key's rows, and what was erased."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Annotated

import typer

from tailrace.cli.invocation import Invocation, invocation_of
from tailrace.cli.log.key import key_of, key_text
from tailrace.eventstore.errors import UsageError
from tailrace.terminal import Output, count, when

if TYPE_CHECKING:
    from tailrace.eventstore.maintenance.redaction.receipts import Receipt, Remnant
    from tailrace.eventstore.model.topic import TopicId
    from tailrace.eventstore.store import Store

_POLL_SECONDS = 0.5


def redact(
    context: typer.Context,
    topic: Annotated[str, typer.Argument(help="SOURCE.SCHEMA.TABLE or SOURCE.CATEGORY.", show_default=False)],
    key: Annotated[
        str,
        typer.Option("--key", "-k", help="The key's value; of several columns: A,B.", show_default=False),
    ],
    columns: Annotated[
        list[str] | None,
        typer.Option(
            "--columns", metavar="A,B", help="Only these. Default: all that are not part of the key."
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would be erased; erase nothing.")
    ] = False,
    wait: Annotated[bool, typer.Option("--wait", help="Wait until the replaced files are gone.")] = False,
    now: Annotated[
        bool,
        typer.Option("--now", help="Remove the replaced files at once; readers that use them start again."),
    ] = False,
) -> None:
    """Erase the values of a row for good, in all of its history: they read as Erased from then on.

    This covers all rows under the key, and rows that the same row had under earlier or later keys. Offsets, order and
    epochs stay, and consumers go on. Later changes are not erased. Prints a receipt; `log redactions` shows it again.
    """
    from tailrace.eventstore.maintenance.redaction.redact import RedactionRequest, plan, redact
    from tailrace.eventstore.model.topic import TopicId

    if wait and now:
        raise UsageError("--wait and --now exclude each other", hint="choose one")
    invocation = invocation_of(context)
    with invocation.store() as store:
        info = store.topic(TopicId.parse(topic))
        parts = key_of(key, len(store.schemas(info.id)[-1].key)) or (key,)
        request = RedactionRequest(info.id, parts, _names(columns))
        asks = invocation.settings.protected and not invocation.yes
        if dry_run or asks:
            with invocation.output.progress("looking for its rows"):
                planned = plan(store, request)
            _print_receipt(invocation, planned, planned=True)
            if dry_run:
                return
            invocation.confirm(f"erase {count(planned.rows, 'row')} of {planned.topic} for good")
        with invocation.output.progress("redaction") as progress:
            receipt = redact(store, request, report=progress.say)
            if wait or now:
                left = _remove_replaced_files(store, request.topic, progress.say, at_once=now)
                receipt = replace(receipt, remnants=tuple(left))
    _print_receipt(invocation, receipt)


def redactions(
    context: typer.Context,
    topics: Annotated[list[str] | None, typer.Argument(help="Default: all.", show_default=False)] = None,
) -> None:
    """List what was erased, when, and where values may remain. Repeat them after a restore."""
    from tailrace.eventstore.maintenance.redaction.receipts import receipts
    from tailrace.eventstore.maintenance.retention.archives import archives
    from tailrace.eventstore.model.topic import TopicId

    invocation = invocation_of(context)
    with invocation.store() as store:
        listed = receipts(store, [TopicId.parse(topic) for topic in topics or ()])
        kept = (
            archives(store, [TopicId.parse(name) for name in {each.topic for each in listed}])
            if listed
            else []
        )
    if invocation.output.json:
        for receipt in listed:
            invocation.output.document(asdict(receipt))
        return
    if not listed:
        invocation.output.line("nothing was erased")
        return
    rows = [
        (
            each.epoch,
            when(each.erased_at),
            each.topic,
            _keys(each.keys) or "of somebody forgotten",
            ", ".join(each.columns),
            f"{each.rows:,}",
        )
        for each in listed
    ]
    invocation.output.table(("epoch", "erased", "topic", "keys", "columns", "rows"), rows)
    for archive in kept:
        held = [count(archive.files, "file")] if archive.files else []
        if archive.unfinished:
            held.append(f"{count(archive.unfinished, 'unfinished file')}")
        invocation.output.note(f"values may remain in archive {archive.place}: {' and '.join(held)}")


def redact_command(receipt: Receipt) -> str:
    """The command that erases the same again."""
    key, columns = key_text([text or "" for text in receipt.keys[0]]), ",".join(receipt.columns)
    return f"tailrace log redact {shlex.quote(receipt.topic)} --key {shlex.quote(key)} --columns {shlex.quote(columns)}"


def _names(columns: Sequence[str] | None) -> list[str] | None:
    if columns is None:
        return None
    return [name.strip() for given in columns for name in given.split(",") if name.strip()]


def _remove_replaced_files(
    store: Store, topic: TopicId, report: Callable[[str], None], *, at_once: bool
) -> list[Remnant]:
    """Wait until the replaced files are gone, or remove them now; the places where values remain."""
    from tailrace.eventstore.maintenance.files import retired
    from tailrace.eventstore.maintenance.redaction import remaining_copies
    from tailrace.eventstore.maintenance.retention import archive

    archive.remove_abandoned_copies(store)
    while files := retired.retired_files(store, topic):
        if at_once:
            retired.remove(store, files)
            break
        retired.collect_retired(store, store.settings.upkeep.keep_seconds)
        report(f"waiting for readers of {count(len(files), 'replaced file')}")
        time.sleep(_POLL_SECONDS)
    return remaining_copies.current_remnants(store, topic)


def _keys(keys: Sequence[Sequence[str | None]]) -> str:
    return "; ".join(", ".join("NULL" if text is None else text for text in key) for key in keys)


def _print_receipt(invocation: Invocation, receipt: Receipt, *, planned: bool = False) -> None:
    output = invocation.output
    if output.json:
        output.document({**asdict(receipt), "dry_run": planned})
        return
    what = f"{', '.join(receipt.columns)} of {receipt.topic}, key {_keys(receipt.keys[:1])}"
    if not receipt.files:
        output.line(f"nothing is left to erase: {what}")
    elif planned:
        output.line(
            f"would erase {count(receipt.rows, 'row')} in {count(len(receipt.files), 'file')}: {what}"
        )
    else:
        output.line(f"erased {count(receipt.rows, 'row')}: {what}")
        output.line(
            f"{count(len(receipt.files), 'file')} written again; epoch {receipt.epoch:,} tells readers that follow"
        )
    if len(receipt.keys) > 1:
        output.line(f"with its rows under other keys: {_keys(receipt.keys[1:])}")
    output.line(f"rows of epochs after {receipt.upto:,} stay as they are")
    _print_remaining_copies(output, receipt)


def _print_remaining_copies(output: Output, receipt: Receipt) -> None:
    output.line("values may remain in:")
    for each in receipt.remnants:
        output.line(f"  {each.place}: {each.detail}")
        output.line(f"      → {each.remedy}")
