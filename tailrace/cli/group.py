"""``tailrace group``: consumer groups, how far each is, and its parked events."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tailrace.cli.invocation import invocation_of
from tailrace.eventstore.model.topic import TopicId
from tailrace.terminal import count, duration, size, when

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tailrace.cli.invocation import Invocation
    from tailrace.eventstore.maintenance.retention.plan import HeldRows
    from tailrace.eventstore.streams.reacting.instances import ShownTimer
    from tailrace.eventstore.subscriptions.group import Group
    from tailrace.eventstore.subscriptions.group_progress import PartitionProgress

group_commands = typer.Typer(help="Consumer groups: how far they are, and their parked events.")

_PROCESS = "process-"
Name = Annotated[str, typer.Argument(metavar="GROUP", help="Name of the group.", show_default=False)]
Force = Annotated[bool, typer.Option("--force", help="Although it has members: they lose their partitions.")]


@group_commands.command("list")
def list_groups(context: typer.Context) -> None:
    """List groups, with their lag, and what retention each holds back."""
    from tailrace.eventstore.maintenance.retention.plan import withheld_rows

    invocation = invocation_of(context)
    with invocation.store() as store:
        held = withheld_rows(store)
        summaries = [_summary(group, group.progress(), held) for group in store.groups()]
    for document in summaries if invocation.output.json else ():
        invocation.output.document(document)
    columns = ("group", "topics", "members", "events", "bytes", "behind", "parked", "holds back")
    if summaries:
        invocation.output.table(columns, [_table_row(document) for document in summaries])
    else:
        invocation.output.note("no groups yet: Store.group makes them")


@group_commands.command()
def show(context: typer.Context, group: Name) -> None:
    """Show a group's partitions: who has them, where they are, what is left, what retention it holds back."""
    from tailrace.eventstore.maintenance.retention.plan import withheld_rows

    invocation = invocation_of(context)
    with invocation.store() as store:
        found = store.group(group)
        progress = found.progress()
        held = [each for each in withheld_rows(store) if each.reader == f"group {group}"]
        summary = _summary(found, progress, held)
    if invocation.output.json:
        invocation.output.document({**summary, "partitions": [_document(each) for each in progress]})
        return
    rows = [
        (each.slot.topic.text, each.slot.partition, each.owner or "-", each.next_offset, each.end_offset, each.lag,
         f"{each.lag_seconds:,.0f} s", when(each.committed_at))
        for each in progress
    ]  # fmt: skip
    columns = ("topic", "partition", "member", "next offset", "end", "lag", "behind", "committed")
    invocation.output.table(columns, rows)
    for each in held:
        age = duration(each.seconds)
        invocation.output.note(
            f"it holds back retention of {each.topic}: {each.events:,} rows ({size(each.bytes)}, the oldest {age} old)"
        )
    if summary["parked"]:
        invocation.output.note(f"{summary['parked']:,} events are parked: tailrace group parked {group}")


@group_commands.command()
def reset(
    context: typer.Context,
    group: Name,
    to: Annotated[
        str,
        typer.Option(
            "--to",
            metavar="POSITION",
            help="earliest, latest, an epoch, an LSN, a time; PARTITION:OFFSET[,…] of one topic.",
            show_default=False,
        ),
    ],
    topics: Annotated[
        list[str] | None, typer.Option("--topic", metavar="PATTERN", help="Only of these topics.")
    ] = None,
    force: Force = False,
) -> None:
    """Move a group back, or forward: it goes on from there."""
    invocation = invocation_of(context)
    with invocation.store() as store:
        found = store.group(group)
        invocation.confirm(f"reset group {group} to {to}")
        found.reset(to, topics, force=force)
        lag = sum(each.lag for each in found.progress())
    invocation.output.line(f"{group} goes on from {to}: {lag:,} events")
    if invocation.output.json:
        invocation.output.document({"group": group, "to": to, "lag": lag})


@group_commands.command()
def parked(context: typer.Context, group: Name) -> None:
    """Show the events that the group's handlers could not process."""
    invocation = invocation_of(context)
    with invocation.store() as store:
        found = store.group(group).parked()
    if invocation.output.json:
        for each in found:
            invocation.output.document(
                {"id": each.id, "topic": each.slot.topic.text, "partition": each.slot.partition,
                 "offset": each.offset, "key": each.key, "attempts": each.attempts, "error": each.error,
                 "replay": each.replay, "parked_at": each.parked_at}
            )  # fmt: skip
        return
    rows = [
        (each.id, str(each.slot), each.offset, each.key, each.attempts, when(each.parked_at),
         "will be replayed" if each.replay else each.error)
        for each in found
    ]  # fmt: skip
    if rows:
        invocation.output.table(("id", "partition", "offset", "key", "attempts", "parked", "error"), rows)
    else:
        invocation.output.note("nothing is parked")


Ids = Annotated[
    list[int] | None,
    typer.Argument(metavar="[ID]...", help="Numbers that parked shows. Default: all.", show_default=False),
]


@group_commands.command()
def replay(context: typer.Context, group: Name, ids: Ids = None) -> None:
    """Try parked events again, each with all later ones of its key: these, or all. The group's members do it."""
    invocation = invocation_of(context)
    with invocation.store() as store:
        replayed = store.group(group).replay(ids)
    invocation.output.line(f"{replayed:,} events will be given to {group} again")
    if invocation.output.json:
        invocation.output.document({"group": group, "replayed": replayed})


@group_commands.command()
def discard(
    context: typer.Context,
    group: Name,
    ids: Annotated[
        list[int], typer.Argument(metavar="ID...", help="Numbers that parked shows.", show_default=False)
    ],
) -> None:
    """Forget parked events for good."""
    invocation = invocation_of(context)
    with invocation.store() as store:
        found = store.group(group)
        invocation.confirm(f"discard {len(ids)} parked events of group {group}")
        discarded = found.discard(ids)
    invocation.output.line(f"{discarded:,} parked events of {group} are gone")
    if invocation.output.json:
        invocation.output.document({"group": group, "discarded": discarded})


@group_commands.command()
def timers(
    context: typer.Context,
    group: Name,
    retry: Annotated[
        bool, typer.Option("--retry", help="Have those that failed tried again at once.")
    ] = False,
    end: Annotated[
        bool, typer.Option("--end", help="End the instance: nothing is reacted to any more.")
    ] = False,
    instance: Annotated[
        str | None, typer.Option("--instance", metavar="KEY", help="Only of this one.", show_default=False)
    ] = None,
) -> None:
    """Show the timers of a process (group process-NAME): when each is due, and why it failed. Those that failed too
    often wait for --retry."""
    from tailrace.cdc.postgres.connect import Address, connect
    from tailrace.eventstore.errors import UsageError
    from tailrace.eventstore.model.event_schema import schema_in_use
    from tailrace.eventstore.streams.reacting.instances import end_instance, retry_timers, timers_of

    invocation = invocation_of(context)
    process = group.removeprefix(_PROCESS)
    if process == group:
        raise UsageError(f"group {group} is of no process", hint="a process manager's is called process-NAME")
    if end and (retry or instance is None):
        raise UsageError("--end ends one instance", hint="name it: --end --instance KEY")
    with invocation.store() as store:
        sources = sorted({TopicId.parse(each).source for each in store.group(group).patterns})
    for name, settings in invocation.postgres_sources(sources, "looking at timers"):
        with schema_in_use(settings.events_schema), connect(Address.of(settings)) as connection:
            if end and instance is not None:
                invocation.confirm(f"end instance {instance} of process {process}")
                ended = end_instance(connection, process, instance)
                invocation.output.line(f"{instance} {'has ended' if ended else 'had ended before'}")
                continue
            if retry:
                again = retry_timers(connection, process, instance)
                invocation.output.line(f"{count(again, 'timer')} will be tried again")
            found = timers_of(connection, process)
        _show_timers(invocation, name, [each for each in found if instance in (None, each.instance)])


def _show_timers(invocation: Invocation, source: str, found: Sequence[ShownTimer]) -> None:
    for each in found if invocation.output.json else ():
        invocation.output.document({"source": source, **asdict(each)})
    rows = [
        (
            each.instance,
            each.name,
            when(each.due_at),
            each.tries,
            "--retry" if each.parked else "",
            each.error,
        )
        for each in found
    ]
    if rows:
        invocation.output.table(("instance", "timer", "due", "tries", "waits for", "error"), rows)
    else:
        invocation.output.note("no timers are set")


@group_commands.command()
def delete(context: typer.Context, group: Name, force: Force = False) -> None:
    """Forget a group, its positions and its parked events."""
    invocation = invocation_of(context)
    with invocation.store() as store:
        found = store.group(group)
        invocation.confirm(f"delete group {group}")
        found.delete(force=force)
    invocation.output.line(f"group {group} is gone")
    if invocation.output.json:
        invocation.output.document({"group": group, "deleted": True})


def _summary(group: Group, progress: Sequence[PartitionProgress], held: Sequence[HeldRows]) -> dict[str, Any]:
    return {
        "group": group.name,
        "topics": list(group.patterns),
        "members": group.members(),
        "lag": sum(each.lag for each in progress),
        "lag_bytes": sum(each.lag_bytes for each in progress),
        "lag_seconds": max((each.lag_seconds for each in progress), default=0.0),
        "parked": len(group.parked()),
        "holds_back": [asdict(each) for each in held if each.reader == f"group {group.name}"],
    }


def _table_row(summary: dict[str, Any]) -> tuple[object, ...]:
    """A group on a line: how far behind it is in events, bytes and seconds; what cannot be removed because of it."""
    held = [f"{each['topic']}: {count(each['events'], 'row')}" for each in summary["holds_back"]]
    return (
        summary["group"],
        ", ".join(summary["topics"]),
        ", ".join(summary["members"]) or "-",
        summary["lag"],
        size(summary["lag_bytes"]),
        duration(summary["lag_seconds"]),
        summary["parked"],
        ", ".join(held) or "-",
    )


def _document(each: PartitionProgress) -> dict[str, Any]:
    return {
        "topic": each.slot.topic.text,
        "partition": each.slot.partition,
        "member": each.owner,
        "next_offset": each.next_offset,
        "end_offset": each.end_offset,
        "lag": each.lag,
        "lag_bytes": each.lag_bytes,
        "lag_seconds": each.lag_seconds,
        "committed_at": each.committed_at,
    }
