"""Everything that is wrong with a projection, at once and before a row is read, and how it can be refreshed.

Names first (``check``); where these are right, the function's plan (``analysis``), and the sink with the columns of the
result. Spark is started for the plan.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pyarrow as pa

from tailrace.eventstore.errors import TailraceError, TransientError
from tailrace.projections.analysis.analyse import Analysis, Upstream, analyse, is_unbuilt, upstream_of
from tailrace.projections.analysis.check_names import refused_as_unfollowed, wrong_in_result, wrong_names
from tailrace.projections.analysis.followed import changed_names, followed
from tailrace.projections.analysis.guards import columns_of, declaration_refusal, incomparable
from tailrace.projections.analysis.renamed import say_renames
from tailrace.projections.compute.compute import ambiguous_names
from tailrace.projections.compute.frames import shown_columns
from tailrace.projections.compute.input_facts import facts_of
from tailrace.projections.compute.read_plan import describe_input
from tailrace.projections.definition.findings import DefinitionFinding, did_you_mean
from tailrace.projections.definition.lineage import lineage_of
from tailrace.projections.definition.load import Mistake
from tailrace.projections.definition.model import (
    Input,
    KnownColumns,
    NoStage,
    Projection,
    ProjectionFailed,
    Result,
    State,
)
from tailrace.projections.definition.source import SourceLines
from tailrace.projections.sinks.contract import CannotBuild, Sink, Target
from tailrace.projections.sinks.open import open_sink
from tailrace.projections.spark.errors import unforeseen_error

if TYPE_CHECKING:
    from tailrace.projections.context import ProjectionContext


@dataclass(frozen=True, slots=True)
class CheckReport:
    """``incremental`` is None where something before the plan is wrong. ``reasons`` speak against incremental
    refreshes; ``whole`` are inputs whose changes have everything computed although others are followed by key,
    ``subqueries`` those whose values have it when they change.
    ``remarks`` are the sink's; ``notes`` what may be right as it is."""

    projection: str
    place: str
    findings: tuple[DefinitionFinding, ...]
    incremental: bool | None = None
    reasons: tuple[DefinitionFinding, ...] = ()
    whole: tuple[str, ...] = ()
    subqueries: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        return all(found.level != "fail" for found in self.findings)

    @property
    def exit_code(self) -> int:
        """That of the first failure; 0 without one."""
        return next((found.exit_code for found in self.findings if found.level == "fail"), 0)


def mistake_reports(mistakes: Sequence[Mistake]) -> list[CheckReport]:
    """What is wrong before anything can be examined, projection by projection; of modules by their names."""
    found: dict[str, CheckReport] = {}
    for mistake in mistakes:
        known = found.get(mistake.place)
        findings = (*known.findings, mistake.finding) if known else (mistake.finding,)
        found[mistake.place] = CheckReport(mistake.name, mistake.place, findings)
    return list(found.values())


def examine(ctx: ProjectionContext, projection: Projection) -> CheckReport:
    """Look at one projection as far as its mistakes, and a Spark that does not start, let one see."""
    projection = followed(ctx.store, projection)
    report = CheckReport(projection.name, projection.place, ())
    findings = [*wrong_names(ctx.store, projection), *_unknown_projections(ctx, projection)]
    sound = _without_unknown(projection, findings)
    findings += _changed_names(ctx, projection)
    sink = _open_sink(ctx, projection, findings)
    if sound is None:
        return replace(report, findings=(*_unfollowed(ctx, projection), *findings))
    failures: list[ProjectionFailed] = []
    try:
        upstream = upstream_of(ctx.spark, ctx.store, projection, ctx.projections)
        if sound is projection and (expected := _expected_columns(ctx, projection, upstream)):
            sound = projection = followed(ctx.store, projection, expected)
        unknown = list(_unknown_in_results(ctx, projection, upstream))
        sound = _without_unknown(sound, unknown) or sound
        findings += [*unknown, *_ambiguous_columns(ctx, sound)]
        ctx.report(f"looking at the plan of {projection.name}", 0, None, "")
        analysis = analyse(ctx.spark, ctx.store, sound, failures, upstream)
    except TransientError:
        raise  # Spark went away: that is no finding
    except Exception as error:  # noqa: BLE001 of Spark, which does not start, or of the function
        others = error.others if isinstance(error, ProjectionFailed) else ()
        findings += [_failure(ctx, projection, failure) for failure in (*failures, error, *others)]
        return replace(report, findings=(*_unfollowed(ctx, projection), *findings))
    findings += [*_unfollowed(ctx, projection), *(_failure(ctx, projection, each) for each in failures)]
    if sink is not None and analysis.schema is not None:
        report = replace(report, remarks=_check_sink(ctx, projection, sink, analysis.schema, findings))
    report = replace(report, findings=(*findings, *analysis.findings))
    if failures or sound is not projection:
        return report
    reasons = tuple(_reasons(ctx, projection, analysis))
    if reasons:
        parts = _partial_results(ctx, projection)
        return replace(report, incremental=False, reasons=reasons, notes=parts)
    lineage = lineage_of(projection)
    whole = tuple(name for name in lineage.unknown if name not in analysis.apart)
    notes = () if analysis.never_null else (_null_key(lineage.key),)
    subqueries = tuple(words for words, names in analysis.subqueries.items() if names)
    return replace(report, incremental=True, whole=whole, subqueries=subqueries, notes=notes)


_BY_PARTS = (
    "once computing everything takes 2 s, its refreshes go by way of partial results, into which changes are followed"
    " by key"
)


def _partial_results(ctx: ProjectionContext, projection: Projection) -> tuple[str, ...]:
    """That there are some, by the text of a query; a function's are known when they are needed."""
    if projection.stages is None or projection.names is None:
        return ()
    try:
        projection.stages.stage(projection, facts_of(ctx.store, projection), lambda defined: None)
    except NoStage:
        return ()
    return (_BY_PARTS,)


def _null_key(key: Sequence[str]) -> str:
    """What to do about keys that may be NULL, so that refreshes stay incremental. No warning: the log does not know
    which columns the source declares NOT NULL."""
    column, columns = key[0], " or ".join(key)
    return (
        f"nothing in its plan says that its key {columns} is never NULL, and a refresh refuses rows without a key."
        f" If there are such rows, leave them out ({column} IS NOT NULL), or give them a value, coalesce({column}, …),"
        " in a projection by the table's own key, and read the result of that one here. Both stay incremental"
    )


def _without_unknown(projection: Projection, findings: Sequence[DefinitionFinding]) -> Projection | None:
    """The projection without the columns that its inputs name and do not have, to look at the rest of it; None when an
    input itself is not known. Nothing is followed by key then: what inputs affect is left out."""
    if not findings:
        return projection
    if any(not found.column for found in findings):
        return None
    inputs: dict[str, Input] = {}
    for name, source in projection.inputs.items():
        wrong = {found.column for found in findings if found.input == name}
        kept = replace(source, affects=None)
        if isinstance(kept, State):
            policy = kept.on_unreadable
            kept = replace(
                kept,
                columns=kept.columns and tuple(column for column in kept.columns if column not in wrong),
                cast={column: ddl for column, ddl in kept.cast.items() if column not in wrong},
                on_unreadable=policy
                if isinstance(policy, str)
                else {column: word for column, word in policy.items() if column not in wrong},
            )
        inputs[name] = kept
    return replace(projection, inputs=inputs)


def _unfollowed(ctx: ProjectionContext, projection: Projection) -> tuple[DefinitionFinding, ...]:
    """What does not follow from its query: a warning, unless it is to be refused."""
    return refused_as_unfollowed(ctx.settings, projection) or projection.unfollowed


def _changed_names(ctx: ProjectionContext, projection: Projection) -> list[DefinitionFinding]:
    """Names in its query that meant something else at the last step of the generation that it refreshes."""
    live = ctx.live(projection.name)
    if live is None or ctx.is_frozen(live) or live.pin is not None:
        return []
    last = ctx.store.steps.last(live.projection, live.number)
    return changed_names(ctx.store, projection, last) if last is not None else []


def _unknown_projections(ctx: ProjectionContext, projection: Projection) -> Iterator[DefinitionFinding]:
    """Projections that it reads and that nobody knows."""
    lines = SourceLines.of(projection)
    for name, source in projection.inputs.items():
        if isinstance(source, Result) and source.projection not in ctx.projections:
            if ctx.generations(source.projection):
                continue
            defined = f"defined are {', '.join(ctx.projections)}"
            hint = did_you_mean(source.projection, ctx.projections) or defined
            what = f"input {name!r}: there is no projection {source.projection}"
            yield DefinitionFinding("fail", what, hint, lines.declared_place(name), name)


def _expected_columns(
    ctx: ProjectionContext, projection: Projection, upstream: Mapping[str, Upstream]
) -> KnownColumns:
    """The columns of results that were never built, as far as the definitions of these tell."""
    return {
        name: read.analysis.schema.names
        for name, read in upstream.items()
        if is_unbuilt(ctx.store, projection.inputs[name])
        and read.analysis is not None
        and read.analysis.schema is not None
    }


def _unknown_in_results(
    ctx: ProjectionContext, projection: Projection, upstream: Mapping[str, Upstream]
) -> Iterator[DefinitionFinding]:
    """Columns that inputs name of results that were never built, and that these are not going to have."""
    for name, read in upstream.items():
        source = projection.inputs[name]
        if isinstance(source, Result) and is_unbuilt(ctx.store, source):
            yield from wrong_in_result(projection, name, source, read.expected_result().schema.names)


def _ambiguous_columns(ctx: ProjectionContext, projection: Projection) -> Iterator[DefinitionFinding]:
    """Inputs with columns that Spark does not tell apart: no mistake, as long as the function names none of them."""
    lines = SourceLines.of(projection)
    for name, source in projection.inputs.items():
        if not isinstance(source, State):
            continue
        columns = ambiguous_names(ctx.spark, shown_columns(describe_input(ctx.store, source), source))
        if columns:
            what = (
                f"input {name!r}: {source.topic} has columns {', '.join(columns)}, which Spark does not tell apart:"
                " the function can name none of them"
            )
            hint = f'choose one: {name}=State(…, columns=("{columns[0]}", …))'
            yield DefinitionFinding("warn", what, hint, lines.declared_place(name), name)


def _reasons(ctx: ProjectionContext, projection: Projection, analysis: Analysis) -> list[DefinitionFinding]:
    """What speaks against incremental refreshes. Without a lineage there is no key that a plan could keep apart."""
    declared = declaration_refusal(projection)
    found = [] if declared else list(analysis.not_local)
    hint = "as said above" if projection.unfollowed else _DECLARED_HINT
    words = [(declared, hint)] if declared else []
    if not declared and analysis.schema is not None:
        columns = {name: columns_of(planned) for name, planned in analysis.inputs.items()}
        other = incomparable(projection, lineage_of(projection), columns.__getitem__, analysis.schema)
        words += [(other, "have both in one type in the source")] if other else []
    known = {*(finding.what for finding in found), *(what for what, _ in words)}
    words += [(failed, "") for failed in _failed_samples(ctx, projection) if failed not in known]
    said = {finding.what for finding in analysis.findings}
    words += (
        [("its result is not the same each time, as said above", "")] if said & set(analysis.unstable) else []
    )
    words += [(what, "") for what in analysis.unstable if what not in said]
    return [*found, *(DefinitionFinding("warn", what, hint, projection.place) for what, hint in words)]


def _failed_samples(ctx: ProjectionContext, projection: Projection) -> list[str]:
    """What samples have shown of the generation that readers see, if this definition built it."""
    live = ctx.live(projection.name)
    if live is None or ctx.is_frozen(live) or live.checked is None:
        return []
    current = live.checked.failed is not None and live.checked.trusted == projection.trust
    return [live.checked.failed or ""] if current else []


_DECLARED_HINT = "declare for each input which keys its rows take part in: affects="


def _failure(ctx: ProjectionContext, projection: Projection, error: Exception) -> DefinitionFinding:
    """An error as a finding, without the projection's name, which is said beside it."""
    say_renames(ctx.store, projection, error)
    if not isinstance(error, TailraceError):
        error = unforeseen_error(projection, "being examined", error)
    own = f"projection {projection.name!r} "
    place, lacks_key = projection.place, False
    if isinstance(error, ProjectionFailed):
        place, lacks_key = error.place or place, bool(error.unknown)
    message = error.message.removeprefix(own).removeprefix(f"({place}): ").removeprefix(f"{place}: ")
    if lacks_key:
        place = SourceLines.of(projection).declared_place("key")
    return DefinitionFinding("fail", message, error.hint, place, exit_code=error.exit_code)


def _open_sink(
    ctx: ProjectionContext, projection: Projection, findings: list[DefinitionFinding]
) -> Sink | None:
    try:
        return open_sink(projection.sink, ctx.settings)
    except Exception as error:  # noqa: BLE001 a sink of one's own may raise anything
        place = SourceLines.of(projection).declared_place("sink")
        findings.append(replace(_failure(ctx, projection, error), place=place))
        return None


def _check_sink(
    ctx: ProjectionContext,
    projection: Projection,
    sink: Sink,
    schema: pa.Schema,
    findings: list[DefinitionFinding],
) -> tuple[str, ...]:
    """Whether the sink can hold these columns, as the next generation. Its remarks."""
    existing = ctx.generations(projection.name)
    number = existing[-1].number + 1 if existing else 1
    store = ctx.settings.store
    target = Target(
        store.name, ctx.store.log_id, projection.name, number, projection.key, schema, store.partitions
    )
    try:
        return tuple(sink.check(target))
    except CannotBuild as error:
        place = SourceLines.of(projection).declared_place("sink")
        findings += [
            DefinitionFinding("fail", f"sink: {problem}", error.hint, place, exit_code=error.exit_code)
            for problem in error.problems
        ]
    except Exception as error:  # noqa: BLE001
        findings.append(_failure(ctx, projection, error))
    return ()
