"""Records of a table's Kafka topic to rows of the log.

    record                                      becomes
    op r, c                                     the row; with the header of an old key the create half of a key change
    op u                                        the row; under REPLICA IDENTITY FULL with its old one
    op d                                        a delete: of the key, under REPLICA IDENTITY FULL with the old row
    op t                                        a truncate
    op m                                        a message, in the topic of messages alone
    no value                                    nothing: it follows a delete. In the flattened form it is the delete
    anything else                               parked, with the reason

The key is that of the record's key. An old row that is not whole has NULLs for what is not known, so only its key is
taken. A value that the server did not send is marked, as native capture does (``_unchanged``). Records whose schema
differs from the one before begin a new version of the topic's schema. A flattened row without ``__op`` is an update.

Pure: the same records give the same rows. They are put together by the code of native capture, from the texts that
Postgres has for their values; so they are the same rows.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tailrace.cdc.columnar.relations import TableRoute
from tailrace.cdc.columnar.rows import table_rows
from tailrace.cdc.columnar.scan import ScanResult
from tailrace.cdc.kafka.decoded import ORIGINS, Decoded, Parked, Place
from tailrace.cdc.kafka.decoding.avro.values import Schemas
from tailrace.cdc.kafka.decoding.fields import Field, field_of
from tailrace.cdc.kafka.decoding.images import Images, read_images
from tailrace.cdc.kafka.decoding.plans import Plan, make_plan
from tailrace.cdc.kafka.decoding.records import (
    CREATE,
    DELETE,
    NO_SCHEMA,
    NOTHING,
    READ,
    TRUNCATE,
    UPDATE,
    Ops,
    Places,
    Records,
    key_fields,
)
from tailrace.cdc.kafka.topics.declaration import Declaration
from tailrace.cdc.kernels import rows as kernels
from tailrace.cdc.kernels.rows import Cells, Ints, Ints32, Rows
from tailrace.cdc.wire.replication import UNIX_EPOCH_MICROS
from tailrace.eventstore.model.epoch import TopicRows
from tailrace.eventstore.model.schema import TopicSchema
from tailrace.eventstore.model.topic import TopicId

_FIRST_MICROS, _LAST_MICROS = -62_135_596_800_000_000, 253_402_300_799_999_999
"""Of the years 1 to 9999, which Python's calendar has."""
_MILLIS_MAX = 1 << 53
_SEQUENCE = r'^\["(?P<commit>[0-9]{1,18})"'


def decode(
    records: pa.Table,
    topic: TopicId,
    declaration: Declaration,
    latest: TopicSchema | None,
    place: Place,
    schemas: Schemas | None = None,
) -> Decoded:
    """``records``: of one partition, as ``tailrace.eventstore.kafka.records`` has them, in offset order. ``latest``:
    the newest version of the topic's schema. ``schemas``: those of all records in Avro; None: there is no registry.

    Raises OperatorError when it is not known what the values of a column mean: that is no matter of one record."""
    return _Decoding(Records(records.combine_chunks(), topic, declaration, latest, schemas), place).run()


class _Decoding:
    def __init__(self, records: Records, place: Place) -> None:
        self._records = records
        self._topic, self._declaration, self._latest = records.topic, records.declaration, records.latest
        self._lsn, self._ordinal = place.lsn, place.first_ordinal
        self._schemas: list[TopicSchema] = []
        self._origins = [ORIGINS.empty_table()]

    def run(self) -> Decoded:
        batches = [self._rows(plan, at) for plan, at in self._runs()]
        offsets = self._records.offsets
        return Decoded(
            rows=tuple(batch for batch in batches if batch is not None),
            schemas=tuple(self._schemas),
            origins=pa.concat_tables(self._origins),
            parked=tuple(
                Parked(int(offsets[row]), reason) for row, reason in sorted(self._records.problems.items())
            ),
            ignored=self._records.ignored,
        )

    def _runs(self) -> list[tuple[Plan, Places]]:
        """Records with something to do, by plan, as they follow each other."""
        at = np.flatnonzero(self._records.ops != NOTHING)
        if not len(at):
            return []
        names, fields = self._key(at)
        if self._declaration.table is not None:
            table = self._declaration.table
            names = [] if table.bag else [column.name for column in table.key]
        numbers = self._records.fields[at]
        bare = self._records.found.absent[at]  # as a flattened delete is: it goes with its neighbours
        if bare.all():
            return [(self._plan(self._known_fields(fields), names), at)]
        if bare.any():
            known = np.maximum.accumulate(np.where(bare, -1, np.arange(len(at))))
            numbers = numbers[np.where(known < 0, np.flatnonzero(~bare)[0], known)]
        cuts = np.flatnonzero(np.diff(numbers)) + 1
        sets = self._records.field_sets
        return [
            (self._plan(None if number == NO_SCHEMA else sets[number], names), at[part])
            for part in np.split(np.arange(len(at)), cuts)
            for number in numbers[part[:1]].tolist()
        ]

    def _key(self, at: Places) -> tuple[list[str], dict[str, Field]]:
        """The names of the key's columns in the first record's key, and their fields if it has a schema."""
        for row in at.tolist():
            found = key_fields(self._records.keys[row].as_py(), self._records.schemas)
            if found is not None:
                return found
        known = self._latest
        return [] if known is None or known.bag else [column.name for column in known.key], {}

    def _known_fields(self, key: dict[str, Field]) -> dict[str, Field] | None:
        """Fields of records of which none has a value: those of the topic so far."""
        if self._declaration.table is not None or self._latest is None:
            return None
        found = {column.name: field_of(column, self._declaration.modes) for column in self._latest.columns}
        return {name: field for name, field in found.items() if field is not None} | key

    def _plan(self, fields: dict[str, Field] | None, key: list[str]) -> Plan:
        plan = make_plan(self._topic, fields, key, self._declaration, self._latest)
        if plan.schema is not self._latest:
            self._schemas.append(plan.schema)
            self._latest = plan.schema
        return plan

    def _rows(self, plan: Plan, at: Places) -> TopicRows | None:
        """The rows of one run of records."""
        op = self._records.ops[at]
        images = read_images(
            self._records, plan, at, op, full_identity=self._declaration.full_identity or plan.schema.bag
        )
        micros = self._times(at)
        good = ~np.isin(at, list(self._records.problems))
        if not good.any():
            return None
        data, cells = images.block.finish()
        number, op, known, first, old = _split(data, cells, plan.schema, op[good], images, good)
        rows, records = len(op), at[good]
        found = Rows(
            route=np.zeros(rows, np.int32),
            op=op.astype(np.uint8),
            known=known,
            stamp=(number << kernels.STAMP_SHIFT) + self._ordinal + np.arange(rows),
            first=first,
            old=old,
        )
        self._ordinal += rows
        xids = self._first_of(self._records.shape.xid, records)
        self._origins.append(self._origin(records[number], xids.take(pa.array(number))))
        scan = ScanResult(data, found, cells, self._transactions(records, xids, micros[good]))
        unsent = bool((cells.size == kernels.UNSENT).any())
        return table_rows(
            scan,
            np.arange(rows),
            TableRoute(self._topic, plan.schema),
            self._declaration.policies,
            unsent=unsent,
        )

    def _times(self, at: Places) -> Ints:
        """By record: when its transaction committed, in microseconds since 1970; 0 where nothing says it. A time that
        no calendar has would be written as another one."""
        shape = self._records.shape
        told = (
            pa.nulls(len(at), pa.int64())
            if shape.micros is None
            else self._records.integers(shape.micros, at)
        )
        if told.null_count:
            millis = self._records.column("timestamp").take(pa.array(at)).cast(pa.int64())
            if shape.millis is not None:
                millis = pc.coalesce(self._records.integers(shape.millis, at), millis)
            told = pc.coalesce(told, pa.array(np.clip(_filled(millis), -_MILLIS_MAX, _MILLIS_MAX) * 1000))
        micros = _filled(told)
        for row in at[(micros < _FIRST_MICROS) | (micros > _LAST_MICROS)].tolist():
            self._records.park(row, "its time is out of range")
        return micros

    def _transactions(self, at: Places, xids: pa.Array, micros: Ints) -> Ints:
        """By record: LSN in the log, transaction id (0 of a row that was read), commit time since 2000."""
        numbers = np.where(self._records.ops[at] == READ, 0, _filled(xids))
        lsns = np.full(len(at), self._lsn, np.int64)
        return np.column_stack([lsns, numbers, micros - UNIX_EPOCH_MICROS])

    def _origin(self, at: Places, xids: pa.Array) -> pa.Table:
        shape, found = self._records.shape, self._records.found
        sequences, snapshots = (
            pc.coalesce(*(found.texts(path, at).cast(pa.string()) for path in paths))
            for paths in (shape.sequence, shape.snapshot)
        )
        none = pa.nulls(len(at), pa.string())
        columns = {
            "offset": pa.array(self._records.offsets[at]),
            "xid": xids,
            "lsn": self._first_of(shape.lsn, at),
            "commit_lsn": pc.struct_field(pc.extract_regex(sequences, _SEQUENCE), "commit").cast(pa.int64()),
            "snapshot": snapshots,
            "transaction": found.texts(shape.transaction, at).cast(pa.string())
            if shape.transaction
            else none,
        }
        return pa.table(columns, schema=ORIGINS)

    def _first_of(self, paths: tuple[tuple[str, ...], ...], at: Places) -> pa.Array:
        return pc.coalesce(*(self._records.integers(path, at) for path in paths))


def _filled(numbers: pa.Array) -> Ints:
    filled: Ints = pc.fill_null(numbers, 0).to_numpy(zero_copy_only=False)
    return filled


def _split(
    data: NDArray[np.uint8],
    cells: Cells,
    schema: TopicSchema,
    op: Ops,
    images: Images,
    good: NDArray[np.bool_],
) -> tuple[Ints, Ops, NDArray[np.uint8], Ints32, Ints32]:
    """The good records as rows: number of the record, operation, what is known of the old row, first cells. Where rows
    have no key, an update that changes its row is a delete and a create."""
    known, first, old = images.known[good], images.first[good], images.old[good]
    number = np.arange(len(op))
    if schema.bag:
        moved = [
            kind == UPDATE and not _same(data, cells, one, other, schema)
            for kind, one, other in zip(op.tolist(), first.tolist(), old.tolist(), strict=True)
        ]
        number = np.repeat(number, np.where(moved, 2, 1))
        op, known, first, old = op[number], known[number], first[number], old[number]
        doubled = np.diff(number) == 0
        before, behind = np.append(doubled, False), np.insert(doubled, 0, False)
        op[before] = DELETE
        op[behind], known[behind] = CREATE, kernels.BEFORE_MOVED
    whole = (op == DELETE) & (known == kernels.BEFORE_FULL)
    first = np.where(op == TRUNCATE, -1, np.where(whole, old, first)).astype(np.int32)
    return number, op, known, first, old


def _same(data: NDArray[np.uint8], cells: Cells, one: int, other: int, schema: TopicSchema) -> bool:
    """Whether two images are equal."""
    for place in schema.places:
        size = cells.size[one + place]
        if size != cells.size[other + place]:
            return False
        here, there = cells.at[one + place], cells.at[other + place]
        if size > 0 and data[here : here + size].tobytes() != data[there : there + size].tobytes():
            return False
    return True
