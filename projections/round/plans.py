"""Plans of definitions that are kept from one round to the next, over views whose rows are replaced.

What a definition is depends on its code and on its inputs' columns, not on their rows. So its function is called once,
and its plan analysed once; each step puts what it reads in the place of what was read before, and runs the plan again.
This is for an engine of which this process has the one session, and for work of one thread at a time.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tailrace.projections.definition.model import Projection

_PLANS_MOST: Final = 1000


@dataclass(frozen=True, slots=True)
class Contents:
    """What an input holds. ``view`` tells inputs and their columns and types apart, ``place`` which rows there are,
    while ``held`` is kept; ``columns`` are those that the definition sees (None: all). ``frame`` reads them."""

    view: str
    place: Hashable
    held: object
    frame: Callable[[], DataFrame]
    columns: Sequence[str] | None = None


@dataclass(frozen=True, slots=True)
class _Shown:
    session: SparkSession
    contents: Contents


@dataclass(frozen=True, slots=True)
class _Plan:
    session: SparkSession
    projection: Projection
    result: DataFrame

    def is_of(self, session: SparkSession, projection: Projection) -> bool:
        mine = self.projection
        return (
            self.session is session
            and mine.function is projection.function
            and mine.inputs == projection.inputs
        )


class KeptPlans:
    """Views by their names, and plans over them by their projections'."""

    def __init__(self) -> None:
        self._mine = secrets.token_hex(4)  # the session is the whole process's
        self._views: dict[str, _Shown] = {}
        self._plans: dict[Hashable, _Plan] = {}

    def result(
        self,
        session: SparkSession,
        projection: Projection,
        contents: Mapping[str, Contents],
        define: Callable[[dict[str, DataFrame]], DataFrame],
    ) -> DataFrame:
        """A definition over what its inputs hold, until a view shows something else. ``define`` makes its plan of
        DataFrames, where none is kept. Raises what that raises, and what reading the inputs raises."""
        for each in contents.values():
            self._show(session, each)
        name = projection.name, *((at, each.view, *(each.columns or ())) for at, each in contents.items())
        known = self._plans.get(name)
        if known is None or not known.is_of(session, projection):
            tables = {at: self._table(session, each) for at, each in contents.items()}
            known = self._plans[name] = _Plan(session, projection, define(tables))
            if len(self._plans) > _PLANS_MOST:
                del self._plans[next(iter(self._plans))]
        return known.result

    def _show(self, session: SparkSession, contents: Contents) -> None:
        shown = self._views.get(contents.view)
        if shown is None or shown.session is not session or shown.contents.place != contents.place:
            contents.frame().createOrReplaceTempView(self._name(contents))
            self._views[contents.view] = _Shown(session, contents)

    def _name(self, contents: Contents) -> str:
        return f"tailrace_{self._mine}_{contents.view}"

    def _table(self, session: SparkSession, contents: Contents) -> DataFrame:
        table = session.table(self._name(contents))
        return (
            table if contents.columns is None else table.select(*(f"`{name}`" for name in contents.columns))
        )
