"""The oracle of the scanner is Python's ``json``."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tailrace.cdc.kafka.decoding.json_values import PROBLEMS, Found, Names, Path, Paths
from tailrace.cdc.kernels import json_text as kernels

ROW: Names = {"id": None, 'ä "q"': None, "n": None}
NAMES: Names = {"op": None, "before": ROW, "after": ROW, "source": {"lsn": None, "sequence": None}}
PATHS = Paths(NAMES, frozenset({("after",)}))
WRAPPED = Paths(NAMES, wrapped=True)
KINDS: dict[int, type] = {
    kernels.NULL: type(None),
    kernels.OBJECT: dict,
    kernels.ARRAY: list,
    kernels.STRING: str,
    kernels.ESCAPED: str,
}
ABSENT = object()


class NotOurs(Exception):
    """JSON that is refused though Python takes it."""


def find(*records: bytes | None, paths: Paths = PATHS) -> Found:
    return Found(pa.array(records, pa.large_binary()), paths)


def expected(text: bytes, paths: Paths = PATHS) -> dict[Path, Any]:
    """What is at every path. Raises ValueError or NotOurs when the record is to be refused."""

    def pairs(found: list[tuple[str, Any]]) -> dict[str, Any]:
        if len(dict(found)) < len(found):
            raise NotOurs
        return dict(found)

    def refuse(constant: str) -> None:
        raise ValueError(constant)

    document = json.loads(text.decode(), object_pairs_hook=pairs, parse_constant=refuse)
    if not isinstance(document, dict):
        raise NotOurs
    for part in strings(document):
        if "\0" in part or any("\ud800" <= sign <= "\udfff" for sign in part):
            raise NotOurs
    return {path: at(document, path) for path in paths.slots}


def strings(value: Any) -> list[str]:
    match value:
        case str():
            return [value]
        case list():
            return [part for each in value for part in strings(each)]
        case dict():
            return [part for name, each in value.items() for part in (name, *strings(each))]
    return []


def at(document: Any, path: Path) -> Any:
    for name in path:
        if not isinstance(document, dict) or name not in document:
            return ABSENT
        document = document[name]
    return document


def check(records: list[bytes], paths: Paths = PATHS) -> None:
    found = find(*records, paths=paths)
    texts = {path: found.texts(path).to_pylist() for path in paths.slots}
    for row, record in enumerate(records):
        try:
            values = expected(record, paths)
        except (ValueError, NotOurs, RecursionError):
            assert not found.good[row], record
            assert found.problem(row)
            continue
        assert found.good[row], (record, found.problem(row))
        for path, value in values.items():
            kind, text = int(found.kinds(path)[row]), texts[path][row]
            if value is ABSENT:
                assert (kind, text) == (kernels.MISSING, None)
            elif isinstance(value, str):
                assert kind in (kernels.STRING, kernels.ESCAPED)
                assert text == value.encode()
            elif value is None:
                assert (kind, text) == (kernels.NULL, None)
            else:
                assert kind not in (kernels.MISSING, kernels.NULL, kernels.STRING, kernels.ESCAPED)
                assert json.loads(text) == value
                assert isinstance(value, KINDS.get(kind, int | float))


names = st.one_of(
    st.sampled_from(
        ["op", "before", "after", "source", "lsn", "id", 'ä "q"', "n", "sequence", "x", "", "o", "opp"]
    ),
    st.text(max_size=4),
)
leaves = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=12),
)
values = st.recursive(
    leaves,
    lambda inside: st.one_of(st.lists(inside, max_size=2), st.dictionaries(names, inside, max_size=4)),
    max_leaves=6,
)
documents = st.dictionaries(names, values, max_size=6)


@st.composite
def texts_of(draw: st.DrawFn) -> bytes:
    document = draw(documents)
    return json.dumps(
        document,
        ensure_ascii=draw(st.booleans()),
        indent=draw(st.sampled_from([None, 1])),
        separators=draw(st.sampled_from([None, (",", ":")])),
    ).encode(errors="surrogatepass")


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    data = bytearray(draw(texts_of()))
    for _ in range(draw(st.integers(0, 3))):
        at = draw(st.integers(0, len(data)))
        new = draw(st.sampled_from([b"", b'"', b"\\", b"{", b"}", b"[", b"]", b",", b":", b"\0", b"\xff", b"0", b"-",
                                    b"\\ud800", b"\\u0041", b"e", b".", b"null", b" "]))  # fmt: skip
        data[at : at + draw(st.integers(0, 2))] = new
    return bytes(data)


@given(st.lists(texts_of(), max_size=3))
@example(
    [b'{"after":{"\\u00e4 \\"q\\"":1,"\\u0069d":2}}', b'{"after":{"\xc3\xa4 \\u0022q\\"":"\\ud83d\\ude00"}}']
)
def test_every_wanted_value_is_found_as_json_finds_it(records: list[bytes]) -> None:
    check(records)


@given(st.lists(damaged(), max_size=3))
def test_a_damaged_record_is_marked_and_the_others_do_not_notice(records: list[bytes]) -> None:
    check(records)


@given(st.lists(st.binary(max_size=30), max_size=6))
def test_any_bytes_get_a_verdict(records: list[bytes]) -> None:
    check(records)


@given(
    st.lists(
        st.tuples(documents, st.sampled_from(["wrapped", "reversed", "bare"]), st.integers(0, 2)), max_size=3
    )
)
def test_the_wrapper_with_a_schema_is_looked_through(found: list[tuple[dict[str, Any], str, int]]) -> None:
    records, payloads, schemas = [], [], []
    for document, shape, number in found:
        payload = {name: value for name, value in document.items() if name not in ("schema", "payload")}
        schema = {"type": "struct", "fields": [number] * 200}
        parts = {"schema": schema, "payload": payload}
        if shape == "reversed":
            parts = dict(reversed(parts.items()))
        records.append(json.dumps(payload if shape == "bare" else parts).encode(errors="surrogatepass"))
        payloads.append(json.dumps(payload).encode(errors="surrogatepass"))
        schemas.append(None if shape == "bare" else number)
    wrapped, plain = find(*records, paths=WRAPPED), find(*payloads)
    assert wrapped.good.tolist() == plain.good.tolist()
    for path in PATHS.slots:
        assert wrapped.texts(path).to_pylist() == plain.texts(path).to_pylist()
    for row, same in enumerate(wrapped.same_schema().tolist()):
        if wrapped.good[row]:
            assert (same >= 0) == (schemas[row] is not None)
            assert same < 0 or (same <= row and schemas[same] == schemas[row])


@pytest.mark.parametrize(
    ("record", "problem"),
    [
        (b'{"op":1', kernels.CUT),
        (b"", kernels.CUT),
        (b'{"op":01}', kernels.SYNTAX),
        (b'{"op":"\n"}', kernels.CONTROL),
        (b'{"op":"\\x"}', kernels.ESCAPE),
        (b'{"op":"\\ud800"}', kernels.SURROGATE),
        (b'{"op":"\\ud800\\ud800"}', kernels.SURROGATE),
        (b'{"op":"\\udc00"}', kernels.SURROGATE),
        (b'{"op":"\\u0000"}', kernels.NUL),
        (b'{"op":' + b"[" * 100_000, kernels.DEEP),
        (b'{"op":1,"op":1}', kernels.TWICE),
        (b'{"before":null,"before":{"id":1}}', kernels.TWICE),
        (b'{"op":1}}', kernels.TRAILING),
        (b'["op"]', kernels.NO_OBJECT),
        (None, kernels.ABSENT),
    ],
)
def test_a_bad_record_says_what_is_wrong(record: bytes | None, problem: int) -> None:
    found = find(b'{"op":"c"}', record, b'{"op":"u"}')
    assert found.good.tolist() == [True, False, True]
    assert found.problem(1).startswith(PROBLEMS[problem])
    assert found.texts(("op",)).to_pylist() == [b"c", None, b"u"]


def test_a_record_that_is_not_utf8_is_marked() -> None:
    found = find(b'{"op":"c"}', b'{"op":"c","x":"\xff"}')
    assert found.good.tolist() == [True, False]
    assert found.problem(1) == "not UTF-8"


def test_names_that_are_not_wanted_are_noted_in_closed_objects() -> None:
    found = find(b'{"after":{"id":1},"more":1}', b'{"after":{"id":1,"caf\xc3\xa9":1,"x":2},"before":{"y":1}}')
    assert list(found.strays()) == [(1, "café")]


def test_the_slice_of_a_column_is_read() -> None:
    column = pa.array([b'{"op":"a"}', None, b'{"op":"b"}', b'{"op":"c"}'], pa.large_binary())
    assert Found(column[1:3], PATHS).texts(("op",)).to_pylist() == [None, b"b"]


def test_objects_of_many_members_in_changing_order_are_found() -> None:
    paths = Paths({f"c{number}": None for number in range(500)})
    members = {f"c{number}": number for number in range(500)}
    records = [json.dumps(members), json.dumps(dict(reversed(members.items())))]
    found = find(*(record.encode() for record in records), paths=paths)
    for number in range(500):
        assert found.texts((f"c{number}",)).to_pylist() == [str(number).encode()] * 2
