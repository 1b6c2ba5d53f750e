"""What the names in a query in SQL mean for the projection: which keys its inputs affect, from its text alone and again
when their columns are known, and which names mean something else than with other columns. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from sqlglot import exp

from tailrace.projections.definition.findings import DefinitionFinding
from tailrace.projections.definition.model import Affects, KnownColumns, Projection
from tailrace.projections.definition.sql.derive import derive, meanings
from tailrace.projections.definition.sql.unfollowed import QueryText, unfollowed_inputs

_NOTHING: KnownColumns = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class QueryLineage:
    """``tree`` is the query as it is walked: with Postgres' functions as they are written where a ``zone`` says that
    it is Postgres'. ``query`` is how messages quote it. ``wanted`` are the inputs whose header does not say."""

    tree: exp.Expr
    zone: str | None
    query: exp.Query
    written: QueryText
    wanted: tuple[str, ...]
    _latest: list[tuple[Projection, KnownColumns, Projection]] = field(
        default_factory=list, repr=False, compare=False
    )

    def followed(self, defined: Projection, known: KnownColumns = _NOTHING) -> Projection:
        """The projection with what follows when these columns of inputs are ``known``. Each step asks it, mostly the
        same."""
        if not self.wanted:
            return defined
        for asked, columns, answer in self._latest:
            if asked is defined and columns == known:
                return answer
        found = self._followed(defined, known)
        self._latest[:] = [(defined, known, found)]
        return found

    def _followed(self, defined: Projection, known: KnownColumns) -> Projection:
        bare = with_affects(defined, dict.fromkeys(self.wanted))
        derived = derive(self.tree, bare.key, bare.inputs, self.wanted, self.zone, known)
        found = with_affects(bare, derived.affects)
        return replace(found, unfollowed=tuple(unfollowed_inputs(found, self.query, self.written, derived)))

    def changed_names(
        self, defined: Projection, before: KnownColumns, now: KnownColumns
    ) -> Iterator[DefinitionFinding]:
        """The names without a table that are another's column with the columns of ``now`` than with those of
        ``before``."""
        old, new = (meanings(self.tree, defined.inputs, known) for known in (before, now))
        for place in sorted({*old} & {*new}):
            was, means = old[place], new[place]
            if was != means:
                what = f"{was.name} was {was}, and is {means} since the columns of its inputs changed"
                hint = f"{was.instead} to keep what it means; or tailrace rebuild {defined.name} for what it means now"
                at = f"{defined.file}:{self.written.position(place)}"
                yield DefinitionFinding("fail", what, hint, at, column=was.name)


def with_affects(defined: Projection, affects: Mapping[str, Affects]) -> Projection:
    """The projection with these ``affects`` of its inputs in place of theirs."""
    inputs = {
        name: replace(source, affects=affects[name]) if name in affects else source
        for name, source in defined.inputs.items()
    }
    return replace(defined, inputs=inputs)
