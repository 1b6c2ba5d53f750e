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
_SHOWN_MOST: Final = 2
"""Contents of one input that are shown at a time: sums are made of rows as they were and as they are."""


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
    view: str


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
    """What inputs hold, latest last, and plans over that by their projections'."""

    def __init__(self) -> None:
        self._mine = secrets.token_hex(4)  # the session is the whole process's
        self._views: dict[str, list[_Shown]] = {}
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
        views = {at: self._view(session, each) for at, each in contents.items()}
        name = projection.name, *((at, view, *(contents[at].columns or ())) for at, view in views.items())
        known = self._plans.get(name)
        if known is None or not known.is_of(session, projection):
            tables = {at: _table(session, views[at], each) for at, each in contents.items()}
            known = self._plans[name] = _Plan(session, projection, define(tables))
            if len(self._plans) > _PLANS_MOST:
                del self._plans[next(iter(self._plans))]
        return known.result

    def _view(self, session: SparkSession, contents: Contents) -> str:
        """The name of a view that shows the contents."""
        shown = self._views.setdefault(contents.view, [])
        for at, each in enumerate(shown):
            if each.session is session and each.contents.place == contents.place:
                shown.append(shown.pop(at))
                return each.view
        view = f"tailrace_{self._mine}_{contents.view}_{len(shown)}"
        if len(shown) == _SHOWN_MOST:
            view = shown.pop(0).view
        contents.frame().createOrReplaceTempView(view)
        shown.append(_Shown(session, contents, view))
        return view


def _table(session: SparkSession, view: str, contents: Contents) -> DataFrame:
    table = session.table(view)
    return table if contents.columns is None else table.select(*(f"`{name}`" for name in contents.columns))
