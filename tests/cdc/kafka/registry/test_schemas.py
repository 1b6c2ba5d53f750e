"""What a schema registry answers, and what becomes of it: the stand-in speaks HTTP, and is as wrong as it is told."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from tailrace.cdc.kafka.decoding.avro.schema import AvroSchema
from tailrace.cdc.kafka.registry.client import ANSWER_BYTES_MAX, RegistryClient
from tailrace.cdc.kafka.registry.schemas import REFUSED_MAX, SchemaRegistry
from tailrace.eventstore.errors import OperatorError, TransientError
from tailrace.eventstore.settings import RegistrySettings
from tests.cdc.kafka.decoding.recorded import schema_texts
from tests.support.schema_registry import Registry, schema_registry
from tests.tailrace.test_transport import make_certificate

ROW = '{"type": "record", "name": "Row", "fields": [{"name": "id", "type": "int"}]}'


@pytest.fixture
def server() -> Iterator[Registry]:
    with schema_registry({7: ROW}) as registry:
        yield registry


def client(server: Registry, **more: Any) -> RegistryClient:
    return RegistryClient(RegistrySettings.model_validate({"url": server.url, **more}))


def refusal(server: Registry, number: int) -> str:
    found = SchemaRegistry(client(server)).schemas([number])[number]
    assert isinstance(found, str)
    return found


def test_a_schema_is_asked_for_once(server: Registry) -> None:
    registry = SchemaRegistry(client(server))
    assert isinstance(registry.schemas([7])[7], AvroSchema)
    assert registry.schemas([7, 7]) == registry.schemas([7])
    assert server.asked == ["/schemas/ids/7"]


def test_schemas_that_were_recorded_are_all_taken(server: Registry) -> None:
    server.schemas = dict(schema_texts("avro"))
    found = SchemaRegistry(client(server)).schemas(server.schemas)
    assert len(found) > 10
    assert all(isinstance(each, AvroSchema) for each in found.values())


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (None, "the schema registry has no schema 8$"),
        ({"schema": ROW, "schemaType": "PROTOBUF"}, "schema 8 is of the type PROTOBUF"),
        ({"schema": ROW, "references": [{"name": "other"}]}, "schema 8 has references to others"),
        ({"schema": "x" * ANSWER_BYTES_MAX}, "schema 8 is longer than"),
        ({"schema": ROW + " " * (1 << 20)}, "schema 8 of the registry: it is longer than"),
        ({"schema": "{"}, "schema 8 of the registry: it is no Avro schema"),
    ],
)
def test_a_schema_that_cannot_be_used_is_a_matter_of_its_records(
    server: Registry, answer: dict[str, Any] | None, reason: str
) -> None:
    if answer is not None:
        server.schemas[8] = answer
    with pytest.raises(AssertionError, match=reason):
        raise AssertionError(refusal(server, 8))


def test_a_number_of_eight_bytes_is_told_by_its_zeros(server: Registry) -> None:
    assert "as-confluent=true" in refusal(server, 0)


@pytest.mark.parametrize(
    ("status", "body", "error", "words"),
    [
        (401, b"", OperatorError, "lets us not in .401."),
        (403, b"", OperatorError, "lets us not in .403."),
        (404, b"<html>", OperatorError, "is no schema registry: status 404"),
        (302, b"", OperatorError, "is no schema registry: status 302"),
        (200, b"[]", OperatorError, "is no schema registry: an answer without a schema"),
        (200, b"{" * 100_000, OperatorError, "is no schema registry: an answer without a schema"),
        (429, b"", TransientError, "cannot answer now .429."),
        (500, b"", TransientError, "cannot answer now .500."),
    ],
)
def test_an_answer_that_is_none_is_a_matter_of_the_registry(
    server: Registry, status: int, body: bytes, error: type[Exception], words: str
) -> None:
    server.broken = status, body
    with pytest.raises(error, match=words):
        client(server).schema(7)
    with pytest.raises(error):
        client(server).require_answer()


def test_a_registry_out_of_reach_is_tried_again_later(server: Registry) -> None:
    gone = RegistryClient(RegistrySettings(url="http://127.0.0.1:9"))
    with pytest.raises(TransientError, match=r"http://127\.0\.0\.1:9 is out of reach: Connection refused"):
        gone.schema(7)


def test_a_password_is_sent_and_never_said(server: Registry) -> None:
    server.login = "reader:secret"
    login = {"username": "reader", "password": "secret", "allow_unencrypted_password": True}
    assert client(server, **login).schema(7).text == ROW
    client(server, **login).require_answer()
    with pytest.raises(OperatorError, match="401") as refused:
        client(server, **login | {"password": "other"}).schema(7)
    assert "other" not in str(refused.value) and "other" not in repr(
        client(server, **login | {"password": "other"})
    )


def test_over_tls_the_password_goes_to_the_host_of_the_certificate_alone(tmp_path: Path) -> None:
    authority = make_certificate(tmp_path, "ca")
    stranger = make_certificate(tmp_path, "stranger")
    login = {"username": "reader", "password": "secret"}
    with schema_registry({7: ROW}, make_certificate(tmp_path, "localhost", "ca")) as server:
        server.login = "reader:secret"
        assert client(server, ca_file=authority, **login).schema(7).text == ROW
        asked = len(server.asked)
        for wrong in ({"ca_file": stranger}, {}):
            with pytest.raises(OperatorError, match="a certificate that is not right") as refused:
                client(server, **wrong, **login).schema(7)
            assert "ca_file" in (refused.value.hint or "")
        assert len(server.asked) == asked, "nothing was asked of one that is not known"
    with (
        schema_registry({7: ROW}, make_certificate(tmp_path, "elsewhere", "ca")) as server,
        pytest.raises(OperatorError, match="a certificate that is not right: Hostname mismatch"),
    ):
        client(server, ca_file=authority, **login).schema(7)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"url": "registry:8081"}, "must be http://HOST:PORT"),
        ({"url": "http://user:secret@registry"}, "must be without a user"),
        ({"url": "http://registry", "username": "u"}, "go together"),
        ({"url": "http://registry", "username": "u", "password": "p"}, "allow_unencrypted_password"),
        ({"url": "http://registry", "ca_file": "ca.pem"}, "goes with an address of https"),
    ],
)
def test_settings_that_cannot_be_kept_are_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        RegistrySettings.model_validate(settings)


def test_schemas_that_are_not_there_are_asked_for_so_many_times(server: Registry) -> None:
    now = [0.0]
    registry = SchemaRegistry(client(server), lambda: now[0])
    found = registry.schemas(range(100, 100 + 2 * REFUSED_MAX))
    assert len(server.asked) == REFUSED_MAX
    assert "was not asked for" in str(found[100 + 2 * REFUSED_MAX - 1])
    server.schemas[100] = ROW
    assert isinstance(registry.schemas([100])[100], str), "it was just refused"
    now[0] = 60.0
    assert isinstance(registry.schemas([100])[100], AvroSchema), "it was registered late"


def test_the_types_that_are_remembered_are_bounded(server: Registry) -> None:
    server.schemas = dict.fromkeys(range(1, 4), ROW)
    registry = SchemaRegistry(client(server), types_max=4)  # a record and its field are two
    assert all(isinstance(each, AvroSchema) for each in registry.schemas([1, 2, 3]).values())
    assert list(registry.known) == [2, 3]
    registry.schemas([2])
    registry.schemas([1])
    assert list(registry.known) == [2, 1], "the one used last stays"
