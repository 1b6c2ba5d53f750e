"""Capture over TLS with Debian's Postgres: verify-full, SCRAM, client certificate, passfile and service file."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psycopg
import pytest

from tailrace.cdc.postgres.connect import Address, connect, connect_replication
from tailrace.embedded import PostgresServer
from tailrace.eventstore.errors import OperatorError
from tests.fixtures.databases import drop_database
from tests.fixtures.servers import FAST_SETTINGS
from tests.support.capturing import CaptureProcess, Site, assert_equals_source, assert_sound, execute, query
from tests.support.certificates import make_authority, make_certificate
from tests.support.installed import system_programs
from tests.support.plaintext import places_of

pytestmark = [pytest.mark.servers, pytest.mark.timeout(300)]

PASSWORD = f"pass {secrets.token_hex(8)}"
HBA = """
host    all postgres    127.0.0.1/32 trust
hostssl all by_password 127.0.0.1/32 scram-sha-256
hostssl all by_cert     127.0.0.1/32 cert
"""


@dataclass(frozen=True)
class Secured:
    """A server that lets ``by_password`` and ``by_cert`` in over TLS only, and the files a client needs."""

    server: PostgresServer
    files: Path

    def dsn(self, dbname: str, user: str, **options: str) -> str:
        given = {
            "host": "localhost", "hostaddr": "127.0.0.1", "port": str(self.server.port), "dbname": dbname,
            "user": user, "sslmode": "verify-full", "sslrootcert": str(self.files / "ca.crt"),
        }  # fmt: skip
        return psycopg.conninfo.make_conninfo("", **(given | options))

    def certificate(self) -> dict[str, str]:
        return {"sslcert": str(self.files / "by_cert.crt"), "sslkey": str(self.files / "by_cert.key")}

    def passfile(self) -> dict[str, str]:
        return {"passfile": str(self.files / "passfile")}


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    files = tmp_path_factory.mktemp("tls")
    make_authority(files, "ca")
    make_authority(files, "stranger")
    make_certificate(files, "localhost", "-addext", "subjectAltName=DNS:localhost")
    make_certificate(files, "by_cert")
    (files / "passfile").write_text(f"*:*:*:by_password:{PASSWORD}\n")
    (files / "passfile").chmod(0o600)
    with PostgresServer(settings=FAST_SETTINGS, bin_dir=system_programs(), trust=True) as server:
        owner = server.data_dir.stat()
        for name in ("localhost.crt", "localhost.key", "ca.crt"):
            copy = server.data_dir / name
            copy.write_bytes((files / name).read_bytes())
            copy.chmod(0o600)
            os.chown(copy, owner.st_uid, owner.st_gid)
        execute(
            server.dsn(),
            f"CREATE ROLE by_password LOGIN REPLICATION PASSWORD '{PASSWORD}'",
            "CREATE ROLE by_cert LOGIN REPLICATION",
            "ALTER SYSTEM SET ssl_cert_file = 'localhost.crt'",
            "ALTER SYSTEM SET ssl_key_file = 'localhost.key'",
            "ALTER SYSTEM SET ssl_ca_file = 'ca.crt'",
            "ALTER SYSTEM SET ssl = on",
        )
        (server.data_dir / "pg_hba.conf").write_text(HBA)
        execute(server.dsn(), "SELECT pg_reload_conf()")
        yield Secured(server, files)


@pytest.fixture(params=["by_password", "by_cert", "service"])
def site(
    secured: Secured, store_dir: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Iterator[Site]:
    name = f"tls_{secrets.token_hex(4)}"
    user = "by_cert" if request.param == "by_cert" else "by_password"
    options = secured.certificate() if user == "by_cert" else secured.passfile()
    execute(secured.server.dsn(), f"CREATE DATABASE {name} OWNER {user}", f"GRANT pg_monitor TO {user}")
    dsn = secured.dsn(name, user, **options)
    if request.param == "service":
        entries = psycopg.conninfo.conninfo_to_dict(dsn)
        service = secured.files / "services.conf"
        service.write_text("[shop]\n" + "".join(f"{key}={value}\n" for key, value in entries.items()))
        monkeypatch.setenv("PGSERVICEFILE", str(service))
        dsn = "service=shop"
    execute(
        dsn,
        "CREATE SCHEMA app",
        "CREATE TABLE app.t (id int PRIMARY KEY, v text)",
        "INSERT INTO app.t SELECT i, 'v' FROM generate_series(1, 100) i",
    )
    try:
        yield Site.at(store_dir, dsn, tables=("app.*",))
    finally:
        drop_database(secured.server, name)


def test_first_load_stream_kill_and_verify_over_verify_full(site: Site) -> None:
    site.init()
    with CaptureProcess(site) as capture:
        capture.catch_up()
        execute(site.dsn, "INSERT INTO app.t VALUES (101, 'streamed')", "DELETE FROM app.t WHERE id = 1")
        capture.catch_up()
        ((count, encrypted),) = query(
            site.dsn,
            "SELECT count(*), bool_and(s.ssl) FROM pg_stat_activity a JOIN pg_stat_ssl s USING (pid)"
            " WHERE a.application_name LIKE 'tailrace%'",
        )
        assert count and encrypted, "every connection of the capture is encrypted"
        capture.kill()
    execute(site.dsn, "UPDATE app.t SET v = 'while it was dead' WHERE id < 10")
    with CaptureProcess(site) as capture:
        capture.catch_up()
        assert_equals_source(site, [("app", "t")])
        assert capture.terminate() == 0
        assert PASSWORD not in capture.output
    with site.open() as store:
        assert_sound(store)
        assert places_of(store, site.root, PASSWORD) == []


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"sslrootcert": "stranger.crt"}, "certificate verify failed"),
        ({"sslrootcert": "nowhere.crt"}, "nowhere.crt"),
        ({"host": "127.0.0.1"}, "does not match host name"),
        ({"sslcert": "localhost.crt", "sslkey": "localhost.key", "user": "by_cert"}, "by_cert"),
        ({"sslcert": "by_cert.crt", "sslkey": "open.key", "user": "by_cert"}, "private key file"),
        ({"sslmode": "disable"}, "pg_hba.conf"),
        ({"password": "not the one"}, "password"),
        ({"passfile": "nowhere"}, "password"),
    ],
    ids=lambda value: value.replace(" ", "_") if isinstance(value, str) else "-".join(value),
)
def test_what_is_wrong_with_a_secured_connection_is_said(
    secured: Secured, options: dict[str, str], said: str
) -> None:
    (secured.files / "open.key").write_bytes((secured.files / "by_cert.key").read_bytes())
    (secured.files / "open.key").chmod(0o644)
    files = {"sslrootcert", "sslcert", "sslkey", "passfile"}
    given = {name: str(secured.files / value) if name in files else value for name, value in options.items()}
    user = given.pop("user", "by_password")
    dsn = secured.dsn("postgres", user, **(secured.passfile() | given))
    for way in (connect, connect_replication):
        with pytest.raises(OperatorError) as raised:
            way(Address.parse(dsn))
        error = raised.value
        assert said in error.message and error.hint
        assert "localhost" in error.message or "127.0.0.1" in error.message
        assert PASSWORD not in str(error) and "not the one" not in str(error)
