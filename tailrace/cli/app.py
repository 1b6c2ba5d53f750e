"""The commands, flat for what is done daily, under a noun for the rest. Rooms are imported when a command runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tailrace import __version__
from tailrace.cli import log_handler
from tailrace.cli.daily.adopt import adopt
from tailrace.cli.daily.capture import capture
from tailrace.cli.daily.demo import demo
from tailrace.cli.daily.doctor import doctor
from tailrace.cli.daily.forget import forget
from tailrace.cli.daily.init import init
from tailrace.cli.daily.plan import plan
from tailrace.cli.daily.publish import publish
from tailrace.cli.daily.replay import replay
from tailrace.cli.daily.run import rebuild, run
from tailrace.cli.daily.status import status
from tailrace.cli.daily.verify import verify
from tailrace.cli.events import event_commands
from tailrace.cli.group import group_commands
from tailrace.cli.invocation import Invocation
from tailrace.cli.log.show import log_commands
from tailrace.cli.projection.list import projection_commands
from tailrace.cli.source.list import source_commands
from tailrace.cli.store.info import store_commands
from tailrace.cli.topic import topic_commands
from tailrace.terminal import Output

EPILOG = (
    "Global options may stand anywhere on the line. Exit codes: 0 done, 1 bug, 2 usage, 3 nothing to do "
    "(with --detailed-exitcode), 4 difference found, 5 fenced, 6 resumable, 7 operator must act, 130 interrupted."
)

app = typer.Typer(
    no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, epilog=EPILOG,
    context_settings={"help_option_names": ["-h", "--help"]}, rich_markup_mode="markdown",
)  # fmt: skip


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"tailrace {__version__}")
        raise typer.Exit


@app.callback()
def tailrace(
    context: typer.Context,
    config: Annotated[
        Path | None,
        typer.Option(
            "--config", metavar="FILE", help="Configuration [TAILRACE_CONFIG, else ./tailrace.toml]."
        ),
    ] = None,
    env: Annotated[
        str | None, typer.Option("--env", metavar="NAME", help="Overlay \\[env.NAME] of it [TAILRACE_ENV].")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Results, progress and errors as JSON lines.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask in a protected environment.")] = False,
    show_values: Annotated[
        bool, typer.Option("--show-values", help="Errors and differences quote values of rows.")
    ] = False,
    verbose: Annotated[bool, typer.Option("--verbose", help="More on standard error; tracebacks.")] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Tail the Postgres write-ahead log into an event store; rebuild caches, search indexes and views from it."""
    output = Output(json=json)
    log_handler.install(output, verbose=verbose)
    context.obj = Invocation(output, config=config, env=env, verbose=verbose, yes=yes)


DAILY = "Daily"
PARTS = "The parts"

for verb in (init, doctor, capture, adopt, status, plan, run, rebuild, verify, publish, forget, replay, demo):
    app.command(rich_help_panel=DAILY)(verb)
for noun, commands in {
    "source": source_commands,
    "topic": topic_commands,
    "log": log_commands,
    "projection": projection_commands,
    "group": group_commands,
    "events": event_commands,
    "store": store_commands,
}.items():
    app.add_typer(commands, name=noun, rich_help_panel=PARTS, no_args_is_help=True)
