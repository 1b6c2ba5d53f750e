"""``tailrace store move``: the log goes to another catalog and another place of its segments."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from tailrace.cli.invocation import Invocation, invocation_of
from tailrace.cli.progress import Reporter
from tailrace.eventstore.errors import OperatorError, TailraceError
from tailrace.terminal import count, size

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tailrace.eventstore.maintenance.move.move import MoveResult
    from tailrace.eventstore.settings import StoreSettings


def move(
    context: typer.Context,
    catalog: Annotated[
        str, typer.Option(metavar="URL", help="The new catalog; '${VAR}' is taken from the environment.")
    ],
    segments: Annotated[str, typer.Option(metavar="PLACE", help="A folder, or s3://BUCKET/PREFIX.")],
    endpoint: Annotated[
        str | None,
        typer.Option(metavar="URL", help="Endpoint of the new object store. Default: store.s3.endpoint."),
    ] = None,
    region: Annotated[
        str | None, typer.Option(help="Region of the new bucket. Default: store.s3.region.")
    ] = None,
    encryption: Annotated[
        str | None,
        typer.Option(metavar="METHOD", help="Requested of the object store. Default: store.s3.encryption."),
    ] = None,
    kms_key: Annotated[
        str | None, typer.Option(metavar="KEY", help="Key of aws:kms. Default: store.s3.kms_key.")
    ] = None,
    abandon: Annotated[
        bool, typer.Option("--abandon", help="Give up an unfinished move, and open the old place again.")
    ] = False,
) -> None:
    """Move the store: catalog, files and consumer groups. Each file and table is compared afterwards.

    Stop captures, upkeep and projections first. A move that was stopped or killed goes on when it is run again. Once
    copying begins, processes that still use the old place are refused, and learn where the store went.
    """
    from tailrace.config.load import store_at
    from tailrace.eventstore.maintenance.move.move import open_move

    invocation = invocation_of(context)
    s3 = {"endpoint": endpoint, "region": region, "encryption": encryption, "kms_key": kms_key}
    settings, place = (
        invocation.settings.store,
        store_at(invocation.configuration, catalog, segments, s3),
    )
    with open_move(settings, place, invocation.configuration.folder) as found:
        if abandon:
            found.abandon()
            invocation.output.line("the move was given up: the store is where it was")
            return
        invocation.confirm(f"move store {settings.name}")
        _require_no_capture(invocation, found.slots())
        with invocation.output.progress("moving") as progress:
            done = found.run(progress.say, partial(report_copied, Reporter(progress)))
    _print_moved(invocation, done, place, catalog, segments)


def _require_no_capture(invocation: Invocation, slots: Mapping[str, str]) -> None:
    """Raises OperatorError naming the capture that still runs. A source that is out of reach is said, no more: what
    captures it would be refused at its next write."""
    from tailrace.cdc.postgres.connect import Address, connect
    from tailrace.cdc.postgres.slot import read_slot

    for name, settings in invocation.settings.sources.items():
        if name not in slots or settings.kind != "postgres":
            continue
        try:
            address = Address.parse(settings.dsn.get_secret_value())
            with connect(address) as connection:
                slot = read_slot(connection, slots[name], address)
        except TailraceError as error:
            invocation.output.note(f"source {name}: whether a capture runs is not known: {error.message}")
            continue
        if slot is not None and slot.active_pid is not None:
            raise OperatorError(
                f"a capture of source {name} is running (slot {slot.name}, server process {slot.active_pid})",
                hint="stop it, and run the move again; what it has not captured yet waits in the slot",
            )


def report_copied(report: Reporter, files: int, of_files: int, done: int, total: int) -> None:
    """How far copying is, by bytes: files differ too much."""
    report.say(
        f"{files:,} of {count(of_files, 'file')}, {size(done)} of {size(total)}",
        "copying", done, total, "bytes", lambda rate: size(int(rate)), files=files, files_total=of_files,
    )  # fmt: skip


def _print_moved(
    invocation: Invocation, done: MoveResult, place: StoreSettings, catalog: str, segments: str
) -> None:
    output = invocation.output
    shown = _displayed_address(catalog)
    if output.json:
        output.document(
            {
                "log_id": done.log_id,
                "files": done.files.files,
                "bytes": done.files.bytes,
                "written_files": done.files.written,
                "rows": done.rows,
                "catalog": shown,
                "segments": str(place.segments),
            }
        )
        return
    output.line(
        f"moved {count(done.files.files, 'file')} ({size(done.files.bytes)}) and "
        f"{count(sum(done.rows.values()), 'row')} of the catalog; all compared",
        style="green",
    )
    output.line("set in tailrace.toml, on every machine:")
    lines = ["[store]", f'catalog = "{shown}"', f'segments = "{segments}"']
    s3 = place.s3.model_dump(exclude_none=True)
    if place.in_objects and s3:
        lines.append("[store.s3]")
        lines += [f'{name} = "{value}"' for name, value in s3.items()]
    for line in lines:
        output.line(f"  {line}")
    if shown != catalog:
        output.line(
            '  (the password is not shown: take the URL from the environment, as in "${CATALOG_URL}")'
        )
    output.line("then start captures and projections. The old place is closed; it may be removed.")


def _displayed_address(catalog: str) -> str:
    """As given when it names a variable; else without its password."""
    if "${" in catalog:
        return catalog
    from sqlalchemy.engine import make_url

    return make_url(catalog).render_as_string(hide_password=True)
