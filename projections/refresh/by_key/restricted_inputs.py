"""A projection's inputs at one position, read on the driver for some keys alone."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tailrace.eventstore.model.position import Cut
from tailrace.eventstore.state.input import StateInput
from tailrace.eventstore.state.key_lookup import Matches, TooLarge, find_keys, state_of_keys
from tailrace.eventstore.state.row_layout import Ints
from tailrace.projections.compute.char_padding import has_log_hashes, is_padded, unpad, unpad_cells
from tailrace.projections.compute.engine import Engine
from tailrace.projections.compute.frames import read_changes, shown_columns
from tailrace.projections.compute.read_plan import ChangesInput, Planned, plan_input, plan_reads
from tailrace.projections.context import ProjectionContext
from tailrace.projections.definition.computed import Computed
from tailrace.projections.definition.lineage import Direct, Lineage, Link, read_columns
from tailrace.projections.definition.model import KeyColumn, Projection, State
from tailrace.projections.generations.difference import HASH
from tailrace.projections.generations.key_set import KeySet, Mask
from tailrace.projections.generations.result_input import ResultInput
from tailrace.projections.refresh.by_key.computed_keys import computed_keys, rows_with_computed_keys

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_HISTORY_FACTOR = 4
"""A state is made of its history: that may take so many times the bytes that the state's rows may take."""


class Inputs:
    """The inputs at ``cut``. Rows of one that take more memory than the settings allow (``incremental_bytes``) raise
    TooLarge."""

    def __init__(
        self, ctx: ProjectionContext, engine: Engine, projection: Projection, lineage: Lineage, cut: Cut
    ) -> None:
        self._ctx, self._engine, self._projection, self._lineage = ctx, engine, projection, lineage
        self._store, self._limit_bytes = ctx.store, ctx.settings.projections.incremental_bytes
        self.cut = cut
        self.null_links: set[str] = set()  # inputs with a NULL in the columns that lead to another input
        self._plans: dict[str, Planned] = {}

    def plan_of(self, name: str) -> Planned:
        """How an input is read, with the columns of its lineage."""
        if name not in self._plans:
            more = self._lineage.columns_of(name)
            self._plans[name] = plan_input(self._store, self._projection.inputs[name], self.cut, more)
        return self._plans[name]

    def visible_columns(self, name: str) -> list[str]:
        """The columns of an input that the function sees."""
        return shown_columns(self.plan_of(name), self._projection.inputs[name])

    def rows_by_source_key(
        self, name: str, hashes: Ints, cells: Mapping[str, pa.ChunkedArray] | None = None
    ) -> pa.Table:
        """The rows of a state or a result with these key hashes, in the columns of its lineage. ``cells`` are the
        columns of the keys, where they are known."""
        planned, names = self.plan_of(name), self._lineage.columns_of(name)
        if isinstance(planned, ResultInput):
            return self._result_rows_by_hash(planned, hashes).select(list(names or planned.key))
        names = names or tuple(
            column.name for column in planned.target.key
        )  # of the key of one total: any will do
        if cells is not None and has_log_hashes(planned.target.key):
            known = KeySet.of([cells[column.name] for column in planned.target.key])
            return self._state(name, known.hashes, names, known.matches)
        return self._state(name, hashes, names)

    def rows_with_keys(
        self, name: str, parts: Sequence[KeyColumn], wanted: KeySet, also: Sequence[str]
    ) -> pa.Table:
        """The rows of an input that have one of the ``wanted`` keys in these columns, or remainders of a table's: the
        columns and ``also``."""
        columns = read_columns(parts)
        names = list(dict.fromkeys((*also, *columns)))
        planned = self.plan_of(name)
        if isinstance(planned, ChangesInput):
            return self._changes_with_keys(name, planned, columns, wanted)
        if isinstance(planned, ResultInput):
            if planned.key == tuple(columns):
                return self._result_rows_by_hash(planned, wanted.hashes).select(names)
            buckets = [bucket for bucket, _ in planned.placed]
            return self._result_rows(
                planned, buckets, lambda rows: pa.array(wanted.matches([rows[each] for each in columns]))
            ).select(names)
        if not len(wanted):
            return planned.schema.empty_table()
        key = planned.target.key
        if tuple(column.name for column in key) == tuple(parts) and has_log_hashes(key):
            return self._state(name, wanted.hashes, names, wanted.matches)

        def matches(cells: Sequence[pa.Array | pa.ChunkedArray]) -> Mask:
            return wanted.matches(_with_remainders(parts, dict(zip(columns, cells, strict=True))))

        hashes = find_keys(self._store.storage, planned, columns, _as_projected(planned, columns, matches))
        rows = self._state(name, hashes, names)
        return rows.filter(pa.array(matches(self._values(name, rows, columns))))

    def keys_of(self, name: str, rows: pa.Table) -> KeySet:
        """The projection's keys that rows of an input take part in, through other inputs as they are here."""
        match self._lineage.paths[name]:
            case Direct(columns=columns) as path if self._are_numbers(name, columns):
                cells = dict(zip(path.needed, self._values(name, rows, path.needed), strict=True))
                return KeySet.of(_with_remainders(columns, cells))
            case Direct(columns=columns) as path if path.computed:
                return computed_keys(self._engine.session, self._projection, name, rows, columns)
            case Direct() as path:
                return KeySet.of(self._values(name, rows, path.needed))
            case Link(input=other, own=own, theirs=theirs):
                links = KeySet.of(self._values(name, rows, own))
                if links.nulls:
                    self.null_links.add(name)
                if not len(links):
                    return self.no_keys
                return self.keys_of(
                    other, self.rows_with_keys(other, theirs, links, self._lineage.columns_of(other))
                )

    @cached_property
    def no_keys(self) -> KeySet:
        """An empty set in the types of the key."""
        direct = next(name for name, path in self._lineage.paths.items() if isinstance(path, Direct))
        return self.keys_of(direct, self.plan_of(direct).schema.empty_table())

    def rows_of_keys(self, affected: KeySet) -> dict[str, pa.Table | DataFrame]:
        """The rows of each input with a lineage that take part in the keys, in the columns that the function sees. Rows
        of computed keys are not held here: they are found by Spark's tasks as they read the input.

        Raises TooLarge when all rows that are held take more than the limit.
        """
        tables: dict[str, pa.Table] = {}
        found: dict[str, DataFrame] = {}
        for name, path in self._lineage.paths.items():
            also = (*self.visible_columns(name), *self._lineage.columns_of(name))
            match path:
                case Direct(columns=columns) if self._are_numbers(name, columns):
                    tables[name] = self.rows_with_keys(name, columns, affected, also)
                case Direct(columns=columns) as direct if direct.computed:
                    found[name] = rows_with_computed_keys(name, self._frame(name), columns, affected)
                case Direct() as direct:
                    tables[name] = self.rows_with_keys(name, direct.needed, affected, also)
                case Link(input=other, own=own, theirs=theirs):
                    links = KeySet.of(
                        self._links(found[other], theirs)
                        if other in found
                        else self._values(other, tables[other], theirs)
                    )
                    tables[name] = self.rows_with_keys(name, own, links, also)
        held = sum(rows.nbytes for rows in tables.values())
        if held > self._limit_bytes:
            raise TooLarge(f"their rows take {held >> 20:,} MiB")
        return {
            **{name: rows.select(self.visible_columns(name)) for name, rows in tables.items()},
            **{
                name: rows.select(*(f"`{each}`" for each in self.visible_columns(name))).alias(name)
                for name, rows in found.items()
            },
        }

    def _are_numbers(self, name: str, columns: Sequence[KeyColumn]) -> bool:
        """Whether remainders of a table's integers are parts of the key, and nothing else is computed."""
        planned, source = self.plan_of(name), self._projection.inputs[name]
        computed = [each for each in columns if isinstance(each, Computed)]
        if not computed or not isinstance(planned, StateInput) or not isinstance(source, State):
            return False
        found = [planned.target.column(each.remainder[0]) for each in computed if each.remainder is not None]
        return len(found) == len(computed) and all(
            column is not None
            and pa.types.is_integer(column.arrow)
            and column.name not in source.cast
            and planned.on_unreadable.get(column.name) != "text"
            for column in found
        )

    def _frame(self, name: str) -> DataFrame:
        """All rows of an input, with the columns of its lineage."""
        ctx, source = self._ctx, self._projection.inputs[name]
        plan_reads(
            ctx.store, self._projection, self.cut, ctx.parallelism, (name,)
        )  # seals what is too much inline
        more = self._lineage.columns_of(name)
        planned = plan_input(ctx.store, source, self.cut, more)
        columns = tuple(dict.fromkeys((*shown_columns(planned, source), *more)))
        return self._engine.partial_frame(self._projection, name, planned, self.cut, columns)

    def _links(self, rows: DataFrame, columns: Sequence[str]) -> list[pa.ChunkedArray]:
        """The values that rows of other inputs are found by."""
        values: pa.Table = rows.select(*(f"`{each}`" for each in columns)).distinct().toArrow()
        if values.nbytes > self._limit_bytes:
            raise TooLarge(f"what leads to their rows takes {values.nbytes >> 20:,} MiB")
        return list(values.columns)

    def _state(self, name: str, hashes: Ints, names: Sequence[str], keys: Matches | None = None) -> pa.Table:
        planned = self.plan_of(name)
        assert isinstance(planned, StateInput)
        columns = tuple(column for column in planned.columns if column in names)
        narrow = replace(planned, columns=columns)
        limit = _HISTORY_FACTOR * self._limit_bytes

        def look_up() -> pa.Table:
            rows = state_of_keys(self._store.storage, narrow, hashes, limit, keys)
            return unpad(rows, narrow.selected_columns)

        policies = tuple(sorted(narrow.on_unreadable.items()))
        chosen = hashlib.sha256(np.sort(hashes).tobytes()).digest()
        question = planned.topic.text, self.cut.epoch, columns, policies, chosen, keys is None
        return self._ctx.round_rows.get(question, look_up)

    def _result_rows_by_hash(self, planned: ResultInput, hashes: Ints) -> pa.Table:
        wanted = pa.array(hashes)
        return self._result_rows(
            planned, planned.buckets_of(hashes), lambda rows: pc.is_in(rows[HASH], value_set=wanted)
        )

    def _result_rows(
        self, planned: ResultInput, buckets: Sequence[int], chosen: Callable[[pa.Table], pa.Array]
    ) -> pa.Table:
        """Some rows of another projection's result. It is read bucket by bucket, so that only chosen rows are held."""
        pieces = [planned.schema.empty_table()]
        held = 0
        for bucket in buckets:
            rows = planned.read(self._store.storage, bucket)
            pieces.append(rows.filter(chosen(rows)).drop_columns([HASH]).cast(planned.schema))
            held += pieces[-1].nbytes
            if held > self._limit_bytes:
                raise TooLarge(f"rows of {planned.projection} take more than {self._limit_bytes >> 20:,} MiB")
        return pa.concat_tables(pieces)

    def _changes_with_keys(
        self, name: str, planned: ChangesInput, columns: Sequence[str], wanted: KeySet
    ) -> pa.Table:
        pieces = [planned.schema.empty_table()]
        held = 0
        for ref in planned.refs:  # one by one, so that only wanted rows are held
            one = replace(planned, refs=(ref,))
            for partition in sorted({piece.partition for piece in ref.ranges}):
                rows = read_changes(self._store.storage, one, partition)
                pieces.append(rows.filter(pa.array(wanted.matches(self._values(name, rows, columns)))))
                held += pieces[-1].nbytes
                if held > self._limit_bytes:
                    raise TooLarge(f"the changes of the keys take more than {self._limit_bytes >> 20:,} MiB")
        return pa.concat_tables(pieces)

    def _values(self, name: str, rows: pa.Table, columns: Sequence[str]) -> list[pa.ChunkedArray]:
        """Columns of an input's rows; for changes the columns of their key, which every change has."""
        planned = self.plan_of(name)
        if isinstance(planned, ChangesInput) and not planned.as_events:
            return [pc.struct_field(rows["key"], column) for column in columns]
        return [rows[column] for column in columns]


def _with_remainders(
    columns: Sequence[KeyColumn], cells: Mapping[str, pa.ChunkedArray | pa.Array]
) -> list[pa.ChunkedArray | pa.Array]:
    """The parts of the keys of rows with these cells."""
    return [
        _remainder(cells[each.remainder[0]], each.remainder[1])
        if isinstance(each, Computed) and each.remainder is not None
        else cells[str(each)]
        for each in columns
    ]


def _remainder(column: pa.ChunkedArray | pa.Array, divisor: int) -> pa.ChunkedArray | pa.Array:
    """Of the sign of the dividend, as in Postgres and Spark."""
    values = column.cast(pa.int64())
    return pc.subtract(values, pc.multiply(pc.divide(values, divisor), divisor))


def _as_projected(planned: StateInput, names: Sequence[str], chosen: Matches) -> Matches:
    """What chooses among rows as projections see them, for cells of the log."""
    padded = [column is not None and is_padded(column) for column in map(planned.target.column, names)]
    if not any(padded):
        return chosen

    def matches(cells: Sequence[pa.Array]) -> Mask:
        plain = [
            unpad_cells(pa.chunked_array([each])) if pad else each
            for each, pad in zip(cells, padded, strict=True)
        ]
        return chosen(plain)

    return matches
