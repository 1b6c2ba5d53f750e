"""``tailrace store upgrade``: the store's tables are brought to this version's format."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from tailrace.cli.invocation import NOTHING_TO_DO, Invocation, invocation_of

if TYPE_CHECKING:
    from tailrace.eventstore.catalog.formats import MigrationStep
    from tailrace.eventstore.catalog.upgrade import Tables, Upgrade


class PhaseOption(StrEnum):
    PRE = "pre"
    POST = "post"


def upgrade(
    context: typer.Context,
    phase: Annotated[
        PhaseOption,
        typer.Option(
            help="pre: only what older processes can work with. post: everything, once none of them runs."
        ),
    ] = PhaseOption.PRE,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what it would do.")] = False,
    detailed_exitcode: Annotated[
        bool, typer.Option("--detailed-exitcode", help="3 when there was nothing to do.")
    ] = False,
) -> int:
    """Bring the store's tables to this version's format, in two phases.

    First run `--phase pre` while processes of the version before still run; then replace them; then `--phase post`. It
    also grants the roles of a catalog on Postgres again.
    """
    from tailrace.eventstore.catalog.upgrade import open_upgrade

    invocation = invocation_of(context)
    with open_upgrade(invocation.settings.store, invocation.configuration.folder) as plan:
        pending = plan.pending_steps(phase.value)
        if not invocation.output.json:
            _print_pending(invocation, plan, pending)
        if not dry_run:
            if pending:
                invocation.confirm(f"upgrade the tables of store {invocation.settings.store.name}")
            plan.run(phase.value)
        if invocation.output.json:
            invocation.output.document(_document(plan, pending, done=not dry_run))
        elif pending and not dry_run:
            invocation.output.line("done", style="green")
    return NOTHING_TO_DO if detailed_exitcode and not pending else 0


def _print_pending(
    invocation: Invocation, plan: Upgrade, pending: list[tuple[Tables, list[MigrationStep]]]
) -> None:
    output = invocation.output
    for each in plan.tables:
        to = f" to {each.steps[-1].revision}" if each.steps else ", this version's"
        output.line(f"{each.family.name} tables: format {each.found}{to}")
    rows = [
        (each.family.name, step.revision, step.phase, step.about) for each, steps in pending for step in steps
    ]
    if rows:
        output.table(("tables", "format", "phase", "what it does"), rows)
    elif any(each.steps for each in plan.tables):
        output.line("what is left belongs to the second phase: --phase post, when no older process runs")
    else:
        output.line("nothing to do")
    missing = plan.missing_roles()
    if missing:
        statements = "; ".join(f"CREATE ROLE {name} NOLOGIN" for name in missing)
        output.note(
            f"roles that are not there: let somebody with CREATEROLE run {statements}; then run this again"
        )


def _document(
    plan: Upgrade, pending: list[tuple[Tables, list[MigrationStep]]], *, done: bool
) -> dict[str, object]:
    run = {each.family.name: [step.revision for step in steps] for each, steps in pending}
    return {
        "tables": [
            {
                "tables": each.family.name,
                "found": each.found,
                "steps": [{"format": s.revision, "phase": s.phase, "about": s.about} for s in each.steps],
                "chosen": run.get(each.family.name, []),
            }
            for each in plan.tables
        ],
        "missing_roles": plan.missing_roles(),
        "done": done,
    }
