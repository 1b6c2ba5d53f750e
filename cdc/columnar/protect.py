"""Column policies on pgoutput messages: rows are rewritten with the protected form of their cells. Pure.

It does to frames that are stored undecoded what ``tailrace.cdc.policy.policies`` does to columns of decoded rows. The
decoder that reads them later must not apply the policies again (``Policies.as_applied``)."""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from dataclasses import replace

from tailrace.cdc.columnar.schema_change import matches
from tailrace.cdc.policy.policies import Policies, is_left_out
from tailrace.cdc.wire.buffer import HINT, FieldReader
from tailrace.cdc.wire.pgoutput import Message, Relation
from tailrace.eventstore.errors import ProtocolError
from tailrace.eventstore.model.schema import Column, TopicSchema

_UINT32 = struct.Struct(">I")


def is_protected(
    label: tuple[str, str], relation: Relation | None, schema: TopicSchema, policies: Policies
) -> bool:
    """Whether any column of a table has, or may have, a policy."""
    if relation is None or any(column.policy for column in schema.sent):
        return True
    if policies.history.protected_ids(relation.relid):
        return True
    labels = {label, (relation.schema, relation.table)}
    return any(
        policies.policy_of_name(each, relation.relid, sent.name)
        for each in labels
        for sent in relation.columns
    )


def protected_columns(relation: Relation, schema: TopicSchema, policies: Policies) -> list[Column] | None:
    """The columns of a relation, place by place, with their policies; ``schema`` is the topic's latest version.

    None when a protected column of the topic may have another name, so that nobody knows which it is.
    """
    label = (relation.schema, relation.table)
    if matches(relation, schema):
        return list(policies.schema(label, schema.whole, schema).sent)
    if not _names_tell(relation, schema):
        return None
    before = {column.name: column for column in schema.sent}
    found = []
    for sent in relation.columns:
        known = before.get(sent.name) or Column(0, sent.name, sent.type_oid)
        (column,) = policies.schema(label, _one_column(schema, relation, known), schema).sent
        found.append(Column(0, sent.name, sent.type_oid, sent.typmod, policy=column.policy))
    return found


def _one_column(schema: TopicSchema, relation: Relation, column: Column) -> TopicSchema:
    return replace(
        schema, relid=relation.relid, columns=(replace(column, key=False, fill=None),), left_out=()
    )


def _names_tell(relation: Relation, schema: TopicSchema) -> bool:
    """Whether a name means the column that had it: columns without a policy are gone, or others came behind all that
    were there, but not both, and none has another place among the others."""
    before = [column.name for column in schema.sent]
    now = [sent.name for sent in relation.columns]
    if now[: len(before)] == before:
        return True
    gone = [column for column in schema.sent if column.name not in now]
    stayed = [name for name in before if name in now]
    return now == stayed and not any(column.policy for column in gone)


def protect(message: bytes, columns: Sequence[Column], policies: Policies) -> bytes:
    """An Insert, Update or Delete with the protected form of its cells; any other message as it is.

    Raises ProtocolError on a row that cannot be parsed as one of these columns, or with a protected cell in
    binary, OperatorError without the key that values are hashed with.
    """
    if message[:1] not in (b"I", b"U", b"D"):
        return message
    reader = FieldReader(message, "pgoutput message")
    out = bytearray(reader.take(5))
    while reader.left:
        kind = reader.take(1)
        if kind not in (b"K", b"O", b"N"):
            raise reader.error(f"tuple kind {kind!r}")
        out += kind
        _tuple(reader, out, columns, policies)
    return bytes(out)


def _tuple(reader: FieldReader, out: bytearray, columns: Sequence[Column], policies: Policies) -> None:
    count = reader.uint16()
    if count != len(columns):
        raise reader.error(f"{count} cells in a row of {len(columns)} columns")
    out += count.to_bytes(2, "big")
    for column in columns:
        tag = reader.take(1)
        if tag in (b"n", b"u"):
            out += tag
            continue
        if tag not in (b"t", b"b"):
            raise reader.error(f"unknown cell tag {tag!r}")
        value = reader.take(reader.uint32())
        if is_left_out(column):
            out += b"n"
            continue
        if column.policy:
            if tag == b"b":
                raise ProtocolError(f"a protected cell of column {column.name} in binary", hint=HINT)
            value = policies.cell(column, value)
        out += tag + _UINT32.pack(len(value)) + value


def without_defaults(frame: bytes, message: Message) -> bytes:
    """A message of the DDL trigger without the defaults of columns, which are values."""
    try:
        data = json.loads(message.content)
        for column in data.get("columns", ()):
            column["fill"] = None
    except (ValueError, TypeError, AttributeError):
        raise ProtocolError("a message of the DDL trigger that cannot be read", hint=HINT) from None
    content = json.dumps(data).encode()
    head = len(frame) - len(message.content) - _UINT32.size
    return frame[:head] + _UINT32.pack(len(content)) + content
