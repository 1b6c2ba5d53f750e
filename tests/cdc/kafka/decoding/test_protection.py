"""Column policies on records: what is written of a protected column, and which column is one."""

from __future__ import annotations

import hmac
import json
from typing import Any

import pytest

from tailrace.cdc.kafka.decoded import Decoded, Place
from tailrace.cdc.kafka.decoder import policies_of
from tailrace.cdc.kafka.decoding.decode import decode
from tailrace.cdc.kafka.decoding.protection import changed_version
from tailrace.cdc.kafka.decoding.types import declared_table
from tailrace.cdc.kafka.topics.declaration import Declaration, Form
from tailrace.cdc.policy.history import History
from tailrace.cdc.policy.policies import Policies
from tailrace.eventstore.errors import OperatorError
from tailrace.eventstore.model.keys import hash_texts
from tailrace.eventstore.model.schema import MESSAGE_SCHEMA, TopicSchema
from tailrace.eventstore.model.topic import TopicId
from tailrace.eventstore.settings import KafkaSourceSettings
from tests.cdc.kafka.decoding.recorded import rows_of, table_of, topic

KEY = "only the environment knows this key"
PEOPLE = {"id": "text", "email": "text", "born": "date", "phone": "integer", "seen": "integer"}
SOURCE = {"schema": "public", "table": "people", "txId": 7, "lsn": 9, "ts_us": 1, "snapshot": "false"}


def policies(columns: dict[str, str], *versions: TopicSchema) -> Policies:
    made = policies_of(
        KafkaSourceSettings.model_validate(
            {"kind": "kafka", "brokers": ["b:9"], "topics": ["*"], "columns": columns, "hash_key": KEY}
        )
    )
    return made.remembering(History.of([(topic("people"), version) for version in versions]))


def hashed(text: str) -> str:
    return hmac.digest(KEY.encode(), text.encode(), "sha256").hex()


def row(**cells: Any) -> dict[str, Any]:
    return {"id": "ann", "email": "a@b", "born": 6364, "phone": 5, "seen": 1, **cells}


def record(op: str, key: str = "ann", **parts: Any) -> dict[str, Any]:
    value = json.dumps({"op": op, "source": SOURCE, **parts}).encode()
    return {"key": json.dumps({"id": key}).encode(), "value": value}


def told(after: dict[str, str], op: str = "c", key: str = "1") -> dict[str, Any]:
    """A record that carries its schema; all columns are texts."""
    fields = [{"field": name, "type": "string", "optional": True} for name in after]
    envelope = {"type": "struct", "fields": [{"field": "after", "type": "struct", "fields": fields}]}
    payload = {"op": op, "source": SOURCE, "after": after}
    return {
        "key": json.dumps({"id": key}).encode(),
        "value": json.dumps({"schema": envelope, "payload": payload}).encode(),
    }


def read(
    *records: dict[str, Any],
    under: Policies,
    latest: TopicSchema | None = None,
    columns: dict[str, str] | None = PEOPLE,
    full_identity: bool = False,
) -> Decoded:
    table = declared_table(columns, ["id"], "public.people") if columns else None
    declaration = Declaration(table=table, full_identity=full_identity, policies=under)
    return decode(table_of(records), topic("people"), declaration, latest, Place(1))


ALL = {
    "public.people.id": "hash",
    "public.people.email": "hash",
    "*.*.born": "truncate:4",
    "public.people.phone": "drop",
}


def test_rows_old_rows_and_keys_have_the_form_of_their_policies() -> None:
    found = read(
        record("c", after=row()),
        record("u", before=row(), after=row(email=None)),
        record("d", before=row(), after=None),
        record("c", "bob", after=row(id="bob"))
        | {"headers": [{"name": b"__debezium.oldkey", "value": b'{"id":"ann"}'}]},
        under=policies(ALL),
        full_identity=True,
    )
    written = {"id": hashed("ann"), "email": hashed("a@b"), "born": "1987", "seen": 1}
    rows = rows_of(found)
    assert [each["after"] for each in rows] == [
        written,
        written | {"email": None},
        None,
        written | {"id": hashed("bob")},
    ]
    assert [each["before"] for each in rows] == [None, written, written, None]
    assert rows[3]["_moved_from"] == {"id": hashed("ann")}
    hashes = [number for batch in found.rows for number in batch.rows["_hash"].to_pylist()]
    assert hashes == [*[hash_texts([hashed("ann")])] * 3, hash_texts([hashed("bob")])]
    (schema,) = found.schemas
    assert {column.name: column.policy.partition(":")[0] for column in schema.sent if column.policy} == {
        "id": "hash",
        "email": "hash",
        "born": "truncate",
        "phone": "drop",
    }


def test_a_column_that_is_left_out_is_not_read() -> None:
    found = read(
        record("c", after=row(phone="no number")),
        under=policies({"public.people.phone": "drop"}),
        columns=PEOPLE | {"phone": "varbit"},  # of which nobody knows the bits
    )
    assert found.parked == () and "phone" not in rows_of(found)[0]["after"]


def test_a_value_that_was_not_sent_stays_one() -> None:
    found = read(
        record("u", after=row(email="__debezium_unavailable_value")),
        under=policies({"public.people.email": "hash"}),
    )
    (changed,) = rows_of(found)
    assert (changed["after"]["email"], changed["_unchanged"]) == (None, [2])


def test_a_column_that_comes_back_is_protected_as_before_whatever_the_settings_are_silent_of() -> None:
    both, one = {"id": "1", "email": "a"}, {"id": "1"}
    first = read(told(both), told(one), under=policies({"public.people.email": "drop"}), columns=None)
    silent = policies({}, *first.schemas)
    found = read(told(both), under=silent, latest=first.schemas[-1], columns=None)
    assert rows_of(found)[0]["after"] == {"id": "1"}
    assert found.schemas == ()
    plain = policies({"public.people.email": "plain"}, *first.schemas)
    version, changes = changed_version(topic("people"), first.schemas[-1], plain)
    assert changes == ["email: left out until now, in plain text from here on"]
    again = read(told(both), under=plain, latest=version, columns=None)
    assert rows_of(again)[0]["after"] == both


@pytest.mark.parametrize("policy", ["hash", "drop", "truncate:1"])
def test_a_new_column_that_may_be_the_protected_one_is_refused_until_it_is_said_what_it_is(
    policy: str,
) -> None:
    rule = {"public.people.email": policy}
    first = read(told({"id": "1", "email": "a"}), under=policies(rule), columns=None).schemas[-1]
    renamed = told({"id": "1", "mail": "a"})
    with pytest.raises(OperatorError, match="has a new column mail, and its column email") as caught:
        read(renamed, under=policies(rule, first), latest=first, columns=None)
    assert '"plain"' in caught.value.hint
    for said, after in (
        ("plain", {"id": "1", "mail": "a"}),
        ("hash", {"id": "1", "mail": hashed("a")}),
        ("drop", {"id": "1"}),
    ):
        under = policies(rule | {"public.people.mail": said}, first)
        assert rows_of(read(renamed, under=under, latest=first, columns=None))[0]["after"] == after
    added = read(
        told({"id": "1", "email": "a", "mail": "b"}), under=policies(rule, first), latest=first, columns=None
    )
    assert rows_of(added)[0]["after"]["mail"] == "b", "both are there: the new one is another"


def test_a_policy_that_names_no_column_of_the_table_is_refused() -> None:
    with pytest.raises(OperatorError, match=r"public\.people\.e_mail names no column") as caught:
        read(record("c", after=row()), under=policies({"public.people.e_mail": "drop"}))
    assert "did you mean public.people.email?" in caught.value.hint
    read(record("c", after=row()), under=policies({"public.people.e_mail*": "drop", "public.x.y": "drop"}))


@pytest.mark.parametrize("policy", ["drop", "truncate:2"])
def test_a_column_of_the_key_can_only_be_hashed(policy: str) -> None:
    with pytest.raises(OperatorError, match=r"public\.people\.id is part of the key"):
        read(record("c", after=row()), under=policies({"public.people.id": policy}))


def test_tables_have_the_names_that_are_in_names_of_topics() -> None:
    found = policies({'public."Odd näme".email': "drop", "*.Odd n*.phone": "hash"})
    schema = found.schema(("public", "Odd_n_me"), declared_table(PEOPLE, ["id"], "public.x"))
    assert {column.name for column in schema.sent if column.policy} == {"email", "phone"}


def test_tables_without_an_oid_have_nothing_in_common() -> None:
    people = read(record("c", after=row()), under=policies({"public.people.email": "hash"})).schemas[0]
    other = TopicId.table("shop", "public", "other")
    history = History.of([(topic("people"), people), (other, declared_table(PEOPLE, ["id"], "public.other"))])
    silent = policies({}).remembering(history)
    assert changed_version(topic("people"), people, silent) == (people, [])
    assert not any(column.policy for column in silent.schema(("public", "third"), people.whole).columns[2:])


def test_a_column_that_is_declared_between_others_does_not_take_their_numbers() -> None:
    first = read(record("c", after=row()), under=Policies()).schemas[-1]
    more = {"id": "text", "nick": "text", **PEOPLE}
    found = read(record("c", after=row(nick="n")), under=Policies(), latest=first, columns=more)
    ids = {column.name: column.id for column in found.schemas[-1].columns}
    assert ids == {column.name: column.id for column in first.columns} | {"nick": 6}


def test_messages_are_no_rows_of_a_table() -> None:
    table = declared_table(PEOPLE, ["id"], "public.people")
    for form, read_as in ((Form.MESSAGES, table), (Form.MESSAGES, None), (Form.ENVELOPE, MESSAGE_SCHEMA)):
        with pytest.raises(ValueError, match="are not read as rows of this table"):
            Declaration(form, read_as)
