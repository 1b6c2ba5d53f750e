"""Records of one partition: what was found in them, what happened according to each, and which cannot be read."""

from __future__ import annotations

import json
from functools import lru_cache

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tailrace.cdc.kafka.decoding.avro.values import Schemas, schema_of
from tailrace.cdc.kafka.decoding.fields import Field, fields_of
from tailrace.cdc.kafka.decoding.json_values import Found, Path, Paths
from tailrace.cdc.kafka.decoding.plans import declared_fields
from tailrace.cdc.kafka.decoding.shapes import DELETED, META, SHAPES
from tailrace.cdc.kafka.topics.declaration import Declaration, Form
from tailrace.cdc.kernels import json_text
from tailrace.cdc.wire.authentic import OWN_PREFIX
from tailrace.eventstore.errors import OperatorError
from tailrace.eventstore.model.schema import TopicSchema
from tailrace.eventstore.model.topic import TopicId

READ, CREATE, UPDATE, DELETE, TRUNCATE, MESSAGE = range(6)
NOTHING = -1
"""No operation: nothing is to be done, or the record is parked."""
NO_SCHEMA = -1
_OPS = pa.array([b"r", b"c", b"u", b"d", b"t", b"m"], pa.binary())
# What a schema in a record may say of its table: Postgres allows fewer columns, with shorter names.
_SCHEMA_BYTES_MAX, _COLUMNS_MAX, _NAME_BYTES_MAX, _SHOWN = 4 << 20, 1600, 255, 60
_ALLOWED = {Form.ENVELOPE: "rcudt", Form.FLATTENED: "rcudt", Form.MESSAGES: "m"}

Ops = NDArray[np.int64]
Places = NDArray[np.intp]
Mask = NDArray[np.bool_]


class Records:
    """``ops``: by record its operation. ``fields``: by record, which of ``field_sets`` its schema has. ``problems``: by
    record, why it cannot be read. ``ignored``: records that say nothing new.

    Raises OperatorError when columns cannot be told from what surrounds them."""

    def __init__(
        self,
        table: pa.Table,
        topic: TopicId,
        declaration: Declaration,
        latest: TopicSchema | None,
        schemas: Schemas | None,
    ) -> None:
        self._table, self.topic, self.declaration, self.latest = table, topic, declaration, latest
        self.schemas = schemas
        self.shape = SHAPES[declaration.form]
        self.offsets = table["offset"].to_numpy()
        self.keys = self.column("key")
        self.problems: dict[int, str] = {}
        self._find()
        self.ops = self._operations()
        self.ignored = int((self.ops == NOTHING).sum()) - len(self.problems)

    def column(self, name: str) -> pa.Array:
        column = self._table[name]
        return column.chunk(0) if column.num_chunks else pa.array([], column.type)

    def park(self, row: int, reason: str) -> None:
        """A record cannot be read. The first reason counts."""
        self.problems.setdefault(row, reason)

    def headers(self, name: str) -> dict[int, bytes]:
        """The values of a header, by record."""
        if "headers" not in self._table.column_names:
            return {}
        column = self.column("headers")
        items = column.flatten()
        at = pc.indices_nonzero(pc.equal(pc.struct_field(items, "name"), name.encode()))
        rows = pc.list_parent_indices(column).take(at).to_pylist()
        values = pc.struct_field(items, "value").take(at).to_pylist()
        return {row: value for row, value in zip(rows, values, strict=True) if value is not None}

    def integers(self, path: Path, at: Places) -> pa.Array:
        """Whole numbers; null for everything else."""
        texts = self.found.texts(path, at).cast(pa.string())
        try:
            return texts.cast(pa.int64())
        except pa.ArrowInvalid:
            fits = pc.match_substring_regex(texts, "^-?[0-9]{1,18}$")
            return pc.if_else(fits, texts, pa.scalar(None, pa.string())).cast(pa.int64())

    def _find(self) -> None:
        """Find the values. Names of columns that are not known yet are in the records' schemas: then once more."""
        names: dict[str, None] = {}
        if self.declaration.table is not None:
            names |= dict.fromkeys(declared_fields(self.topic, self.declaration))
            names |= dict.fromkeys(column.name for column in self.declaration.table.left_out)
        elif self.latest is not None:
            names |= dict.fromkeys(column.name for column in self.latest.sent if column.policy)
            names |= dict.fromkeys(column.name for column in self.latest.columns)
        values = self.column("value")
        self.found = Found(values, self._paths(names), self.schemas)
        self.fields, self.field_sets = self._read_schemas()
        more = dict.fromkeys(name for fields in self.field_sets for name in fields)
        if not more.keys() <= names.keys():
            self.found = Found(values, self._paths(names | more), self.schemas)

    def _paths(self, names: dict[str, None]) -> Paths:
        taken = [name for name in names if name in ("schema", "payload") or name.startswith(META)]
        if taken and self.declaration.form is Form.FLATTENED:
            raise OperatorError(
                f"{self.topic}: columns named {', '.join(taken)} cannot be told from what surrounds a flattened row",
                hint="let the connector send the whole envelope: without ExtractNewRecordState",
            )
        return self.shape.paths(names)

    def _read_schemas(self) -> tuple[Ops, list[dict[str, Field]]]:
        """By record, which of the sets of fields its schema has (NO_SCHEMA: none); and those sets."""
        same = np.where(self.found.good, self.found.same_schema(), NO_SCHEMA)
        numbers = np.full(len(same), NO_SCHEMA, np.int64)
        sets: list[dict[str, Field]] = []
        for first in np.unique(same[same >= 0]).tolist():
            text = self.found.texts(Paths.SCHEMA, np.array([first]))[0].as_py()
            fields = told_fields(text, self.shape.after)
            rows = same == first
            if fields is None:
                for row in np.flatnonzero(rows).tolist():
                    self.park(row, "its schema is not one of Kafka Connect with this table's columns")
                continue
            if fields not in sets:
                sets.append(fields)
            numbers[rows] = sets.index(fields)
        return numbers, sets

    def _operations(self) -> Ops:
        found, shape = self.found, self.shape
        for row in np.flatnonzero(~found.good & ~found.absent).tolist():
            self.park(row, f"its value: {found.problem(row)}")
        gone = found.absent | (found.good & (found.kinds(Paths.PAYLOAD) == json_text.NULL))
        said = pc.fill_null(pc.index_in(found.texts(shape.op), _OPS), NOTHING)
        ops: Ops = said.to_numpy(zero_copy_only=False).astype(np.int64)
        form, allowed = self.declaration.form, _ALLOWED[self.declaration.form]
        ops[(ops == MESSAGE) != (form is Form.MESSAGES)] = NOTHING
        if form is Form.FLATTENED:
            ops[(found.kinds(shape.op) <= json_text.NULL) & found.good] = UPDATE
            deleted = pc.fill_null(pc.equal(found.texts(DELETED), b"true"), False)
            ops[deleted.to_numpy(zero_copy_only=False)] = DELETE
            ops[gone] = DELETE
        else:
            ops[gone] = NOTHING
        self._check_table()
        for row in np.flatnonzero((ops == NOTHING) & found.good & ~gone).tolist():
            self.park(row, f"its operation is none of {', '.join(allowed)}")
        ops[self._repeated(gone, ops) if form is Form.FLATTENED else self._not_ours()] = NOTHING
        for row, name in found.strays():
            if row in self.problems or (form is Form.FLATTENED and name.startswith(META)):
                continue
            if self.declaration.table is None and self.fields[row] == NO_SCHEMA:
                declared_fields(self.topic, self.declaration)  # says that nothing is declared
            known = name if len(name) <= _NAME_BYTES_MAX else f"{name[:_SHOWN]}…"
            self.park(row, f"nothing says what its column {known!r} is: declare it, or leave it out there")
        ops[list(self.problems)] = NOTHING
        return ops

    def _repeated(self, gone: Mask, ops: Ops) -> Places:
        """Records without a value right behind the delete of the same key: they say it again."""
        rows = np.flatnonzero(gone[1:] & ~gone[:-1] & (ops[:-1] == DELETE)) + 1
        same = [row for row in rows.tolist() if self.keys[row].equals(self.keys[row - 1])]
        return np.array(same, np.intp)

    def _not_ours(self) -> Places:
        """Messages that are not in the log of native capture either: outside of a transaction they have no place in it,
        and Tailrace's own are none of the user's."""
        if self.declaration.form is not Form.MESSAGES:
            return np.zeros(0, np.intp)
        own = pc.starts_with(self.found.texts((*self.shape.after, "prefix")), OWN_PREFIX)
        outside = self.found.kinds(self.shape.xid[0]) <= json_text.NULL
        rows: Places = np.flatnonzero(outside | pc.fill_null(own, False).to_numpy(zero_copy_only=False))
        return rows

    def _check_table(self) -> None:
        """Records of other tables, which a transform may send to this topic, are not rows of this one."""
        for path, name in zip(self.shape.table, self.topic.parts[1:], strict=False):
            said = self.found.texts(path)
            for other in pc.unique(said).drop_null().to_pylist():
                if in_topic_name(other.decode()) != in_topic_name(name):
                    for row in pc.indices_nonzero(pc.fill_null(pc.equal(said, other), False)).to_pylist():
                        self.park(row, "it belongs to another table")


def key_paths(names: tuple[str, ...]) -> Paths:
    """Of the columns in a record's key."""
    return Paths(dict.fromkeys(names), frozenset({()}), wrapped=not {"schema", "payload"} & {*names})


def key_fields(
    key: bytes | None, schemas: Schemas | None = None
) -> tuple[list[str], dict[str, Field]] | None:
    """The names of the columns in a record's key, and their fields if it has a schema; None when it is no object."""
    try:
        if (schema := schema_of(key, schemas)) is not None:
            fields = fields_of(json.loads(schema.connect))
            return list(fields), fields
        document = json.loads(key or b"")
        fields = {}
        if isinstance(document, dict) and document.keys() == {"schema", "payload"}:
            fields = fields_of(document["schema"])
            document = document["payload"]
        return (list(document), fields) if isinstance(document, dict) else None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


@lru_cache(maxsize=64)
def told_fields(schema: bytes, row: Path) -> dict[str, Field] | None:
    """The columns in the schema of a record's value, in which the path leads to the row; None when there are none."""
    if len(schema) > _SCHEMA_BYTES_MAX:
        return None
    try:
        document = json.loads(schema)
        for name in row:
            document = next(each for each in document["fields"] if each["field"] == name)
        found = fields_of(document)
        if len(found) > _COLUMNS_MAX or not all(0 < len(name.encode()) <= _NAME_BYTES_MAX for name in found):
            return None
        return {name: field for name, field in found.items() if row or not name.startswith(META)}
    except (ValueError, KeyError, TypeError, AttributeError, StopIteration, RecursionError):
        return None


def in_topic_name(name: str) -> str:
    """As the connector writes a schema or table in the name of its topic."""
    return "".join(sign if sign.isascii() and (sign.isalnum() or sign in "._-") else "_" for sign in name)
