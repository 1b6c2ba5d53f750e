"""``tailrace status``: one look at sources, topics and projections. Starts no JVM."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import typer

from tailrace.cli.invocation import Invocation, invocation_of
from tailrace.cli.projection.status import print_projections, projection_statuses
from tailrace.cli.store.info import describe_hold
from tailrace.eventstore.model.position import format_lsn
from tailrace.status import WAITING_MAX, PublicationStatus, SourceStatus, publication_statuses, source_status
from tailrace.terminal import count, duration, size, when

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tailrace.cdc.postgres.progress import Ladder
    from tailrace.eventstore.maintenance.retention.plan import HeldRows
    from tailrace.eventstore.maintenance.rounds import UpkeepStatus
    from tailrace.eventstore.store import Store


TOPICS_SHOWN = 20


@dataclass(frozen=True, slots=True)
class QuarantineStatus:
    """A topic in quarantine: its table cannot be decoded. ``undecoded``: messages and bytes kept since, None when none
    can be. ``frame``: the message that could not be decoded, in hex; only with --show-values."""

    topic: str
    error: str
    lsn: str
    undecoded: tuple[int, int] | None
    frame: str | None = None


def status(context: typer.Context) -> None:
    """Show sources, topics, projections and publications: how far each is."""
    from tailrace.eventstore.maintenance.retention.plan import withheld_rows
    from tailrace.eventstore.maintenance.rounds import upkeep_status
    from tailrace.projections.definition.load import import_from

    invocation = invocation_of(context)
    import_from(invocation.configuration.folder)
    with invocation.store() as store:
        head = store.head()
        sources = [source_status(store, name, settings) for name, settings in invocation.sources(None)]
        projections = projection_statuses(store, invocation.settings)
        upkeep = upkeep_status(store)
        quarantine = quarantine_statuses(store)
        publications = publication_statuses(store, invocation.settings)
        withheld = withheld_rows(store) if publications else []
        held = [each for each in withheld if each.reader.startswith("publication ")]
    output = invocation.output
    if output.json:
        document = {"head": head, "sources": sources, "quarantine": quarantine, "projections": projections}
        output.document(
            document | {"upkeep": upkeep, "publications": publications, "held_for_publications": held}
        )
        return
    _print_head(invocation, head.epoch if head else 0, head.commit_ts if head else None)
    output.line(f"upkeep: {upkeep_line(upkeep)}")
    output.line()
    rows = [
        (
            s.name,
            s.state,
            s.topics,
            s.incomplete,
            s.through_lsn,
            "-" if s.behind_bytes is None else size(s.behind_bytes),
        )
        for s in sources
    ]
    output.table(("source", "state", "topics", "incomplete", "log holds all below", "server ahead by"), rows)
    for source in sources:
        if source.capture is not None or not source.state.startswith("not prepared"):
            output.line(capture_line(source), style="" if source.capture else "yellow")
        if source.taken_over_at:
            kept = f" ({size(source.ladder.retained_bytes)})" if source.ladder is not None else ""
            output.line(
                f"{source.name}: taken over from Debezium and not confirmed: its slot keeps all WAL since "
                f"{source.taken_over_at}{kept}; tailrace adopt {source.name} --confirm, or --undo",
                style="yellow",
            )
    unknown = [each for s in sources for each in s.unknown]
    if unknown:
        output.line("")
        named = [(each.topic, each.reason, each.remedy) for each in unknown[:TOPICS_SHOWN]]
        output.table(("incomplete", "because", "what to do"), named)
        if len(unknown) > TOPICS_SHOWN:
            output.line(f"and {len(unknown) - TOPICS_SHOWN:,} more: tailrace topic list")
    ladders = [(s, s.ladder) for s in sources if s.ladder is not None]
    if ladders:
        output.line("")
        columns = (
            "behind the server",
            "sent",
            "received",
            "durable",
            "slow",
            "WAL kept",
            "slot lost in",
            "spilled",
        )
        output.table(columns, [_ladder_row(source, ladder) for source, ladder in ladders])
    _print_partitions(invocation, sources)
    refused = [(s.name, each.kind, each.number, when(each.last_at)) for s in sources for each in s.refused]
    if refused:
        output.line("")
        output.table(("source", "not believed, without effect", "messages", "the last at"), refused)
    if quarantine:
        output.line("")
        _print_quarantine(invocation, quarantine)
    if projections:
        output.line("")
        print_projections(output, projections)
    if publications:
        _print_publications(invocation, publications, held)


def _print_publications(
    invocation: Invocation, publications: Sequence[PublicationStatus], held: Sequence[HeldRows]
) -> None:
    output = invocation.output
    output.line("")
    heads = (
        "publication", "to", "state", "published up to epoch", "epochs waiting", "since", "rows are kept until",
    )  # fmt: skip
    output.table(heads, [_publication_row(each) for each in publications])
    for each in publications:
        if each.hint:
            output.line(f"{each.name}: {each.hint}", style="yellow")
    for rows in held:
        output.line(describe_hold(rows), style="yellow")
    waiting = [
        (each.name, key.topic, key.partition, key.offset, key.reason)
        for each in publications
        for key in each.parked[:TOPICS_SHOWN]
    ]
    if waiting:
        output.line("")
        output.table(("a key waits in", "topic", "partition", "offset", "because"), waiting)


def _publication_row(found: PublicationStatus) -> tuple[object, ...]:
    known = ["-" if each is None else f"{each:,}" for each in (found.epoch, found.waiting)]
    if found.waiting == WAITING_MAX:
        known[1] += " or more"
    times = [when(each) if each else "-" for each in (found.since, found.holds_until)]
    return (found.name, found.destination or "-", found.state, *known, *times)


def _print_partitions(invocation: Invocation, sources: Sequence[SourceStatus]) -> None:
    """Those of Kafka, the farthest behind first, and how many of their records are parked."""
    lags = sorted((each for s in sources for each in s.partitions), key=lambda each: -each.records)
    if lags:
        invocation.output.line("")
        rows = [
            (
                each.topic,
                each.partition,
                f"{each.next_offset:,}",
                "gone" if each.end is None else f"{each.records:,}",
            )
            for each in lags[:TOPICS_SHOWN]
        ]
        invocation.output.table(("topic of Kafka", "partition", "read up to offset", "records behind"), rows)
        if len(lags) > TOPICS_SHOWN:
            invocation.output.line(f"and {len(lags) - TOPICS_SHOWN:,} more")
    for each in sources:
        if each.registry is not None:
            invocation.output.line(
                f"{each.name}: {each.registry.text}", style="yellow" if each.registry.problem else ""
            )
        if each.parked:
            invocation.output.line(
                f"{each.name}: {count(each.parked, 'record')} parked: tailrace source parked {each.name}",
                style="yellow",
            )


def capture_line(source: SourceStatus) -> str:
    """Which process captures a source, and since when, or that none does."""
    capture = source.capture
    if capture is None:
        return f"{source.name}: no capture runs: tailrace capture {source.name}"
    since = f" since {when(capture.since)}" if capture.since else ""
    problem = f"; {capture.problem}" if capture.problem else ""
    return f"{source.name}: captured by {capture.process}{since}{problem}"


def quarantine_statuses(store: Store) -> list[QuarantineStatus]:
    from tailrace.eventstore.disclosure import values_are_shown
    from tailrace.eventstore.metadata.quarantine import quarantined_topics

    return [
        QuarantineStatus(
            each.topic.text,
            each.error,
            format_lsn(each.lsn),
            (each.frames, each.bytes) if each.keeps else None,
            each.frame.hex() if values_are_shown() and each.frame is not None else None,
        )
        for each in quarantined_topics(store.catalog)
    ]


def _print_quarantine(invocation: Invocation, quarantine: Sequence[QuarantineStatus]) -> None:
    rows = [
        (
            each.topic,
            each.lsn,
            f"{count(each.undecoded[0], 'message')}, {size(each.undecoded[1])}"
            if each.undecoded
            else "nothing",
            each.error,
            f"tailrace source {'retry' if each.undecoded else 'snapshot'} {each.topic}",
        )
        for each in quarantine
    ]
    invocation.output.table(("in quarantine", "since", "undecoded", "because", "when that is fixed"), rows)
    for each in quarantine:
        if each.frame is not None:
            invocation.output.line(f"{each.topic}, the message that could not be decoded: {each.frame}")


def _print_head(invocation: Invocation, epoch: int, commit_ts: datetime | None) -> None:
    name = invocation.settings.store.name
    if not epoch:
        invocation.output.line(f"log {name}: empty")
        invocation.output.line()
        return
    age = (datetime.now(UTC) - commit_ts).total_seconds() if commit_ts else 0.0
    ahead = f", {-age:,.1f} s ahead of this host's clock"
    ago = "" if commit_ts is None else ahead if age < 0 else f", {age:,.1f} s ago"
    invocation.output.line(f"log {name}: epoch {epoch:,}, last commit {when(commit_ts)}{ago}")
    invocation.output.line()


def upkeep_line(upkeep: UpkeepStatus) -> str:
    """What upkeep has left to do, and when its last round was."""
    parts = [f"{count(upkeep.unsealed_epochs, 'epoch')} not sealed ({size(upkeep.unsealed_bytes)})"]
    tiers = ", ".join(f"{files:,} {name}" for name, (files, _) in upkeep.tiers.items())
    parts.append(count(upkeep.files, "file") + (f" ({tiers})" if tiers else ""))
    parts.append(f"{count(upkeep.epoch_rows, 'epoch')} in the catalog")
    if upkeep.retired_files:
        held = f", {count(upkeep.readers, 'long reader')}" if upkeep.readers else ""
        parts.append(f"{upkeep.retired_files:,} replaced ({size(upkeep.retired_bytes)}{held})")
    if upkeep.finished_at is None or upkeep.last is None:
        return "; ".join([*parts, "no round yet"])
    ago = (datetime.now(UTC) - upkeep.finished_at).total_seconds()
    return "; ".join([*parts, f"last round {duration(ago)} ago took {upkeep.last.seconds:.1f} s"])


def _ladder_row(source: SourceStatus, ladder: Ladder) -> tuple[str, ...]:
    def behind(position: int | None, seconds: float | None = None) -> str:
        lag = ladder.lag(position)
        if lag is None:
            return "-"
        return size(lag) if seconds is None else f"{size(lag)}, {seconds:.1f} s"

    left = source.slot_lost_in_seconds
    if ladder.slot_state in ("lost", "missing"):
        lost = f"{ladder.slot_state}: tailrace doctor"
    elif ladder.remaining_bytes is None:
        lost = "no limit"
    else:
        lost = size(ladder.remaining_bytes) + (f", {duration(left)}" if left is not None else "")
    return (
        source.name, behind(ladder.sent), behind(ladder.received, ladder.received_seconds),
        behind(ladder.durable, ladder.durable_seconds), ladder.slow or "nobody", size(ladder.retained_bytes), lost,
        size(ladder.spilled_bytes),
    )  # fmt: skip
