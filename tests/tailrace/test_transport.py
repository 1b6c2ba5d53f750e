"""Who answers in a server's place gets nothing where the address forbids it; doctor says which addresses do not."""

from __future__ import annotations

import socket
import ssl
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import psycopg
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import NameOID

from tailrace.cdc.postgres import connect as source
from tailrace.doctor.transport import check_postgres_transport, check_redis_transport
from tailrace.eventstore.catalog.database import connect_catalog
from tailrace.eventstore.errors import TailraceError
from tailrace.projections.sinks.postgres.connect import PostgresPlace

PASSWORD = "correct-horse-battery"
_TLS = 80877103  # SSLRequest
_NO_TLS = {_TLS, 80877104}  # GSSENCRequest
_ASKS = {
    "cleartext": struct.pack("!cii", b"R", 8, 3),
    "md5": struct.pack("!cii4s", b"R", 12, 5, b"salt"),
    "trust": struct.pack("!cii", b"R", 8, 0) + struct.pack("!cic", b"Z", 5, b"I"),
}


def _code_of(line: socket.socket) -> int:
    """What a message of a connection's start asks for; all of it is taken off the line."""
    body, left = b"", 4
    while left:
        if not (part := line.recv(left)):
            raise ConnectionError
        body, left = body + part, left - len(part)
        if len(body) == 4:
            left = int.from_bytes(body) - 4
    return int.from_bytes(body[4:8])


class Impostor:
    """Answers in a server's place: declines TLS, or speaks it with a ``certificate`` (with its key), then asks as it
    likes. ``heard`` is what it is told after that."""

    def __init__(self, asks: str, certificate: Path | None = None) -> None:
        self.heard, self._asks = b"", _ASKS[asks]
        self._tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER) if certificate else None
        if self._tls is not None and certificate is not None:
            self._tls.load_cert_chain(certificate)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        with suppress(OSError):  # closed
            while True:
                line, _ = self._listener.accept()
                with line, suppress(OSError, struct.error):
                    self._talk(line)

    def _talk(self, line: socket.socket) -> None:
        line.settimeout(10)
        while (code := _code_of(line)) in _NO_TLS:
            if self._tls is not None and code == _TLS:
                line.sendall(b"S")
                with self._tls.wrap_socket(line, server_side=True) as encrypted:
                    _code_of(encrypted)
                    self._ask(encrypted)
                return
            line.sendall(b"N")
        self._ask(line)

    def _ask(self, line: socket.socket) -> None:
        line.sendall(self._asks)
        while said := line.recv(4096):
            self.heard += said
            if self._asks is not _ASKS["trust"]:
                return

    def close(self) -> None:
        with suppress(OSError):  # again
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()


@pytest.fixture(params=list(_ASKS))
def impostor(request: pytest.FixtureRequest) -> Iterator[Impostor]:
    server = Impostor(request.param)
    yield server
    server.close()


def of_source(dsn: str, _: Path) -> None:
    source.connect(source.Address.parse(dsn))


def of_replication(dsn: str, _: Path) -> None:
    source.connect_replication(source.Address.parse(dsn))


def of_sink(dsn: str, _: Path) -> None:
    place = PostgresPlace("sink 'mart'", dsn)
    with place.translate_errors():
        place.connect()


def of_catalog(dsn: str, folder: Path) -> None:
    with connect_catalog(dsn, store_name="acme", root=folder).read():
        pass


@pytest.mark.parametrize("connects", [of_source, of_replication, of_sink, of_catalog])
@pytest.mark.parametrize("demand", ["sslmode=verify-full&sslrootcert=system", "channel_binding=require"])
def test_an_impostor_without_a_certificate_learns_no_password_and_reads_no_query(
    impostor: Impostor, connects: Callable[[str, Path], None], demand: str, tmp_path: Path
) -> None:
    """It declines TLS, and asks for the password in clear text, or a hash of it, or for nothing."""
    dsn = f"postgresql://agent:{PASSWORD}@127.0.0.1:{impostor.port}/shop?{demand}"
    with pytest.raises(TailraceError) as refused:
        connects(dsn, tmp_path)
    assert PASSWORD not in str(refused.value)
    impostor.close()
    assert impostor.heard == b""


def make_certificate(folder: Path, name: str, signed_by: str = "") -> Path:
    """A certificate for ``name`` with its key in one file, signed by itself or by the one of that name."""
    key, issuer = ec.generate_private_key(ec.SECP256R1()), folder / f"{signed_by or name}.pem"
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    signer: ec.EllipticCurvePrivateKey = key
    by = subject
    if signed_by:
        loaded = load_pem_private_key(issuer.read_bytes(), None)
        assert isinstance(loaded, ec.EllipticCurvePrivateKey)
        signer, by = loaded, x509.load_pem_x509_certificate(issuer.read_bytes()).subject
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(by)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(hours=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=not signed_by, path_length=None), critical=True)
        .sign(signer, hashes.SHA256())
    )
    file = folder / f"{name}.pem"
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    file.write_bytes(private + made.public_bytes(Encoding.PEM))
    return file


@pytest.mark.parametrize("connects", [of_source, of_replication, of_sink, of_catalog])
@pytest.mark.parametrize(
    ("name", "signed_by", "said"),
    [
        ("elsewhere", "ca", "does not match host name"),
        ("localhost", "stranger", "certificate verify failed"),
        ("localhost", "", "certificate verify failed"),
    ],
    ids=["another name", "another authority", "its own authority"],
)
def test_an_impostor_with_another_certificate_learns_no_password_and_reads_no_query(
    connects: Callable[[str, Path], None], name: str, signed_by: str, said: str, tmp_path: Path
) -> None:
    authority = make_certificate(tmp_path, "ca")
    make_certificate(tmp_path, "stranger")
    server = Impostor("cleartext", make_certificate(tmp_path, name, signed_by))
    dsn = f"postgresql://agent:{PASSWORD}@localhost:{server.port}/shop?hostaddr=127.0.0.1&sslmode=verify-full"
    with pytest.raises(TailraceError, match=said) as refused:
        connects(f"{dsn}&sslrootcert={authority}", tmp_path)
    assert PASSWORD not in str(refused.value)
    server.close()
    assert server.heard == b""


def test_an_impostor_with_any_certificate_gets_the_password_where_none_is_checked(tmp_path: Path) -> None:
    """What doctor warns of, and that the one with a certificate is an impostor."""
    server = Impostor("cleartext", make_certificate(tmp_path, "elsewhere"))
    with pytest.raises(psycopg.OperationalError):
        psycopg.connect(f"postgresql://agent:{PASSWORD}@127.0.0.1:{server.port}/shop?sslmode=require")
    server.close()
    assert PASSWORD.encode() in server.heard


def test_without_a_demand_the_impostor_gets_the_password() -> None:
    """What doctor warns of, and that the impostor is one."""
    server = Impostor("cleartext")
    with pytest.raises(psycopg.OperationalError):
        psycopg.connect(f"postgresql://agent:{PASSWORD}@127.0.0.1:{server.port}/shop")
    server.close()
    assert PASSWORD.encode() in server.heard


@pytest.mark.parametrize(
    ("dsn", "told"),
    [
        ("postgresql://a:b@db.example/shop", "sslmode=prefer"),
        ("postgresql+psycopg://a:b@db.example/shop", "sslmode=prefer"),
        ("host=10.0.0.7 dbname=shop", "sslmode=prefer"),
        ("host=localhost hostaddr=10.0.0.7", "sslmode=prefer"),
        ("host=/run,db.example sslmode=disable", "nothing is encrypted"),
        ("postgresql://db.example/shop?sslmode=allow", "unless the server insists"),
        ("postgresql://db.example/shop?sslmode=require", "certificate is not checked"),
        ("postgresql://db.example/shop?sslmode=verify-ca&sslrootcert=ca", "the name in"),
        ("postgresql://db.example/shop?sslmode=verify-full&sslrootcert=ca", ""),
        ("postgresql://db.example/shop?channel_binding=require", ""),
        ("postgresql://127.0.0.1/shop", ""),
        ("postgresql://[::1]/shop", ""),
        ("postgresql:///shop", ""),
        ("host=/run/postgresql", ""),
        ("service=shop", ""),
        ("postgresql://%zz", ""),
    ],
)
def test_an_address_of_postgres_that_lets_others_read_is_warned_of(dsn: str, told: str) -> None:
    found = list(check_postgres_transport("source shop", dsn))
    assert [(each.verdict, told in each.found, bool(each.remedy)) for each in found] == (
        [("warn", True, True)] if told else []
    )
    assert not any("a:b" in each.found for each in found)


def test_what_the_environment_says_counts_where_the_address_says_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PGHOST", "db.example")
    assert list(check_postgres_transport("catalog", "postgresql:///shop"))
    monkeypatch.setenv("PGSSLMODE", "verify-full")
    assert not list(check_postgres_transport("catalog", "postgresql:///shop"))
    assert list(check_postgres_transport("catalog", "postgresql:///shop?sslmode=prefer"))


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("redis://:secret@cache.example/0", "nothing is encrypted"),
        ("rediss://:secret@cache.example/0?ssl_cert_reqs=none", "certificate is not checked"),
        ("rediss://:secret@cache.example/0?ssl_check_hostname=False", "certificate is not checked"),
        ("rediss://:secret@cache.example/0", ""),
        ("redis://localhost/0", ""),
        ("unix:///run/redis.sock", ""),
    ],
)
def test_an_address_of_redis_that_lets_others_read_is_warned_of(url: str, told: str) -> None:
    found = list(check_redis_transport("sink cache", url))
    assert [(each.verdict, told in each.found) for each in found] == ([("warn", True)] if told else [])
    assert not any("secret" in each.found for each in found)
