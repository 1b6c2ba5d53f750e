"""Who between us and a server could read or change what is sent, as its address allows it. Pure: connects nowhere.

An address is what decides. A server that answers *no* when TLS is asked for, or asks for the password itself instead of
a proof that it is known, is obeyed under libpq's defaults: whoever can answer in the server's place gets the password.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from ipaddress import ip_address
from urllib.parse import parse_qs, urlsplit

from psycopg import ProgrammingError, pq
from psycopg.conninfo import conninfo_to_dict

from tailrace.doctor.check import Check
from tailrace.eventstore import disclosure

_VERIFIED = "sslmode=verify-full with sslrootcert; or, with SCRAM passwords, channel_binding=require"
_POSTGRES: Mapping[str, str] = {
    "disable": "nothing is encrypted: everybody on the way reads rows and can change them",
    "allow": "nothing is encrypted unless the server insists: who answers in its place gets rows and password",
    "prefer": "TLS is given up when the server says so: who answers in its place gets rows and password",
    "require": "the server's certificate is not checked: who answers in its place gets rows and password",
    "verify-ca": "the name in the server's certificate is not checked: another server with one of this authority "
    "gets rows and password",
}


def check_postgres_transport(subject: str, dsn: str) -> Iterator[Check]:
    """``dsn`` is libpq's, also as a URL of SQLAlchemy. One that cannot be read is for others to report."""
    scheme, separator, rest = dsn.partition("://")
    if disclosure.is_ambiguous(dsn):
        return  # its host would be a part of the password
    try:
        named = conninfo_to_dict(f"{scheme.partition('+')[0]}://{rest}" if separator else dsn)
    except ProgrammingError:
        return
    if named.get("service") and not (named.get("host") or named.get("hostaddr")):
        return  # the service's file has the rest
    chosen = {**_defaults(), **{name: str(value) for name, value in named.items() if value is not None}}
    away = _away((chosen.get("hostaddr") or chosen.get("host") or "").split(","))
    if not away or chosen.get("channel_binding") == "require" or chosen.get("gssencmode") == "require":
        return
    mode = chosen.get("sslmode", "prefer")
    if mode in _POSTGRES:
        yield Check(f"{subject} encryption", "warn", f"{away}, sslmode={mode}: {_POSTGRES[mode]}", _VERIFIED)


def check_redis_transport(subject: str, url: str) -> Iterator[Check]:
    if disclosure.is_ambiguous(url):
        return
    try:
        parts = urlsplit(url)
        away = _away([parts.hostname or ""])
    except ValueError:
        return
    options = {name: values[-1].lower() for name, values in parse_qs(parts.query).items()}
    if not away or parts.scheme not in ("redis", "rediss"):
        return
    if parts.scheme == "redis":
        found = "nothing is encrypted: everybody on the way reads rows and password"
        yield Check(
            f"{subject} encryption", "warn", f"{away}, redis://: {found}", "rediss://, with TLS at the server"
        )
    elif options.get("ssl_cert_reqs") in ("none", "optional") or options.get("ssl_check_hostname") in _NO:
        found = "the server's certificate is not checked: who answers in its place gets rows and password"
        remedy = (
            "remove ssl_cert_reqs and ssl_check_hostname from the url; name the authority by ssl_ca_certs"
        )
        yield Check(f"{subject} encryption", "warn", f"{away}: {found}", remedy)


_NO = ("0", "f", "false", "n", "no")  # as the driver reads them


def _defaults() -> dict[str, str]:
    """libpq's own, and what its environment variables say."""
    return {
        option.keyword.decode(): option.val.decode()
        for option in pq.Conninfo.get_defaults()
        if option.val is not None
    }


def _away(hosts: list[str]) -> str:
    """The first host that is not this one, and is reached by a network; empty when there is none."""
    return next((host for host in hosts if not _is_local(host)), "")


def _is_local(host: str) -> bool:
    if not host or host.startswith(("/", "@")) or host.lower() == "localhost":
        return True
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
