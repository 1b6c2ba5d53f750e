"""``tailrace init``: check and prepare the store and the sources."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tailrace.cli.daily.kafka import print_kafka
from tailrace.cli.invocation import NOTHING_TO_DO, Invocation, invocation_of, is_missing_store
from tailrace.eventstore.errors import OperatorError, UsageError

if TYPE_CHECKING:
    from tailrace.cdc.kafka.prepare import KafkaPreparation
    from tailrace.cdc.setup.prepare import Preparation
    from tailrace.eventstore.settings import KafkaSourceSettings
    from tailrace.eventstore.store import Store

STARTER = "starter.toml"
STYLES: Mapping[str, str] = {"blocking": "bold red", "skipped": "yellow", "note": ""}


def init(
    context: typer.Context,
    sources: Annotated[list[str] | None, typer.Argument(help="Default: all.", show_default=False)] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print what would be run, change nothing.")
    ] = False,
    example: Annotated[
        bool, typer.Option("--example", help="Write a starter tailrace.toml instead.")
    ] = False,
    events: Annotated[
        bool, typer.Option("--events", help="Install the tables of domain events in the source first.")
    ] = False,
    ddl: Annotated[
        bool | None,
        typer.Option(
            "--ddl/--no-ddl",
            help="Install (or remove) the event trigger that reports schema changes; needs a superuser.",
            show_default=False,
        ),
    ] = None,
    take_over: Annotated[
        bool,
        typer.Option(
            "--take-over",
            help="Make slot and publication of another store this one's; that one is then refused.",
        ),
    ] = False,
    detailed_exitcode: Annotated[
        bool, typer.Option("--detailed-exitcode", help="3 when everything was prepared already.")
    ] = False,
) -> int:
    """Check and prepare sources: catalog, publication, topics. The slot is made by the first capture."""
    invocation = invocation_of(context)
    if example:
        write_starter(invocation, dry_run=dry_run)
        return 0
    if take_over and not dry_run:
        invocation.confirm("take slots and publications over from the store that they belong to")
    done = prepare(invocation, sources, dry_run=dry_run, events=events, ddl=ddl, take_over=take_over)
    if any(preparation.blocking_findings for preparation in done):
        return OperatorError.exit_code
    if detailed_exitcode and not any(each.changes_something for each in done):
        return NOTHING_TO_DO
    return 0


def write_starter(invocation: Invocation, *, dry_run: bool) -> None:
    """A starter configuration, to standard output on a dry run. Never over an existing file."""
    from tailrace.config.load import FILE_NAME

    text = resources.files("tailrace.cli").joinpath(STARTER).read_text(encoding="utf-8")
    if dry_run:
        invocation.output.block(text.rstrip("\n"))
        return
    file = invocation.config or Path(FILE_NAME)
    try:
        with file.open("x", encoding="utf-8") as target:
            target.write(text)
    except FileExistsError:
        raise UsageError(
            f"{file.absolute()} exists and is left as it is",
            hint="look at the starter with: tailrace init --example --dry-run",
        ) from None
    invocation.output.line(f"wrote {file}: set its addresses, then run: tailrace doctor, tailrace init")


def prepare(
    invocation: Invocation,
    names: list[str] | None,
    *,
    dry_run: bool,
    events: bool,
    ddl: bool | None = None,
    take_over: bool = False,
) -> list[Preparation | KafkaPreparation]:
    """Prepare the named sources in turn, and print each. A dry run makes nothing, not even a store."""
    from tailrace.cdc.setup.prepare import prepare_source

    selected = invocation.sources(names)
    if events or ddl is not None or take_over:
        invocation.postgres_sources(names or [], "init with --events, --ddl or --take-over")
    with ExitStack() as stack:
        store, fresh = _store(invocation, stack, dry_run=dry_run)
        if not dry_run:
            store.catalog.require_writable()
        if fresh:
            word = "would make" if dry_run else "made"
            invocation.output.line(f"{word} the store: catalog {invocation.catalog_label}")
        done: list[Preparation | KafkaPreparation] = []
        for name, settings in selected:
            if settings.kind == "kafka":
                done.append(_prepare_kafka(invocation, store, name, settings, dry_run=dry_run))
                continue
            preparation = prepare_source(
                store, name, settings, dry_run=dry_run, events=events, ddl=ddl, take_over=take_over
            )
            _print(invocation, preparation, settings.events_schema if events else None, ddl=ddl)
            done.append(preparation)
    return done


def _prepare_kafka(
    invocation: Invocation, store: Store, name: str, settings: KafkaSourceSettings, *, dry_run: bool
) -> KafkaPreparation:
    from tailrace.cdc.kafka.prepare import prepare_kafka

    preparation = prepare_kafka(store, name, settings, dry_run=dry_run)
    print_kafka(invocation.output, preparation, STYLES)
    return preparation


def _store(invocation: Invocation, stack: ExitStack, *, dry_run: bool) -> tuple[Store, bool]:
    """The store and whether it is new. Where there is none a dry run plans on an empty one in a temporary folder."""
    from tailrace.eventstore.store import Store

    try:
        return stack.enter_context(invocation.store()), False
    except OperatorError as error:
        if not is_missing_store(error):
            raise
    if not dry_run:
        return stack.enter_context(invocation.store(create=True)), True
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tailrace-init-")))
    empty = {"catalog": f"sqlite:///{folder}/catalog.db", "segments": folder / "segments"}
    settings = invocation.settings.store.model_copy(update=empty)
    return stack.enter_context(Store.open(settings, create=True)), True


def _print(
    invocation: Invocation, preparation: Preparation, events_schema: str | None, *, ddl: bool | None
) -> None:
    output = invocation.output
    if output.json:
        output.document(as_document(preparation))
        return
    would = "would " if preparation.dry_run else ""
    output.line(f"source {preparation.source}", style="bold")
    if events_schema is not None:
        output.line(f"  {would}install the tables of domain events (schema {events_schema})")
    if preparation.took_over is not None:
        what = f"slot and publication {preparation.slot}"
        former = f" from log {preparation.took_over}" if preparation.took_over else ""
        output.line(f"  {would}take over {what}{former}", style="yellow")
    for statement in preparation.statements:
        output.line(f"  {would}run  {statement}")
    if preparation.trigger:
        output.line(f"  {would}{'install' if ddl else 'remove'} the trigger that reports schema changes")
    if preparation.trigger and preparation.dry_run:
        output.block(preparation.trigger.rstrip("\n"))
    for topic in preparation.new:
        output.line(f"  {would}add topic  {topic.text}")
    if preparation.known:
        output.line(f"  {len(preparation.known):,} topics are known already")
    for finding in preparation.findings:
        output.line(f"  {finding.level}: {finding.subject}: {finding.what}", style=STYLES[finding.level])
        if finding.hint:
            output.line(f"    → {finding.hint}")
    if not preparation.blocking_findings:
        output.line(f"  {_next(preparation)}")


def _next(preparation: Preparation) -> str:
    """What follows. A source that was loaded before keeps its slot, and new tables are read beside the stream."""
    if not preparation.loaded:
        return f"next: tailrace capture makes the slot {preparation.slot} and takes the first load"
    if preparation.new or preparation.statements:
        return "next: the capture that runs, or the next one, reads what is new beside the stream"
    return "it is prepared already, and its first load was taken"


def as_document(preparation: Preparation) -> dict[str, object]:
    """A preparation for JSON."""
    return {
        "source": preparation.source,
        "dry_run": preparation.dry_run,
        "publication": preparation.publication,
        "slot": preparation.slot,
        "statements": preparation.statements,
        "took_over": preparation.took_over,
        "ddl_trigger": preparation.trigger,
        "new_topics": [topic.text for topic in preparation.new],
        "known_topics": [topic.text for topic in preparation.known],
        "findings": preparation.findings,
    }
