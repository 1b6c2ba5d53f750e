"""Records of a topic of plain JSON to rows of the log.

    record               of rows                       of events
    a JSON object        the row of its key (u)        one more row (c)
    no value             the delete of its key (d)     cannot be read
    anything else        cannot be read                cannot be read

A member that is missing is NULL: producers leave nulls out. One that is no column cannot be read, unless it is to be
ignored: so a member that got another name is noticed, and not NULL from then on. A column of the key is never NULL.
Where a record's key and its value both have a column of the key, they must agree.

Pure: the same records give the same rows.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tailrace.cdc.kafka.decoded import Decoded, Parked, Place
from tailrace.cdc.kafka.decoding.json_values import Found, Paths
from tailrace.cdc.kafka.decoding.plain.declaration import KeyFormat, PlainDeclaration, schema_of
from tailrace.cdc.kafka.decoding.plain.keys import KeyCells, json_keys, text_keys
from tailrace.cdc.kafka.decoding.plain.values import fitted, reader_of
from tailrace.cdc.kafka.decoding.records import CREATE, DELETE, UPDATE, Ops
from tailrace.cdc.kafka.decoding.rows import origins_of, rows_of_texts
from tailrace.cdc.kafka.decoding.values.cells import Cells
from tailrace.eventstore.model.epoch import TopicRows
from tailrace.eventstore.model.schema import Column, TopicSchema
from tailrace.eventstore.model.topic import TopicId


def decode_plain(
    records: pa.Table, topic: TopicId, declared: PlainDeclaration, latest: TopicSchema | None, place: Place
) -> Decoded:
    """``records``: of one partition, as ``tailrace.eventstore.kafka.records`` has them, in offset order. ``latest``:
    the newest version of the topic's schema.

    Raises OperatorError when the topic has another key than it had, or a policy that a column cannot have."""
    schema = schema_of(topic, declared.table, latest, declared.policies)
    return _Decoding(records.combine_chunks(), topic, declared, schema, place).run(latest)


class _Decoding:
    def __init__(
        self, records: pa.Table, topic: TopicId, declared: PlainDeclaration, schema: TopicSchema, place: Place
    ) -> None:
        self._records, self._topic, self._declared = records, topic, declared
        self._schema, self._place = schema, place
        self._problems: dict[int, str] = {}

    def run(self, latest: TopicSchema | None) -> Decoded:
        names = dict.fromkeys(column.name for column in self._declared.table.columns)
        closed = frozenset({()} if self._declared.closed else ())
        found = Found(_column(self._records, "value"), Paths(names, closed))
        op = self._operations(found)
        texts = {column.name: self._read(column, found) for column in self._schema.columns}
        self._take_keys(texts, op)
        good = np.ones(len(op), bool)
        good[list(self._problems)] = False
        kept, rows = self._records.filter(pa.array(good)), list[TopicRows]()
        if good.any():
            wanted = [texts[column.name].filter(pa.array(good)) for column in self._schema.columns]
            rows = [
                rows_of_texts(
                    self._topic, self._schema, kept, op[good], wanted, self._place, self._declared.policies
                )
            ]
        offsets = self._records["offset"].to_pylist()
        return Decoded(
            rows=tuple(rows),
            schemas=(self._schema,) if rows and self._schema is not latest else (),
            origins=origins_of(kept),
            parked=tuple(Parked(offsets[row], reason) for row, reason in sorted(self._problems.items())),
            ignored=0,
        )

    def _operations(self, found: Found) -> Ops:
        events = self._declared.events
        op = np.full(len(found.good), CREATE if events else UPDATE, np.int64)
        op[found.absent] = DELETE
        for row in np.flatnonzero(~found.good & ~found.absent).tolist():
            self._park(row, f"its value: {found.problem(row)}")
        for row, name in found.strays():
            self._park(
                row, f"its member {name[:100]!r} is no column: declare it, or have unknown fields ignored"
            )
        if events:
            self._park_all(found.absent, "it has no value, and nothing takes away from events")
        elif self._declared.key_format is KeyFormat.VALUE:
            self._park_all(found.absent, "it has no value, in which its key is said to be")
        return op

    def _read(self, column: Column, found: Found) -> pa.Array:
        """Texts of a column; null in records that cannot be read."""
        path = (column.name,)
        kinds = np.where(found.good, found.kinds(path), 0).astype(np.uint8)
        return self._fitted(column, Cells(found.texts(path), kinds), f"its member {column.name!r}")

    def _fitted(self, column: Column, cells: Cells, what: str) -> pa.Array:
        column = replace(column, policy="")  # which is applied to what fits
        read = fitted(column, reader_of(column, self._declared.unit)(cells))
        for row in read.bad:
            self._park(row, f"{what} is no {column.type_name}, or not written as one")
        return read.texts.cast(pa.binary())

    def _take_keys(self, texts: dict[str, pa.Array], op: Ops) -> None:
        """Cells of the key from the records' keys, if they are there."""
        if self._schema.bag:
            return
        for column in self._schema.key:
            name = column.name
            if (given := self._given(column)) is not None:
                for row, reason in given.problems.items():
                    self._park(row, f"its key: {reason}")
                key = self._fitted(column, given.cells, f"column {name!r} of its key")
                other = pc.and_(texts[name].is_valid(), pc.fill_null(pc.not_equal(texts[name], key), True))
                self._park_all(_mask(other), f"its member {name!r} is not what its key says")
                texts[name] = key
            self._park_all(_mask(texts[name].is_null()), f"column {name!r} of its key is not there, or null")

    def _given(self, column: Column) -> KeyCells | None:
        keys = _column(self._records, "key")
        match self._declared.key_format:
            case KeyFormat.VALUE:
                return None
            case KeyFormat.TEXT:
                return text_keys(keys)
            case KeyFormat.JSON:
                return json_keys(keys, tuple(each.name for each in self._schema.key), column.name)

    def _park(self, row: int, reason: str) -> None:
        """The first reason counts."""
        self._problems.setdefault(row, reason)

    def _park_all(self, rows: NDArray[np.bool_], reason: str) -> None:
        for row in np.flatnonzero(rows).tolist():
            self._park(row, reason)


def _column(records: pa.Table, name: str) -> pa.Array:
    column = records[name]
    return column.chunk(0) if column.num_chunks else pa.array([], column.type)


def _mask(array: pa.Array) -> NDArray[np.bool_]:
    mask: NDArray[np.bool_] = array.to_numpy(zero_copy_only=False)
    return mask
