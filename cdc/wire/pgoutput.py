"""The reference decoder of pgoutput, protocol version 1: one message of bytes in, one frozen value out.

Source: PostgreSQL documentation, "Logical Replication Message Formats". This is the readable specification; rows on
the fast way into the log are decoded by ``tailrace.cdc.columnar``, which must agree with it message by message.

It does not know relations: a tuple is as many cells as the server sent. It does not decode streamed transactions
(protocol 2 and later), only their abort, which servers 18 send unasked under version 1.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from tailrace.cdc.wire.buffer import FieldReader


class Absent(Enum):
    """A cell without a value."""

    NULL = "n"
    UNCHANGED = "u"  # a TOASTed value that the change did not touch and that was not sent


NULL = Absent.NULL
UNCHANGED = Absent.UNCHANGED


@dataclass(frozen=True, slots=True)
class Binary:
    """A cell in its type's send format."""

    data: bytes


Cell = Absent | bytes | Binary  # bytes: the type's output text in UTF-8
Tuple = tuple[Cell, ...]


@dataclass(frozen=True, slots=True)
class Begin:
    """``commit_lsn`` is that of the commit record; ``commit_ts`` in µs since 2000-01-01 UTC."""

    commit_lsn: int
    commit_ts: int
    xid: int


@dataclass(frozen=True, slots=True)
class Commit:
    commit_lsn: int
    end_lsn: int
    commit_ts: int


@dataclass(frozen=True, slots=True)
class Origin:
    commit_lsn: int
    name: str


@dataclass(frozen=True, slots=True)
class RelationColumn:
    name: str
    type_oid: int
    typmod: int
    is_key: bool


@dataclass(frozen=True, slots=True)
class Relation:
    """``identity``: d default, n nothing, f full, i index. Under full every column is flagged as key."""

    relid: int
    schema: str
    table: str
    identity: str
    columns: tuple[RelationColumn, ...]


@dataclass(frozen=True, slots=True)
class Type:
    oid: int
    schema: str
    name: str


@dataclass(frozen=True, slots=True)
class Insert:
    relid: int
    new: Tuple


@dataclass(frozen=True, slots=True)
class Update:
    """``key`` holds NULL outside key columns, where it means unknown; ``old`` is the whole old row (identity full)."""

    relid: int
    new: Tuple
    key: Tuple | None = None
    old: Tuple | None = None


@dataclass(frozen=True, slots=True)
class Delete:
    relid: int
    key: Tuple | None = None
    old: Tuple | None = None


@dataclass(frozen=True, slots=True)
class Truncate:
    relids: tuple[int, ...]
    cascade: bool
    restart_identity: bool


@dataclass(frozen=True, slots=True)
class Message:
    """``content`` is what the application sent, never converted. ``lsn`` is the end of its record."""

    transactional: bool
    lsn: int
    prefix: str
    content: bytes


@dataclass(frozen=True, slots=True)
class StreamAbort:
    xid: int
    subxid: int


PgOutput = (
    Begin | Commit | Origin | Relation | Type | Insert | Update | Delete | Truncate | Message | StreamAbort
)


def decode(frame: bytes) -> PgOutput:
    """Decode one message. Raises ProtocolError on an empty, short, unknown or over-long one."""
    reader = FieldReader(frame, "pgoutput message")
    read = _READERS.get(reader.byte())
    if read is None:
        raise reader.error("unknown tag")
    message = read(reader)
    reader.finish()
    return message


def _begin(reader: FieldReader) -> Begin:
    return Begin(reader.uint64(), reader.int64(), reader.uint32())


def _commit(reader: FieldReader) -> Commit:
    if reader.byte() != 0:
        raise reader.error("unknown commit flags")
    return Commit(reader.uint64(), reader.uint64(), reader.int64())


def _origin(reader: FieldReader) -> Origin:
    return Origin(reader.uint64(), reader.string())


def _relation(reader: FieldReader) -> Relation:
    relid, schema, table = reader.uint32(), reader.string(), reader.string()
    if not table:
        raise reader.error("a relation without a name")
    identity = chr(reader.byte())
    if identity not in "dnfi":
        raise reader.error(f"unknown replica identity {identity!r}")
    columns = tuple(_relation_column(reader) for _ in range(reader.uint16()))
    return Relation(relid, schema or "pg_catalog", table, identity, columns)  # pg_catalog is sent as ''


def _relation_column(reader: FieldReader) -> RelationColumn:
    flags = reader.byte()
    if flags > 1:
        raise reader.error("unknown column flags")
    name = reader.string()
    if not name:
        raise reader.error("a column without a name")
    return RelationColumn(name, reader.uint32(), reader.int32(), flags == 1)


def _type(reader: FieldReader) -> Type:
    return Type(reader.uint32(), reader.string() or "pg_catalog", reader.string())


def _insert(reader: FieldReader) -> Insert:
    relid = reader.uint32()
    _expect(reader, "N")
    return Insert(relid, _tuple(reader))


def _update(reader: FieldReader) -> Update:
    relid = reader.uint32()
    kind = _expect(reader, "KON")
    if kind == "N":
        return Update(relid, _tuple(reader))
    before = _old_tuple(reader)
    _expect(reader, "N")
    new = _tuple(reader)
    if len(new) != len(before):
        raise reader.error("old and new row differ in length")
    return Update(relid, new, key=before) if kind == "K" else Update(relid, new, old=before)


def _delete(reader: FieldReader) -> Delete:
    relid = reader.uint32()
    if _expect(reader, "KO") == "K":
        return Delete(relid, key=_old_tuple(reader))
    return Delete(relid, old=_old_tuple(reader))


def _truncate(reader: FieldReader) -> Truncate:
    count, options = reader.uint32(), reader.byte()
    if options > 3:
        raise reader.error("unknown truncate options")
    if reader.left != 4 * count:
        raise reader.error(f"{count} relations do not fill the message")
    relids = tuple(reader.uint32() for _ in range(count))
    return Truncate(relids, cascade=bool(options & 1), restart_identity=bool(options & 2))


def _message(reader: FieldReader) -> Message:
    flags = reader.byte()
    if flags > 1:
        raise reader.error("unknown message flags")
    return Message(flags == 1, reader.uint64(), reader.string(), reader.take(reader.uint32()))


def _stream_abort(reader: FieldReader) -> StreamAbort:
    abort = StreamAbort(reader.uint32(), reader.uint32())
    if reader.left:  # abort LSN and time, sent with streaming = parallel
        reader.take(16)
    return abort


def _expect(reader: FieldReader, kinds: str) -> str:
    kind = chr(reader.byte())
    if kind not in kinds:
        raise reader.error(f"tuple kind {kind!r} where one of {kinds!r} belongs")
    return kind


def _old_tuple(reader: FieldReader) -> Tuple:
    """Old rows are sent flattened (heapam.c, ExtractReplicaIdentity): nothing in them is left out."""
    cells = _tuple(reader)
    if UNCHANGED in cells:
        raise reader.error("an unchanged cell in an old row")
    return cells


def _tuple(reader: FieldReader) -> Tuple:
    return tuple([_cell(reader) for _ in range(reader.uint16())])


def _cell(reader: FieldReader) -> Cell:
    match chr(reader.byte()):
        case "t":
            return reader.take(reader.uint32())
        case "n":
            return NULL
        case "u":
            return UNCHANGED
        case "b":
            return Binary(reader.take(reader.uint32()))
        case tag:
            raise reader.error(f"unknown cell tag {tag!r}")


_READERS: dict[int, Callable[[FieldReader], PgOutput]] = {
    ord("B"): _begin,
    ord("C"): _commit,
    ord("O"): _origin,
    ord("R"): _relation,
    ord("Y"): _type,
    ord("I"): _insert,
    ord("U"): _update,
    ord("D"): _delete,
    ord("T"): _truncate,
    ord("M"): _message,
    ord("A"): _stream_abort,
}
