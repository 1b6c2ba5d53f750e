"""``tailrace store``: the log as a whole."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from tailrace.cli.invocation import NOTHING_TO_DO, invocation_of
from tailrace.cli.store.backup import backup, hold
from tailrace.cli.store.move import move
from tailrace.cli.store.upgrade import upgrade
from tailrace.terminal import count, duration, size, when

if TYPE_CHECKING:
    from tailrace.eventstore.maintenance.retention.plan import HeldRows
    from tailrace.eventstore.maintenance.rounds import Round
    from tailrace.eventstore.maintenance.state_runs.compact import CompactionResult

store_commands = typer.Typer(help="The log as a whole.")
store_commands.command()(upgrade)
store_commands.command()(move)
store_commands.command()(backup)
store_commands.command()(hold)


@store_commands.command()
def info(context: typer.Context) -> None:
    """Show where the log lives and how far it goes."""
    invocation = invocation_of(context)
    with invocation.store() as store:
        head = store.head()
        document = {
            "store": invocation.settings.store.name,
            "log_id": store.log_id,
            "catalog": invocation.catalog_label,
            "segments": str(invocation.settings.store.segments),
            "topics": len(store.topics()),
            "epoch": head.epoch if head else 0,
            "commit_ts": head.commit_ts if head else None,
        }
    if invocation.output.json:
        invocation.output.document(document)
        return
    document["commit_ts"] = when(head.commit_ts if head else None)
    invocation.output.table(("", ""), [(name, str(value)) for name, value in document.items()])


@store_commands.command()
def seal(
    context: typer.Context,
    up_to: Annotated[
        int | None, typer.Option("--up-to", metavar="EPOCH", help="Default: the latest.")
    ] = None,
    detailed_exitcode: Annotated[
        bool, typer.Option("--detailed-exitcode", help="3 when there was nothing to seal.")
    ] = False,
) -> int:
    """Turn many small epochs into Parquet files per topic."""
    invocation = invocation_of(context)
    with invocation.store() as store, invocation.output.progress("sealing"):
        sealed = store.seal(up_to)
    invocation.output.line(f"sealed {sealed:,} epochs" if sealed else "nothing to seal")
    if invocation.output.json:
        invocation.output.document({"sealed_epochs": sealed})
    return NOTHING_TO_DO if detailed_exitcode and not sealed else 0


@store_commands.command()
def maintain(
    context: typer.Context,
    force_past: Annotated[
        list[str] | None,
        typer.Option(
            "--force-past",
            metavar="NAME",
            help="A group, publication or projection (GROUP, or group:GROUP, publication:NAME, projection:NAME) that "
            "retention may pass.",
        ),
    ] = None,
) -> None:
    """Keep the log in order: seal, merge small files, remove rows by the topics' retention, move old epochs to files,
    remove files that nobody needs.

    A running capture does it by itself (store.upkeep.every_seconds). It is safe at any time, while everything runs. A
    stopped or killed round is finished by the next one.
    """
    invocation = invocation_of(context)
    if force_past:
        invocation.confirm(f"remove rows that {', '.join(force_past)} did not get")
    with invocation.store() as store, invocation.output.progress("upkeep") as progress:
        done = store.maintain(progress.say, force_past=force_past or ())
    if invocation.output.json:
        invocation.output.document(asdict(done))
        return
    for line in describe_round(done):
        invocation.output.line(line)


@store_commands.command()
def compact(
    context: typer.Context,
    topics: Annotated[
        list[str] | None,
        typer.Argument(metavar="[TOPIC]...", help="Default: all tables.", show_default=False),
    ] = None,
    spark: Annotated[
        bool, typer.Option("--spark", help="The workers of the configured Spark do the work.")
    ] = False,
    detailed_exitcode: Annotated[
        bool, typer.Option("--detailed-exitcode", help="3 when no run was made.")
    ] = False,
) -> int:
    """Make state runs now: the latest row of each key in a file, so that reading a state need not fold all history.

    Upkeep makes them when enough rows are new (store.upkeep.state_bytes). The rows themselves stay.
    """

    invocation = invocation_of(context)
    with invocation.store() as store, invocation.output.progress("compacting") as progress:
        chosen = [store.topic(name).id for name in topics or ()] or None
        workers = None
        if spark:
            from tailrace.projections.compute.state_runs import SparkWorkers

            workers = SparkWorkers.of(invocation.settings)
        made = store.compact(chosen, report=progress.say, workers=workers)
    for each in made:
        invocation.output.line(_describe_compacted(each))
    if not made:
        invocation.output.line("nothing to do")
    if invocation.output.json:
        invocation.output.document([asdict(each) for each in made])
    return NOTHING_TO_DO if detailed_exitcode and not any(each.bytes for each in made) else 0


def describe_round(done: Round) -> list[str]:
    """What a round did, for people."""
    held = [describe_hold(each) for each in done.held]
    if done.idle:
        return ["nothing to do", *held]
    lines = []
    if done.sealed_epochs:
        lines.append(f"sealed {count(done.sealed_epochs, 'epoch')}")
    if done.merged_files:
        sizes = f"{size(done.read_bytes)} to {size(done.written_bytes)}"
        lines.append(f"merged {count(done.merged_files, 'file')} to {done.written_files:,} ({sizes})")
    for each in done.removed:
        forced = f", past {', '.join(each.forced)}" if each.forced else ""
        lines.append(
            f"{each.topic} begins behind epoch {each.epoch:,}{forced}: removed {count(each.events, 'row')}, "
            f"{each.kept_events:,} that make its state stay{', archived in ' + each.archive if each.archive else ''}"
        )
    lines += [_describe_compacted(each) for each in done.runs]
    if done.folded_epochs:
        lines.append(f"moved {count(done.folded_epochs, 'epoch')} from the catalog to files")
    if done.removed_files:
        replaced = count(done.removed_files, "replaced file")
        lines.append(f"removed {replaced} ({size(done.removed_bytes)})")
    if done.orphans:
        lines.append(f"removed {count(done.orphans, 'orphaned file')}")
    return [*lines, *held, f"in {done.seconds:.1f} s"]


def _describe_compacted(each: CompactionResult) -> str:
    upto = f"{each.topic} up to epoch {each.epoch:,}"
    if not each.bytes:
        return f"no state run of {upto}: {each.kept:,} of {count(each.rows, 'row')} make its state"
    return f"state run of {upto}: {each.kept:,} of {count(each.rows, 'row')} ({size(each.bytes)})"


def describe_hold(each: HeldRows) -> str:
    """Who keeps which rows from being removed, and why."""
    return (
        f"{each.topic}: {each.reader} holds back {count(each.events, 'row')} ({size(each.bytes)}, the oldest "
        f"{duration(each.seconds)} old): {each.why}"
    )


@store_commands.command()
def collect(context: typer.Context) -> None:
    """Remove files that captures and loads wrote and never registered."""
    invocation = invocation_of(context)
    with invocation.store() as store, invocation.output.progress("collecting"):
        removed = store.collect_orphans()
    invocation.output.line(f"removed {removed:,} orphaned files")
    if invocation.output.json:
        invocation.output.document({"removed_files": removed})
