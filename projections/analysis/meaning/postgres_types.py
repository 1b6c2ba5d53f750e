"""What a column's values may be used for so that Postgres means the same: one table of its types.

A type is *typed*: Spark's type compares and orders as Postgres does, and nothing has to be said of it here. Any other
is a *text type*: its values are the text that Postgres prints. For these the table says whether two values are equal
just when their texts are, whether they have the order of their texts, how a constant has to be written that they are
compared with, and as which types of Spark they may be read. A type that is not in the table may be kept, counted,
tested for NULL and cast to string, and nothing else. Pure.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Literal

import pyarrow as pa

from tailrace.eventstore.model.schema import NUMERIC, Column

Order = Literal["as text", "warned", "not as text"]
NONDETERMINISTIC = "(nondeterministic)"
"""At the end of a column's collation: texts that differ may be equal under it."""


@dataclass(frozen=True, slots=True)
class TextType:
    """``words`` say what the column is.

    ``equal``: equal values have equal texts, and the other way round. ``literal``: the form of texts that Postgres
    prints, where others mean the same; "" is any. ``reads``: names of Spark's types, without a precision, as which the
    text may be read. ``functions``: whether functions of texts see what those of Postgres see. ``cast``: the type that
    a definition would give it. ``of_elements``: this is about the order of lists, and nothing is said of their
    elements. ``padded``: it is ``char(n)`` without its blanks. ``varying``: it is ``varchar``, which Postgres compares
    with ``char(n)`` as if it was that. Of casts to text in Postgres, ``cast_text`` says what is made where that is not
    the text that it prints; ``kept_by_cast``: they change nothing of this. ``hint``: what to write where no cast
    helps."""

    words: str
    equal: bool = False
    order: Order = "not as text"
    literal: str = ""
    reads: frozenset[str] = frozenset()
    functions: bool = True
    cast: str = "string"
    of_elements: bool = False
    padded: bool = False
    varying: bool = False
    cast_text: str = ""
    kept_by_cast: bool = False
    hint: str = ""

    @property
    def is_text(self) -> bool:
        """Whether it is text in Postgres, too."""
        return self.padded or self.varying or self.order == "warned"

    def may_be_read_as(self, name: str) -> bool:
        """As a type of Spark, by its name without a precision."""
        return self.is_text or self.of_elements or name in self.reads

    def allows(self) -> tuple[bool, bool, str]:
        """For the order of types by how much they allow."""
        return self.equal, self.order == "as text", self.words

    def is_written_so(self, literal: str) -> bool:
        """Whether a constant is in the form in which Postgres prints values of the type."""
        return not self.literal or re.fullmatch(self.literal, literal) is not None


_INTEGERS = frozenset({"byte", "short", "integer", "long", "decimal"})
_UINT = r"0|[1-9][0-9]*"
_HEX = r"0|[1-9A-F][0-9A-F]*"
_MAC = r"[0-9a-f]{2}(:[0-9a-f]{2})"
_OCTET = r"(25[0-5]|2[0-4][0-9]|1?[0-9]{1,2})"
_NOTHING = r"(?!)"
_BARE = TextType("numeric without a precision", reads=frozenset({"decimal"}), cast="decimal(20,4)")
_UNKNOWN = TextType("of a type without a counterpart in Spark", functions=False)
_NO_ORDER = TextType(
    "an array, which Postgres orders otherwise than Spark", equal=True, of_elements=True,
    hint="order by its elements, or by its size",
)  # fmt: skip
_PADDED = TextType(
    "character(n)", equal=True, order="as text", literal=r"(?s:.*[^ ])?", padded=True,
    hint="give it its blanks where they count: rpad(…, n, ' ')",
)  # fmt: skip
_VARYING = TextType(
    "varchar", equal=True, order="as text", varying=True, hint="if there may be such, rtrim(…) it",
)  # fmt: skip

_RANGE = TextType("a range", equal=True, literal=_NOTHING)
_TYPES: dict[int, TextType] = {
    26: TextType("oid", equal=True, literal=_UINT, reads=_INTEGERS, cast="bigint"),
    28: TextType("xid", equal=True, literal=_UINT, reads=_INTEGERS, cast="bigint"),
    29: TextType("cid", equal=True, literal=_UINT, reads=_INTEGERS, cast="bigint"),
    114: TextType("json"),
    142: TextType("xml"),
    650: TextType("cidr", equal=True, literal=rf"{_OCTET}(\.{_OCTET}){{3}}/[0-9]{{1,2}}"),
    774: TextType("macaddr8", equal=True, order="as text", literal=rf"{_MAC}{{7}}"),
    790: TextType("money", equal=True, literal=r"-?\$[0-9]{1,3}(,[0-9]{3})*\.[0-9]{2}"),
    829: TextType("macaddr", equal=True, order="as text", literal=rf"{_MAC}{{5}}"),
    869: TextType(
        "inet", equal=True, literal=rf"{_OCTET}(\.{_OCTET}){{3}}(/([0-9]|[12][0-9]|3[01]))?",
        cast_text="which in Postgres always has the length of its mask",
    ),
    1042: _PADDED,
    1186: TextType("interval"),
    1266: TextType("timetz", equal=True, literal=r"[0-2][0-9]:[0-5][0-9]:[0-5][0-9][+-][0-9]{2}"),
    1560: TextType("bit", equal=True, order="as text"),
    1562: TextType("bit varying", equal=True, order="as text"),
    NUMERIC: _BARE,
    2950: TextType("uuid", equal=True, order="as text", literal=r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"),
    3220: TextType("pg_lsn", equal=True, literal=rf"({_HEX})/({_HEX})"),
    3802: TextType("jsonb"),
    3904: _RANGE, 3926: _RANGE, 3912: _RANGE, 3908: _RANGE, 3910: _RANGE,
    3906: TextType("numrange"),
    4451: _RANGE, 4536: _RANGE, 4535: _RANGE, 4533: _RANGE, 4534: _RANGE,
    4532: TextType("nummultirange"),
    5069: TextType("xid8", equal=True, literal=_UINT, reads=_INTEGERS, cast="bigint"),
}  # fmt: skip
"""By the oid of the type. Of ranges those whose bounds have one text each; their constants are written in many ways."""
_ENUM = TextType("an enum, ordered by its labels", equal=True)
_KINDS = {"e": _ENUM, "c": TextType("composite"), "r": TextType("a range"), "m": TextType("a multirange")}
"""By pg_type.typtype, of types that are not the server's own."""
_FIRST_OWN_OID = 16_384


def described_types() -> list[tuple[str, TextType]]:
    """What columns may be, in words, for the manual: each once, those that allow most first."""
    every = {kind.words: kind for kind in (*_TYPES.values(), *_KINDS.values(), _ENUM, _NO_ORDER)}
    return sorted(
        every.items(), key=lambda each: (not each[1].equal, each[1].order == "not as text", each[0])
    )


def text_type(column: Column, shown: pa.DataType, *, byte_order: bool = False) -> TextType | None:
    """What has to be watched of a column that a projection sees as ``shown``; None for one that is typed.
    ``byte_order``: the definition says that texts are meant to be ordered by their bytes."""
    if column.policy or (pa.types.is_string(shown) and column.arrow != shown):
        return None  # a policy's text; the text of a typed column, which on_unreadable="text" asks for
    if pa.types.is_list(shown):
        return _NO_ORDER
    if not pa.types.is_string(shown):
        return None
    known = _collated(column, byte_order=byte_order)
    oid = column.meant_oid
    if oid in _TYPES:
        if oid == 1042 and known:
            return replace(known, literal=_PADDED.literal, padded=True, hint=_PADDED.hint)
        return _TYPES[oid]
    if oid == 1043:
        return replace(known, varying=True, hint=_VARYING.hint) if known else _VARYING
    if known or oid in _PLAIN_TEXTS:
        return known
    if oid >= _FIRST_OWN_OID and column.type_kind in _KINDS:
        return _KINDS[column.type_kind]
    return replace(_UNKNOWN, words=column.type_name) if column.type_name else _UNKNOWN


_PLAIN_TEXTS = frozenset({18, 19, 25})


def _collated(column: Column, *, byte_order: bool) -> TextType | None:
    """Text that is not ordered by its bytes."""
    if column.meant_oid not in (25, 1042, 1043) or column.collation in ("", "C"):
        return None
    if column.collation.endswith(NONDETERMINISTIC):
        return TextType(f"text under the collation {column.collation}", functions=False, kept_by_cast=True)
    if byte_order:
        return None
    return TextType(
        f"text under the collation {column.collation}", equal=True, order="warned", kept_by_cast=True
    )
