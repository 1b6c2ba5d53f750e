"""``tailrace source repair``: when the stream cannot go on, compare every table with the log and go on from there."""

from __future__ import annotations

import threading
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from tailrace.cli.errors import INTERRUPTED
from tailrace.cli.invocation import Invocation, invocation_of, stop_on_signals
from tailrace.eventstore.model.position import format_lsn
from tailrace.terminal import count

if TYPE_CHECKING:
    from tailrace.cdc.repair.repair import RepairResult
    from tailrace.cdc.repair.report import TopicRepair


def repair(
    context: typer.Context,
    source: Annotated[str | None, typer.Argument(help="Default: the only one.", show_default=False)] = None,
) -> int:
    """Go on after a lost slot, or a restored or upgraded server: compare every table with the log and correct the log.

    Makes a new slot in place of the old one, and appends the differences as one epoch, which begins a new incarnation
    of the source. Earlier history stays readable. Does nothing when the stream can go on.
    """
    from tailrace.cdc.context import Stopped
    from tailrace.cdc.postgres.connect import Address
    from tailrace.cdc.repair.repair import repair_source, stream_problem

    invocation = invocation_of(context)
    name, settings = invocation.postgres_source(source, "repair")
    with invocation.store() as store:
        reason = stream_problem(store, name, Address.of(settings))
        if not reason:
            _print_nothing_to_repair(invocation, name)
            return 0
        invocation.output.note(f"{name}: {reason}")
        invocation.confirm(f"replace the replication slot of {name} and correct its topics")
        stop = threading.Event()
        with stop_on_signals(stop) as interrupted, invocation.output.progress("repair") as progress:
            try:
                done = repair_source(store, name, settings, stop=stop, tick=progress.say)
            except Stopped:
                if not interrupted.is_set():
                    raise
                invocation.output.note(
                    "interrupted: nothing was changed in the log; the next repair begins again"
                )
                return INTERRUPTED
    if done is None:  # another repair was faster
        _print_nothing_to_repair(invocation, name)
    else:
        _print_repair(invocation, done)
    return 0


def _print_nothing_to_repair(invocation: Invocation, name: str) -> None:
    if invocation.output.json:
        invocation.output.document({"source": name, "repaired": False})
        return
    invocation.output.line(f"{name}: nothing to repair, `tailrace capture` can go on", style="green")
    invocation.output.note(
        "tailrace verify --source compares the tables; tailrace source snapshot reads some of them again"
    )


def _print_repair(invocation: Invocation, done: RepairResult) -> None:
    """What a repair did, topic by topic."""
    output = invocation.output
    if output.json:
        topics = [asdict(each) | {"topic": each.topic.text, "equal": each.equal} for each in done.topics]
        output.document(
            {
                "source": done.source, "repaired": True, "reason": done.reason, "incarnation": done.incarnation,
                "lsn": format_lsn(done.lsn), "epoch": done.epoch, "topics": topics,
            }
        )  # fmt: skip
        return
    for each in done.topics:
        output.line(f"{each.topic.text}: {_describe(each)}", style="" if each.equal else "yellow")
        if each.erased:
            output.line(
                f"  cells of {count(each.erased, 'row')} stay erased, although the source has a value in them: "
                "delete it there; the next change of such a row brings it in again"
            )
    output.line(
        f"{done.source}: repaired in epoch {done.epoch:,}; incarnation {done.incarnation} goes on at "
        f"{format_lsn(done.lsn)}",
        style="green",
    )
    output.note("start tailrace capture")


def _describe(topic: TopicRepair) -> str:
    """One topic's result in words."""
    if topic.skipped:
        return f"incomplete: {topic.skipped}"
    if topic.whole:
        return f"{count(topic.rows, 'row')} read again in full: {topic.whole}"
    if topic.equal:
        return f"{count(topic.rows, 'row')}, equal"
    return (
        f"{count(topic.rows, 'row')}: {topic.added:,} were missing in the log, {topic.changed:,} were different, "
        f"{topic.deleted:,} are gone from the source"
    )
