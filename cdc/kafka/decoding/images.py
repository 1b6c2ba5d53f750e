"""Images of rows in records: texts by column, old rows and keys; and what they are put together to."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tailrace.cdc.kafka.decoding.block import Block
from tailrace.cdc.kafka.decoding.json_values import Found, Path
from tailrace.cdc.kafka.decoding.plans import Plan
from tailrace.cdc.kafka.decoding.records import (
    CREATE,
    DELETE,
    TRUNCATE,
    UPDATE,
    Mask,
    Ops,
    Places,
    Records,
    key_paths,
)
from tailrace.cdc.kafka.decoding.values.cells import Cells, Reader, Texts
from tailrace.cdc.kafka.decoding.values.numbers import or_plain
from tailrace.cdc.kernels import json_text
from tailrace.cdc.kernels import rows as kernels
from tailrace.cdc.kernels.rows import Bytes, Ints32
from tailrace.eventstore.model.schema import NUMERIC

OLD_KEY = "__debezium.oldkey"
_AMBIGUOUS = (
    "its column {name!r} is null, which the connector also sends for a long value that an UPDATE leaves alone: give the"
    " table REPLICA IDENTITY FULL, and declare that; for bytea, binary.handling.mode=bytes or hex says it, too"
)
_NULL = pa.scalar(None, pa.binary())
_MISSING = np.uint8(json_text.MISSING)


@dataclass(slots=True)
class Images:
    """By record: what is known of its old row, the first cells of its row and of its old one; in a block of cells."""

    known: Bytes
    first: Ints32
    old: Ints32
    block: Block


@dataclass(frozen=True, slots=True)
class _Image:
    """Texts by column of a plan, and which of them were not sent."""

    texts: list[pa.Array]
    unsent: list[Mask | None]


def read_images(records: Records, plan: Plan, at: Places, op: Ops, *, full_identity: bool) -> Images:
    """Of the records ``at``, whose operations are ``op``: that of a row that was moved here becomes a create. Records
    that cannot be read are parked; what is found of them means nothing."""
    return _Reading(records, plan, at, op).run(full_identity)


class _Reading:
    def __init__(self, records: Records, plan: Plan, at: Places, op: Ops) -> None:
        self._records, self._plan, self._at, self._op = records, plan, at, op
        self._with_row: Mask = (op != DELETE) & (op != TRUNCATE)
        self._headers = records.headers(OLD_KEY)
        self._moved: Mask = np.isin(at, list(self._headers)) & ((op == CREATE) | (op == UPDATE))
        self._may_lack: Mask = (op == UPDATE) | self._moved

    def run(self, full_identity: bool) -> Images:
        schema, at, op = self._plan.schema, self._at, self._op
        places = schema.places
        after = self._image(self._records.shape.after, at, self._with_row)
        if not schema.bag:
            self._take_key(after)
        known = np.where(op == DELETE, kernels.BEFORE_KEY, kernels.BEFORE_NONE).astype(np.uint8)
        old: Ints32 = np.full(len(at), -1, np.int32)
        block = Block(len(schema.sent))
        where = self._with_old_row() if full_identity else np.zeros(0, np.intp)
        if len(where):
            path = self._records.shape.before
            assert path is not None
            image = self._image(path, at[where], np.ones(len(where), np.bool_))
            old[where] = block.add(len(where), places, image.texts, image.unsent)
            known[where] = kernels.BEFORE_FULL
        first = block.add(len(at), places, after.texts, after.unsent)
        moved, keys = self._old_keys()
        if len(moved):
            key_places = [place for place, column in zip(places, schema.columns, strict=True) if column.key]
            old[moved] = block.add(len(moved), key_places, keys, [None] * len(keys))
            known[moved], op[moved] = kernels.BEFORE_MOVED, CREATE
        only_key = (op == DELETE) & (known == kernels.BEFORE_KEY)
        old[only_key] = first[only_key]
        return Images(known, first, old, block)

    def _image(self, root: Path, at: Places, expected: Mask) -> _Image:
        """The texts of a row's columns; of the records ``expected`` to have one, all of them must be there."""
        image = _Image([], [])
        plan, found = self._plan, self._records.found
        for column, reader, unsent, ambiguous in zip(
            plan.schema.columns, plan.readers, plan.unsent, plan.ambiguous, strict=True
        ):
            path = (*root, column.name)
            texts, kinds = found.texts(path, at), found.kinds(path)[at]
            if not expected.all():
                texts = pc.if_else(pa.array(expected), texts, _NULL)
                kinds = np.where(expected, kinds, _MISSING)
            for row in at[(kinds == _MISSING) & expected].tolist():
                self._records.park(
                    row,
                    f"it has no column {column.name!r}: if the table has none any more, declare it without",
                )
            if ambiguous:  # never of an old row: under REPLICA IDENTITY FULL nothing is
                for row in at[(kinds == json_text.NULL) & self._may_lack].tolist():
                    self._records.park(row, _AMBIGUOUS.format(name=column.name))
            left_out = None
            if unsent is not None:
                mask = pc.is_in(texts, unsent)
                if pc.any(mask, min_count=0).as_py():
                    left_out = mask.to_numpy(zero_copy_only=False)
                    texts = pc.if_else(mask, _NULL, texts)
                    kinds = np.where(left_out, _MISSING, kinds)
            image.texts.append(self._read(reader(Cells(texts, kinds)), column.name, at))
            image.unsent.append(left_out)
        return image

    def _read(self, found: Texts, name: str, at: Places) -> pa.Array:
        for row in found.bad:
            self._records.park(int(at[row]), f"column {name!r} is not what its schema or declaration says")
        return found.texts

    def _key_readers(self) -> list[tuple[int, str, Reader]]:
        """Number, name and reader of the key's columns."""
        columns = enumerate(zip(self._plan.schema.columns, self._plan.readers, strict=True))
        return [(number, column.name, reader) for number, (column, reader) in columns if column.key]

    def _in_header(self, number: int, reader: Reader) -> Reader:
        return or_plain(reader) if self._plan.schema.columns[number].meant_oid == NUMERIC else reader

    def _key_texts(
        self, found: Found, at: Places, needed: Mask, what: str, readers: list[tuple[int, str, Reader]]
    ) -> list[pa.Array]:
        """The texts of the key's columns in what was found, one for each of the records ``at``."""
        for row in np.flatnonzero(needed & ~found.good).tolist():
            self._records.park(int(at[row]), f"{what}: {found.problem(row)}")
        for row, name in found.strays():
            if needed[row]:
                self._records.park(
                    int(at[row]), f"{what} has a column {name!r}, which the table's key has not"
                )
        texts = []
        for _, name, reader in readers:
            kinds = np.where(found.good & needed, found.kinds((name,)), _MISSING)
            for row in np.flatnonzero(found.good & needed & (kinds == _MISSING)).tolist():
                self._records.park(int(at[row]), f"{what} has no column {name!r}")
            read = reader(Cells(pc.if_else(pa.array(kinds != _MISSING), found.texts((name,)), _NULL), kinds))
            texts.append(self._read(read, name, at).cast(pa.binary()))
        return texts

    def _take_key(self, after: _Image) -> None:
        """Key cells from the records' keys. A row with another key than its record is parked."""
        readers = self._key_readers()
        data = self._records.keys.take(pa.array(self._at))
        found = Found(data, key_paths(tuple(name for _, name, _ in readers)), self._records.schemas)
        texts = self._key_texts(found, self._at, self._op != TRUNCATE, "its key", readers)
        for (number, name, _), key in zip(readers, texts, strict=True):
            other = pc.fill_null(pc.not_equal(key, after.texts[number].cast(pa.binary())), True)
            for row in np.flatnonzero(other.to_numpy(zero_copy_only=False) & self._with_row).tolist():
                self._records.park(int(self._at[row]), f"column {name!r} of its row is not what its key says")
            after.texts[number], after.unsent[number] = key, None

    def _with_old_row(self) -> Places:
        """Which of the records have a whole old row."""
        path = self._records.shape.before
        changes = (self._op == UPDATE) | (self._op == DELETE)
        has = np.zeros(len(self._at), np.bool_)
        if path is not None:
            has = changes & (self._records.found.kinds(path)[self._at] == json_text.OBJECT)
        if self._plan.schema.bag:
            for row in self._at[changes & ~has].tolist():
                self._records.park(row, "it has no old row, and its table no key")
        return np.flatnonzero(has)

    def _old_keys(self) -> tuple[Places, list[pa.Array]]:
        """Which of the records are the create half of a key change, and the texts of their old keys."""
        moved = np.flatnonzero(self._moved)
        if not len(moved) or self._plan.schema.bag:
            return np.zeros(0, np.intp), []
        data = pa.array([self._headers[row] for row in self._at[moved].tolist()], pa.large_binary())
        readers = [
            (number, name, self._in_header(number, reader)) for number, name, reader in self._key_readers()
        ]
        paths = key_paths(tuple(name for _, name, _ in readers))
        found = Found(data, paths, self._records.schemas)
        texts = self._key_texts(
            found, self._at[moved], np.ones(len(moved), np.bool_), f"its header {OLD_KEY}", readers
        )
        return moved, texts
