"""Column policies, as functions: what they make of values and of schemas."""

from __future__ import annotations

import hmac

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.cdc.policy.policies import Policies
from tailrace.eventstore.errors import OperatorError, UsageError
from tailrace.eventstore.model.schema import Column, TopicSchema
from tailrace.eventstore.settings import PostgresSourceSettings

KEY = "a key of at least sixteen bytes"
TABLE = ("public", "customers")
CUSTOMERS = TopicSchema(
    version=1,
    relid=500,
    columns=(
        Column(1, "id", 23, type_name="integer", key=True),
        Column(2, "email", 25, type_name="text", fill="nobody@example.com"),
        Column(4, "born", 1082, type_name="date"),
        Column(5, "phone", 25, type_name="text"),
    ),
)
KINDS = st.sampled_from([pa.string(), pa.large_string(), pa.binary(), pa.large_binary()])


def policies(key: str | None = KEY, **columns: str) -> Policies:
    names = {f"public.customers.{name}": policy for name, policy in columns.items()}
    return Policies.of(PostgresSourceSettings.model_validate({"dsn": "", "columns": names, "hash_key": key}))


def cells(values: list[str | None], kind: pa.DataType) -> pa.Array:
    binary = pa.types.is_binary(kind) or pa.types.is_large_binary(kind)
    return pa.array([value.encode() if binary and value is not None else value for value in values], kind)


@given(st.lists(st.none() | st.text()), KINDS, st.text(min_size=16, max_size=100))
def test_a_hash_is_hmac_sha256_of_the_text_in_hex_and_null_stays_null(
    values: list[str | None], kind: pa.DataType, key: str
) -> None:
    rules = policies(key, email="hash")
    column = rules.schema(TABLE, CUSTOMERS).columns[1]
    (found,) = rules.texts([column], [cells(values, kind)])
    assert found.to_pylist() == [
        None if value is None else hmac.digest(key.encode(), value.encode(), "sha256").hex()
        for value in values
    ]


@given(st.lists(st.none() | st.text()), KINDS, st.integers(1, 5))
def test_a_value_is_cut_to_its_first_characters(
    values: list[str | None], kind: pa.DataType, length: int
) -> None:
    rules = policies(email=f"truncate:{length}")
    column = rules.schema(TABLE, CUSTOMERS).columns[1]
    (found,) = rules.texts([column], [cells(values, kind)])
    assert found.cast(pa.string()).to_pylist() == [value and value[:length] for value in values]


def test_text_that_is_not_utf8_is_cut_too() -> None:
    rules = policies(email="truncate:2")
    column = rules.schema(TABLE, CUSTOMERS).columns[1]
    (found,) = rules.texts([column], [pa.array([b"a\xffbc", None, b""])])
    assert found.to_pylist() == ["a\ufffd", None, ""]


def test_protected_columns_are_text_their_fill_is_protected_and_left_out_ones_keep_their_identity() -> None:
    schema = policies(email="hash", born="truncate:4", phone="drop").schema(TABLE, CUSTOMERS)
    assert [column.name for column in schema.columns] == ["id", "email", "born"]
    assert [str(column.arrow) for column in schema.columns] == ["int32", "string", "string"]
    assert schema.columns[1].fill == hmac.digest(KEY.encode(), b"nobody@example.com", "sha256").hex()
    assert [(column.id, column.name) for column in schema.left_out] == [(5, "phone")]
    assert [column.id for column in schema.sent] == [1, 2, 4, 5] and schema.places == (0, 1, 2)
    assert TopicSchema.from_json(schema.to_json()) == schema
    assert schema.columns[2].field.metadata[b"tailrace:policy"] == b"truncate:4"


def test_a_name_counts_before_a_pattern() -> None:
    rules = policies(**{"*": "truncate:1", "id": "plain", "phone": "drop"})
    schema = rules.schema(TABLE, CUSTOMERS)
    assert {column.name: column.policy for column in schema.sent} == {
        "id": "", "email": "truncate:1", "born": "truncate:1", "phone": "drop",
    }  # fmt: skip


def test_silence_lifts_no_policy_and_a_renamed_column_keeps_its_own() -> None:
    before = policies(email="hash", phone="drop").schema(TABLE, CUSTOMERS)
    renamed = TopicSchema(
        version=2,
        relid=500,
        columns=(CUSTOMERS.columns[0], Column(2, "mail", 25), Column(5, "mobile", 25)),
    )
    after = policies().schema(TABLE, renamed, before)
    assert [column.name for column in after.columns] == ["id", "mail"]
    assert after.columns[1].policy == before.columns[1].policy
    assert [column.name for column in after.left_out] == ["mobile"]
    assert policies().retained_columns(TABLE, after) == ["mail", "mobile"]
    replaced = policies().schema(TABLE, TopicSchema(2, CUSTOMERS.columns, relid=501), before)
    assert [column.name for column in replaced.left_out] == ["phone"]
    lifted = policies(mail="plain", mobile="plain").schema(TABLE, renamed, after)
    assert [column.policy for column in lifted.columns] == ["", "", ""]
    assert policies(mail="plain").changed_columns(TABLE, after)[0].endswith("in plain text from here on")


def test_another_key_is_another_policy_and_hashes_nothing_under_the_former_one() -> None:
    before = policies(email="hash").schema(TABLE, CUSTOMERS)
    other = policies("another key of sixteen bytes", email="hash")
    assert len(other.changed_columns(TABLE, before)) == 1
    for wrong in (other, policies(None)):
        with pytest.raises(OperatorError, match="was hashed with the key"):
            wrong.texts(before.columns[1:2], [pa.array(["x"])])


@pytest.mark.parametrize("policy", ["drop", "truncate:3"])
def test_a_key_column_is_neither_left_out_nor_cut(policy: str) -> None:
    with pytest.raises(OperatorError, match=r"public\.customers\.id is part of the key") as error:
        policies(id=policy).schema(TABLE, CUSTOMERS)
    assert "hash" in error.value.hint
    assert policies(id="hash").schema(TABLE, CUSTOMERS).columns[0].arrow == pa.string()


def test_a_rule_that_protects_nothing_is_known() -> None:
    rules = policies(emial="hash", born="truncate:4")
    columns = [(*TABLE, column.name) for column in CUSTOMERS.columns]
    assert rules.unmatched_rules(columns) == [("public.customers.emial", "public.customers.email")]


@pytest.mark.parametrize("name", ["email", "customers.email", "public.customers.email.x", "public..email"])
def test_a_name_that_is_no_columns_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match="is not a column pattern"):
        Policies.of(PostgresSourceSettings.model_validate({"dsn": "", "columns": {name: "drop"}}))


def test_quoted_names_may_hold_anything() -> None:
    name = '"My.Schema"."a ""b"".c".*'
    rules = Policies.of(PostgresSourceSettings.model_validate({"dsn": "", "columns": {name: "drop"}}))
    schema = rules.schema(("My.Schema", 'a "b".c'), TopicSchema(1, (Column(1, "id", 23), Column(2, "x", 25))))
    assert schema.columns == ()
