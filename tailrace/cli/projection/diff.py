"""``tailrace projection diff`` and ``runs``: two generations beside each other, and what refreshes did."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer

from tailrace.cli.invocation import Invocation, invocation_of
from tailrace.cli.projection.context import projection_context
from tailrace.cli.values import print_hidden_note
from tailrace.eventstore import disclosure
from tailrace.eventstore.errors import DifferenceFound
from tailrace.terminal import count, size, when

if TYPE_CHECKING:
    from tailrace.eventstore.metadata.run_records import RunRecord
    from tailrace.projections.lifecycle.diff import GenerationDiff, Sample
    from tailrace.projections.sinks.reader import Row

NameArgument = Annotated[str, typer.Argument(help="The projection.", show_default=False)]
GenerationArgument = Annotated[int, typer.Argument(help="A generation's number.", show_default=False)]


def diff(
    context: typer.Context, name: NameArgument, first: GenerationArgument, second: GenerationArgument
) -> int:
    """Compare the results of two generations, as the log keeps them: a preview and the live one, say. Starts no Spark.
    4 when they differ."""
    from tailrace.projections.lifecycle.diff import diff

    invocation = invocation_of(context)
    with projection_context(invocation, f"diff {name}", lenient=True) as projections:
        difference = diff(projections, name, first, second)
    if invocation.output.json:
        invocation.output.document(_document(difference))
    else:
        _print_diff(invocation, difference)
    return 0 if difference.equal else DifferenceFound.exit_code


def _print_diff(invocation: Invocation, difference: GenerationDiff) -> None:
    output = invocation.output
    one, other = f"g{difference.first}", f"g{difference.second}"
    for (number, rows), epoch in zip(
        ((one, difference.rows[0]), (other, difference.rows[1])), difference.epochs, strict=True
    ):
        output.line(f"{difference.projection} {number}: {count(rows, 'row')} at epoch {epoch:,}")
    if difference.epochs[0] != difference.epochs[1]:
        output.note("they stand at different positions: what was committed in between differs, too")
    if difference.equal:
        output.line("equal", style="green")
        return
    for number, columns in zip((one, other), difference.only_columns, strict=True):
        if columns:
            output.line(f"only in {number}, or of another type there, and not compared: {', '.join(columns)}")
    output.line(
        f"{count(difference.different, 'row')} with other values, {difference.only_in_first:,} only in {one},"
        f" {difference.only_in_second:,} only in {other}"
    )
    for sample in difference.samples if disclosure.values_are_shown() else ():
        output.line(f"  {_row_text(sample.key)}")
        for number, row in ((one, sample.first), (other, sample.second)):
            output.line(f"    {number}: {_difference_text(sample, row) if row is not None else 'no row'}")
    if difference.samples:
        print_hidden_note(invocation)


def _difference_text(sample: Sample, row: Row) -> str:
    """A row; only the values that differ where both generations have it."""
    if sample.first is None or sample.second is None:
        return _row_text({name: value for name, value in row.items() if name not in sample.key})
    return _row_text(
        {name: value for name, value in row.items() if sample.first[name] != sample.second[name]}
    )


def _row_text(row: Row) -> str:
    return ", ".join(f"{name}={value!s}" for name, value in row.items())


def _document(difference: GenerationDiff) -> dict[str, object]:
    samples = [
        {"key": _text(sample.key), "first": _text(sample.first), "second": _text(sample.second)}
        for sample in difference.samples
    ]
    return {
        "projection": difference.projection, "first": difference.first, "second": difference.second,
        "epochs": difference.epochs,
        "rows": difference.rows, "equal": difference.equal, "only_columns": difference.only_columns,
        "only_in_first": difference.only_in_first, "only_in_second": difference.only_in_second,
        "different": difference.different, "samples": samples,
    }  # fmt: skip


def _text(row: Row | None) -> str | None:
    return None if row is None else disclosure.hide_text(json.dumps(row, default=str, ensure_ascii=False))


def _epochs(record: RunRecord) -> str:
    reached = f"{record.to_epoch or 0:,}"
    if record.from_epoch is None or record.kind == "verify":
        return reached
    return f"{record.from_epoch:,} → {reached}"


def _seconds(record: RunRecord) -> str:
    return f"{(record.finished - record.started).total_seconds():.1f} s" if record.finished else ""


def _why(record: RunRecord) -> str:
    if record.status != "failed":
        return record.reason
    again = f", {record.tries:,} times, the last at {when(record.finished)}" if record.tries > 1 else ""
    return f"FAILED{again}: {record.reason}"


def runs(
    context: typer.Context,
    name: NameArgument,
    limit: Annotated[int, typer.Option("--limit", min=1, help="At most this many, latest first.")] = 20,
) -> None:
    """List refreshes and comparisons of a projection, latest first, with their failures, and who is at work now."""
    from tailrace.projections.refresh.lock import workers

    invocation = invocation_of(context)
    with projection_context(invocation, f"runs {name}", lenient=True) as projections:
        projections.check_known(name)
        records = projections.store.run_records.latest(name, limit)
        working = workers(projections, name)
    if invocation.output.json:
        for each in working:
            invocation.output.document(
                {"projection": name, "status": "running", "holder": each.holder, "started": each.since}
            )
        for record in records:
            invocation.output.document(record)
        return
    for each in working:
        invocation.output.note(f"at work now: {each.holder}, since {when(each.since)}")
    rows = [
        (
            when(record.started),
            "" if record.generation is None else f"g{record.generation}",
            record.kind,
            _epochs(record),
            record.rows_upserted,
            record.rows_deleted,
            size(record.bytes),
            "" if record.finished is None or record.tries > 1 else _seconds(record),
            _why(record),
        )
        for record in records
    ]
    header = ("started (UTC)", "", "kind", "epochs", "upserts", "deletes", "size", "took", "why")
    invocation.output.table(header, rows)
