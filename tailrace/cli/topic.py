"""``tailrace topic``: the streams in the log."""

from __future__ import annotations

from dataclasses import asdict
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tailrace.cli.invocation import invocation_of
from tailrace.cli.log.show import TopicArgument
from tailrace.terminal import count, size

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tailrace.eventstore.metadata.archived import ArchivedFile
    from tailrace.eventstore.model.info import TopicInfo
    from tailrace.eventstore.model.partitioning import Partitioning, TopicIncarnation
    from tailrace.eventstore.model.schema import Column

topic_commands = typer.Typer(help="The streams in the log.")


@topic_commands.command("list")
def list_topics(
    context: typer.Context,
    source: Annotated[
        str | None, typer.Argument(help="Only those of this source.", show_default=False)
    ] = None,
) -> None:
    """List topics, and since when the state of each is known."""
    invocation = invocation_of(context)
    name = invocation.source(source)[0] if source else None
    with invocation.store() as store:
        topics = store.topics(name)
    if invocation.output.json:
        for topic in topics:
            invocation.output.document(_document(topic))
        return
    rows = [
        (topic.id.text, topic.kind.value, topic.partitions, topic.version, _completeness(topic))
        for topic in topics
    ]
    invocation.output.table(("topic", "kind", "partitions", "version", "state"), rows)
    if not topics:
        invocation.output.note("no topics yet: tailrace init makes them")


@topic_commands.command()
def show(
    context: typer.Context,
    topic: TopicArgument,
) -> None:
    """Show a topic's columns in all versions."""
    from tailrace.eventstore.model.position import format_lsn

    invocation = invocation_of(context)
    with invocation.store() as store:
        info = store.topic(topic)
        schemas = store.schemas(info.id)
        archived = store.archived_files(info.id)
    if invocation.output.json:
        versions = [asdict(schema) for schema in schemas]
        archives = [
            _archive_totals(archived, place) for place in dict.fromkeys(each.archive for each in archived)
        ]
        invocation.output.document({**_document(info), "versions": versions, "archived": archives})
        return
    invocation.output.line(
        f"{info.id.text}  ({info.kind.value}, {count(info.partitions, 'partition')}, {_completeness(info)})"
    )
    if info.partitioning.mixed:
        invocation.output.line(_incarnation_names(info.partitioning))
    for schema in schemas:
        rows = [
            (column.id, column.name, column.type_name or column.type_oid, _stored_type(column), column.key)
            for column in schema.sent
        ]
        title = f"version {schema.version}, from {format_lsn(schema.from_lsn)}"
        invocation.output.table(("id", "column", "type", "held as", "key"), rows, title=title)
    for place in dict.fromkeys(each.archive for each in archived):
        kept = _archive_totals(archived, place)
        files = f"{count(kept['files'], 'file')} ({size(kept['bytes'])})"
        epochs = f"epochs {kept['first_epoch']:,} to {kept['last_epoch']:,}"
        invocation.output.line(f"archived in {place}: {files}, {count(kept['rows'], 'row')} of {epochs}")


@topic_commands.command()
def files(
    context: typer.Context,
    topic: TopicArgument,
    archived: Annotated[
        bool,
        typer.Option("--archived", help="Also files that retention put into an archive; they come first."),
    ] = False,
) -> None:
    """List a topic's Parquet files, for DuckDB, pandas, Spark and others. `tailrace store seal` adds new rows."""

    invocation = invocation_of(context)
    with invocation.store() as store:
        info = store.topic(topic)
        elsewhere = (
            [(each.place, each.ref, True) for each in store.archived_files(info.id)] if archived else []
        )
        own = [(store.storage.place(str(each.path)), each, False) for each in store.files(info.id)]
    found = elsewhere + own
    for place, each, is_archived in found:
        if invocation.output.json:
            invocation.output.document(
                {"file": place, "version": each.version, "rows": each.rows, "bytes": each.bytes,
                 "first_epoch": each.first_epoch, "last_epoch": each.last_epoch, "archived": is_archived}
            )  # fmt: skip
        else:
            invocation.output.line(place)
    if not found:
        invocation.output.note(f"{info.id.text} has no files yet: tailrace store seal makes them")


@topic_commands.command()
def repartition(
    context: typer.Context,
    topic: TopicArgument,
    partitions: Annotated[
        int,
        typer.Option(
            "--partitions", "-n", help="How many its later rows are spread over.", show_default=False
        ),
    ],
) -> None:
    """Spread a topic's later rows over more or fewer partitions, while everything runs.

    Existing rows keep their partitions and offsets. Later ones go to new partitions, whose numbers go on.
    Consumer groups finish the old ones first, so that each key stays in order.
    """
    from tailrace.eventstore.maintenance.repartition import repartition
    from tailrace.eventstore.model.topic import TopicId

    invocation = invocation_of(context)
    wanted = TopicId.parse(topic)
    with invocation.store() as store:
        store.topic(wanted)
        invocation.confirm(f"spread later rows of {wanted} over {count(partitions, 'partition')}")
        done = repartition(store, wanted, partitions)
    output = invocation.output
    if output.json:
        output.document(
            {
                "topic": done.topic.text,
                "epoch": done.epoch or None,
                "partitions": done.after.count,
                "first_partition": done.after.first,
                "partitions_before": done.before.count,
            }
        )
    elif not done.epoch:
        output.line(f"{done.topic} has {count(partitions, 'partition')}: nothing to do")
    else:
        output.line(
            f"{done.topic}: rows behind epoch {done.epoch:,} are in {_partition_names(done.after)}, "
            f"those up to it stay in {_partition_names(done.before)}"
        )
        output.line("consumer groups read the new ones when they are done with the old ones")


@topic_commands.command()
def retire(context: typer.Context, topic: TopicArgument) -> None:
    """Give up a topic whose table was dropped or is not published any more.

    Its history stays in the log. `tailrace status` and `tailrace verify --source` leave it out, and what reads its
    present state fails instead of waiting. A table of its name that is captured later ends that.
    """
    from tailrace.eventstore.maintenance.retire import retire
    from tailrace.eventstore.model.topic import TopicId

    invocation = invocation_of(context)
    wanted = TopicId.parse(topic)
    with invocation.store() as store:
        store.topic(wanted)
        invocation.confirm(f"retire {wanted}")
        epoch = retire(store, wanted)
    if invocation.output.json:
        invocation.output.document({"topic": wanted.text, "epoch": epoch or None})
    elif epoch:
        invocation.output.line(f"{wanted} is retired since epoch {epoch:,}; its history stays in the log")
    else:
        invocation.output.line(f"{wanted} is retired already")


def _partition_names(incarnation: TopicIncarnation) -> str:
    """The partitions of an incarnation, for people."""
    first, last = incarnation.numbers[0], incarnation.numbers[-1]
    return f"partition {first}" if first == last else f"partitions {first} to {last}"


def _incarnation_names(partitioning: Partitioning) -> str:
    """Which partitions a topic's rows are in, incarnation by incarnation, for people."""
    found = [
        f"{_partition_names(each)} up to epoch {following.behind:,}"
        for each, following in pairwise(partitioning.incarnations)
    ]
    return "; ".join([*found, f"{_partition_names(partitioning.current)} since"])


def _archive_totals(archived: Sequence[ArchivedFile], place: str) -> dict[str, Any]:
    """How much of a topic is in one archive."""
    there = [each for each in archived if each.archive == place]
    return {
        "archive": place,
        "files": len(there),
        "bytes": sum(each.bytes for each in there),
        "rows": sum(each.rows for each in there),
        "first_epoch": there[0].first_epoch,
        "last_epoch": there[-1].last_epoch,
    }


def _stored_type(column: Column) -> str:
    """The type in which a column is held, and what capture makes of its values."""
    if column.policy == "drop":
        return "left out"
    return f"{column.arrow} ({column.policy})" if column.policy else str(column.arrow)


def _completeness(topic: TopicInfo) -> str:
    """Whether the topic's state is known, in words."""
    if topic.is_retired:
        return topic.reason
    if topic.complete_since is None:
        return f"incomplete: {topic.reason}"
    return (
        f"complete since epoch {topic.complete_since:,}"
        if topic.complete_since
        else "complete from the start"
    )


def _document(topic: TopicInfo) -> dict[str, object]:
    return {
        "topic": topic.id.text,
        "kind": topic.kind,
        "partitions": topic.partitions,
        "incarnation": len(topic.partitioning.incarnations),
        "incarnations": [
            {"behind_epoch": each.behind, "first_partition": each.first, "partitions": each.count}
            for each in topic.partitioning.incarnations
        ],
        "version": topic.version,
        "complete_since": topic.complete_since,
        "reason": topic.reason,
    }
