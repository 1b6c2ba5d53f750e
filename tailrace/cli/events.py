"""``tailrace events``: domain events, and whether today's code reads them."""

from __future__ import annotations

import importlib
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tailrace.cli.invocation import invocation_of

if TYPE_CHECKING:
    from tailrace.cli.invocation import Invocation
    from tailrace.eventstore.settings import PostgresSourceSettings
    from tailrace.eventstore.streams.inline_rows.projection import InlineProjection
    from tailrace.eventstore.subscriptions.domain_events.event_check import CheckedType

event_commands = typer.Typer(help="Domain events, and whether today's code reads them.")
Modules = Annotated[
    list[str],
    typer.Argument(help="Modules that declare the events, and their upcasters.", show_default=False),
]
_PATIENCE_SECONDS = 30.0
OneSource = Annotated[
    str | None, typer.Option("--source", metavar="NAME", help="Only this source.", show_default=False)
]


@event_commands.command()
def check(
    context: typer.Context,
    modules: Modules,
    source: OneSource = None,
    sample: Annotated[
        int, typer.Option("--sample", min=1, help="So many events of each stored type.")
    ] = 1000,
    everything: Annotated[bool, typer.Option("--all", help="All events that are stored.")] = False,
) -> int:
    """Read stored events, of the sources and of the log, through today's models and upcasters. Exits with 4 when one
    cannot be read: for a deployment, before it."""
    from tailrace.eventstore.errors import DifferenceFound

    invocation = invocation_of(context)
    import_modules(invocation, modules)
    found = _checked(invocation, source, None if everything else sample)
    for each in sorted(found, key=lambda each: (each.where, each.type.name, each.type.version)):
        _report(invocation, each)
    if not found:
        invocation.output.note("there are no domain events yet")
    return DifferenceFound.exit_code if any(each.failed for each in found) else 0


@event_commands.command()
def inline(
    context: typer.Context,
    modules: Modules,
    source: OneSource = None,
    rebuild: Annotated[bool, typer.Option("--rebuild", help="Make the rows what their events say.")] = False,
) -> int:
    """Compare the rows of inline projections with the events of their streams. Exits with 4 when some differ; with
    ``--rebuild`` they are written again, beside services that append."""
    from tailrace.eventstore.errors import DifferenceFound, UsageError
    from tailrace.eventstore.streams.inline_rows.projection import inline_projections

    invocation = invocation_of(context)
    import_modules(invocation, modules)
    if not inline_projections():
        raise UsageError(
            f"no inline projection is declared by {', '.join(modules)}", hint="name the modules with @inline"
        )
    differ = False
    for name, settings in invocation.postgres_sources(
        [source] if source else [], "checking inline projections"
    ):
        for each in inline_projections():
            differ |= _inline(invocation, name, settings, each, rebuild=rebuild)
    return DifferenceFound.exit_code if differ and not rebuild else 0


@event_commands.command()
def prune(
    context: typer.Context,
    categories: Annotated[list[str], typer.Argument(help="Categories of streams.", show_default=False)],
    before: Annotated[
        datetime,
        typer.Option("--before", metavar="TIME", help="Only events of before, UTC.", show_default=False),
    ],
    source: OneSource = None,
) -> None:
    """Remove events that snapshots have made superfluous from their table, once the log, which keeps them, has them."""
    from tailrace.cdc.postgres.connect import Address, connect
    from tailrace.eventstore.model.event_schema import schema_in_use
    from tailrace.eventstore.streams.database import event_tables
    from tailrace.eventstore.streams.deciding.transactions import position

    invocation = invocation_of(context)
    moment = before if before.tzinfo else before.replace(tzinfo=UTC)
    chosen = invocation.postgres_sources([source] if source else [], "pruning events")
    invocation.confirm(f"remove events of before {moment} from their table")
    with invocation.store() as store, invocation.output.progress("pruning events") as progress:
        for name, settings in chosen:
            with schema_in_use(settings.events_schema), connect(Address.of(settings)) as connection:
                progress.say("waiting for the log")
                store.wait_for(f"{name}={position(connection)}", timeout=_PATIENCE_SECONDS)
                for category in categories:
                    pruned = 0
                    while some := event_tables.prune(connection, category, moment):
                        pruned += some
                        progress.say(f"{pruned:,} of {category}")
                    invocation.output.line(
                        f"{name}: {pruned:,} events of {category} were removed; the log has them"
                    )
                    if invocation.output.json:
                        invocation.output.document({"source": name, "category": category, "pruned": pruned})


@event_commands.command()
def partition(
    context: typer.Context,
    every: Annotated[str, typer.Option("--every", metavar="PERIOD", help="month, week or day.")] = "month",
    ahead: Annotated[int, typer.Option("--ahead", min=1, help="So many periods from now on.")] = 3,
    source: OneSource = None,
) -> None:
    """Part the table of events by time, or make the partitions of the next periods where it is parted. Appends wait
    meanwhile; capture goes on."""
    from tailrace.cdc.postgres.connect import Address, connect
    from tailrace.eventstore.model.event_schema import schema_in_use
    from tailrace.eventstore.streams.database.event_partitions import partition_events

    invocation = invocation_of(context)
    chosen = invocation.postgres_sources([source] if source else [], "parting the table of events")
    invocation.confirm(f"part the table of events by {every}")
    for name, settings in chosen:
        with (
            schema_in_use(settings.events_schema),
            connect(Address.of(settings)) as connection,
            connection.transaction(),
        ):
            made = partition_events(connection, every, ahead)
        invocation.output.line(f"{name}: made {', '.join(made) or 'none, there are enough'}")
        if invocation.output.json:
            invocation.output.document({"source": name, "made": made})


@event_commands.command()
def schema(
    context: typer.Context,
    modules: Modules,
    against: Annotated[
        Path | None,
        typer.Option(
            "--against",
            metavar="FILE",
            help="Say what events under these schemas would not fit.",
            show_default=False,
        ),
    ] = None,
) -> int:
    """Print the JSON Schema of each event by name and version. With ``--against`` a file that this command printed
    before: say what today's models would refuse of events that were written then, and exit with 4 when there is any."""
    from tailrace.eventstore.errors import DifferenceFound
    from tailrace.eventstore.streams.models.compatibility import event_schemas, incompatible_changes

    invocation = invocation_of(context)
    import_modules(invocation, modules)
    if against is None:
        found = event_schemas()
        invocation.output.block(json.dumps(found, indent=2, sort_keys=True))
        if invocation.output.json:
            invocation.output.document(found)
        return 0
    problems = incompatible_changes(_schemas_of(against))
    for problem in problems:
        if invocation.output.json:
            invocation.output.document({"problem": problem})
        else:
            invocation.output.line(problem)
    if not problems:
        invocation.output.note(f"today's models take every event of {against}")
    return DifferenceFound.exit_code if problems else 0


def import_modules(invocation: Invocation, modules: list[str]) -> None:
    """Raises UsageError for one that does not import."""
    from tailrace.eventstore import disclosure
    from tailrace.eventstore.errors import TailraceError, UsageError
    from tailrace.projections.definition.load import import_from

    folder = import_from(invocation.configuration.folder)
    for name in modules:
        try:
            importlib.import_module(name)
        except TailraceError:
            raise
        except Exception as error:  # noqa: BLE001 (whatever a user's module raises)
            raise UsageError(
                f"module {name!r} does not import: {disclosure.describe_error(error)}",
                hint=f"modules are looked up from {folder} and the installed packages",
            ) from None


def _checked(invocation: Invocation, source: str | None, sample: int | None) -> list[CheckedType]:
    from tailrace.cdc.postgres.connect import Address, connect
    from tailrace.eventstore.model.event_schema import schema_in_use
    from tailrace.eventstore.subscriptions.domain_events.event_check import check_log, check_source

    found = []
    for name, settings in invocation.postgres_sources([source] if source else [], "checking events"):
        with schema_in_use(settings.events_schema), connect(Address.of(settings)) as connection:
            checked = check_source(connection, name, sample)
            found += checked or []
            if checked is None:
                invocation.output.note(f"source {name} has no tables of domain events")
    with invocation.store() as store:
        return found + check_log(store, sample)


def _inline(
    invocation: Invocation,
    source: str,
    settings: PostgresSourceSettings,
    each: InlineProjection,
    *,
    rebuild: bool,
) -> bool:
    """Report one; whether it differed."""
    from tailrace.cdc.postgres.connect import Address, connect
    from tailrace.eventstore.model.event_schema import schema_in_use
    from tailrace.eventstore.streams.inline_rows.prove import check_rows

    with schema_in_use(settings.events_schema), connect(Address.of(settings)) as connection:
        found = check_rows(connection, each, rebuild=rebuild)
    if invocation.output.json:
        about = {"source": source, "table": each.table, "category": each.category, "streams": found.streams}
        invocation.output.document(
            {**about, "different": found.different, "extra": found.extra, "rebuilt": rebuild}
        )
    else:
        wrong = [*found.different, *found.extra]
        shown = ", ".join(wrong[:5]) + (" …" if len(wrong) > 5 else "")
        verdict = (
            "equal"
            if not wrong
            else f"{len(wrong):,} rows {'written again' if rebuild else 'differ'}: {shown}"
        )
        invocation.output.line(
            f"{source}: {each.table} of {found.streams:,} streams of {each.category}: {verdict}"
        )
    return bool(found.different or found.extra)


def _report(invocation: Invocation, each: CheckedType) -> None:
    about = {"where": each.where, "type": each.type.name, "version": each.type.version}
    if invocation.output.json:
        error = None if each.error is None else each.error.message
        invocation.output.document({**about, "read": each.read, "failed": each.failed, "error": error})
        return
    verdict = "read" if not each.failed else f"{each.failed:,} of them cannot be read: {each.error}"
    invocation.output.line(
        f"{each.where}: {each.type.name} version {each.type.version}, {each.read:,}: {verdict}"
    )


def _schemas_of(file: Path) -> dict[str, dict[str, dict[str, object]]]:
    from tailrace.eventstore.errors import UsageError

    try:
        found = json.loads(file.read_text(encoding="utf-8"))
        if all(isinstance(schema, dict) for versions in found.values() for schema in versions.values()):
            return dict(found)
    except (OSError, ValueError, AttributeError):
        pass
    raise UsageError(f"{file} holds no schemas of events", hint=f"tailrace events schema MODULE > {file}")
