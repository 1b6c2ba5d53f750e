"""Partial results that add up, further on than their last step: what changed since lies in memory.

A process that goes on would commit two steps for each projection of sums, that of its partial results and its own. It
puts the first one off. What is lost with the process is followed from the log again: for everybody else, the generation
is at its last step.

Once in a while all that is kept is *due*: it is set aside as it is, and its steps are committed one after the other,
each between two refreshes. So the next process finds them at few positions, at each of which it looks up rows of the
log, and none waits for all.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tailrace.eventstore.metadata.projection_steps import DerivedRun
from tailrace.projections.generations.difference import RowNumbers
from tailrace.projections.generations.key_set import Hashes, KeySet

SECONDS = 120.0
"""That are put off, at most."""
CHANGES = 100_000
"""Of a table, that are put off: the next process looks up the rows of all of them."""
PAUSE_SECONDS = 2.0
"""Between the steps of generations that are due."""
_PIECES = 32


class SameHash(Exception):
    """Two keys of one hash, which are not told apart here."""


class LatestRows:
    """The latest row of each key, and the epoch that it is of. A key is found by its hash; that two have the same one
    is noticed, not provided for."""

    def __init__(self, key: Sequence[str], schema: pa.Schema) -> None:
        self._key = key
        self._rows: pa.Table = schema.empty_table()
        self._hashes: Hashes = np.zeros(0, np.int64)
        self._places: RowNumbers = np.zeros(0, np.int64)
        self._epochs: RowNumbers = np.zeros(0, np.int64)
        self.nbytes = 0

    @property
    def rows(self) -> pa.Table:
        return self._rows.take(pa.array(self._places))

    def find(self, keys: KeySet) -> tuple[pa.Table, KeySet]:
        """The rows of those keys that are here, and the other keys. Raises SameHash."""
        at = np.searchsorted(self._hashes, keys.hashes)
        known = at < len(self._hashes)
        known[known] = self._hashes[at[known]] == keys.hashes[known]
        found = self._rows.take(pa.array(self._places[at[known]]))
        wanted = keys.table.filter(pa.array(known))
        for name, column in zip(self._key, wanted.columns, strict=True):
            if not pc.all(pc.equal(found[name].cast(column.type), column), min_count=0).as_py():
                raise SameHash
        return found, keys.take(np.flatnonzero(~known).tolist())

    def add(self, epoch: int, rows: pa.Table, hashes: Hashes) -> None:
        """Rows of a later epoch, and the hashes of their keys, which ``find`` was asked for. Raises SameHash, and is as
        before then."""
        if len(np.unique(hashes)) < len(hashes):
            raise SameHash
        old = ~np.isin(self._hashes, hashes)
        every = np.concatenate([self._hashes[old], hashes])
        places = np.concatenate([self._places[old], self._rows.num_rows + np.arange(len(hashes))])
        epochs = np.concatenate([self._epochs[old], np.full(len(hashes), epoch)])
        self._keep(pa.concat_tables([self._rows, rows]), every, places, epochs)

    def forget_until(self, epoch: int) -> None:
        """Leave out rows of an epoch and before."""
        later = self._epochs > epoch
        self._keep(self._rows, self._hashes[later], self._places[later], self._epochs[later])

    def _keep(self, rows: pa.Table, hashes: Hashes, places: RowNumbers, epochs: RowNumbers) -> None:
        """All parts anew, so that a copy stays as it was."""
        order = np.argsort(hashes, kind="stable")
        self._hashes, self._places, self._epochs = hashes[order], places[order], epochs[order]
        self._rows = rows
        if rows.column(0).num_chunks > _PIECES or rows.num_rows > 4 * len(places):
            self._rows = self.rows.combine_chunks()
            self._places = np.arange(len(self._places))
        self.nbytes = int(self._rows.nbytes) + self._hashes.nbytes * 3


@dataclass(frozen=True, slots=True)
class SumsSince:
    """The partial results that changed since a ``step``, as they are at epoch ``to``, by so many ``changes``. ``due``:
    the same at an earlier epoch, of which a step is to be taken."""

    step: str
    to: int
    latest: LatestRows
    changes: int
    due: SumsSince | None = None


class KeptSums:
    """By generation what changed since its last step: ``most_bytes`` of all together, for two minutes by ``clock``, or
    little more. One thread at a time asks."""

    def __init__(self, most_bytes: int, clock: Callable[[], float]) -> None:
        self._most_bytes, self._clock = most_bytes, clock
        self._held: dict[tuple[str, int], SumsSince] = {}
        self._due_at = self._rests_until = 0.0
        self.puts_off = False

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """Inside, steps are put off. A process that ends before long does better to commit each."""
        self.puts_off, self._due_at = True, self._clock() + SECONDS
        try:
            yield
        finally:
            self.puts_off = False
            self.forget_all()

    @property
    def _are_too_large(self) -> bool:
        return sum(each.latest.nbytes for each in self._held.values()) > self._most_bytes

    def since(self, last: DerivedRun, at: int) -> SumsSince | None:
        """What changed of a generation since its ``last`` step up to epoch ``at``, where that is kept. What is kept of
        another step, or up to another epoch, is forgotten."""
        held = self._held.get((last.projection, last.generation))
        if held is not None and (held.step != last.hash or held.to != at):
            self.forget(last.projection, last.generation)
            return None
        return held

    def put(self, last: DerivedRun, to: int, latest: LatestRows, changes: int) -> None:
        """What changed since the step ``last``, up to epoch ``to``; ``changes``: of the table since what was kept
        before."""
        name = last.projection, last.generation
        held = self._held.get(name)
        changes += held.changes if held else 0
        self._held[name] = SumsSince(last.hash, to, latest, changes, held.due if held else None)
        if self._clock() >= self._due_at or changes > CHANGES or self._are_too_large:
            self._due_at = self._clock() + SECONDS
            for each, kept in self._held.items():
                aside = kept.due or replace(kept, latest=copy.copy(kept.latest))
                self._held[each] = replace(kept, due=aside)

    def take_turn(self, last: DerivedRun) -> int | None:
        """The epoch up to which a step after ``last`` is taken now, while others rest; None where that has time."""
        held = self._held.get((last.projection, last.generation))
        rests = self._clock() < self._rests_until and not self._are_too_large
        if held is None or held.due is None or rests:
            return None
        self._rests_until = self._clock() + PAUSE_SECONDS
        return held.due.to

    def due(self, last: DerivedRun, to: int) -> LatestRows | None:
        """What a step after ``last`` to an epoch is taken of; None where that is not kept."""
        held = self._held.get((last.projection, last.generation))
        if held is None or held.step != last.hash or held.due is None or held.due.to != to:
            return None
        return held.due.latest

    def go_on(self, run: DerivedRun) -> None:
        """The step that was due is committed."""
        name = run.projection, run.generation
        held = self._held.get(name)
        if held is not None and held.due is not None and held.due.to == run.to_epoch:
            held.latest.forget_until(run.to_epoch)
            changes = held.changes - held.due.changes
            self._held[name] = SumsSince(run.hash, held.to, held.latest, changes)
        else:
            self.forget(*name)

    def forget(self, projection: str, generation: int) -> None:
        self._held.pop((projection, generation), None)

    def forget_all(self) -> None:
        self._held.clear()
