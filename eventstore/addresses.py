"""Addresses of servers as people write them. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable
from urllib.parse import parse_qs, unquote, urlsplit

ESCAPES = "in a password write %40 for @ and %2F for /"
_DISTINCT_CHARS = 8  # a shorter password may stand in a text by chance


def misread(url: str) -> bool:
    """Whether a password with an ``@`` or ``/`` that is not escaped would be taken for a host or a database, whose
    names are printed. (``user:pa/ss@host/db`` leads to host ``user``.)"""
    authority, _, path = url.partition("://")[2].partition("/")
    return authority.count("@") > 1 or "@" in path.partition("?")[0]


def password_of(address: str) -> str | None:
    """The password in a URL or in libpq's ``key=value`` form, as the server gets it."""
    if "://" not in address:
        found = re.search(r"\bpassword\s*=\s*(?:'((?:[^'\\]|\\.)*)'|(\S+))", address)
        return re.sub(r"\\(.)", r"\1", found[1] if found[1] is not None else found[2]) if found else None
    try:
        parts = urlsplit(address)
    except ValueError:
        return None
    if parts.password:
        return unquote(parts.password)
    return next(iter(parse_qs(parts.query).get("password", [])), None)


def reveals(text: str, secrets: Iterable[str]) -> bool:
    """Whether a text is one of the secrets, or has one in it."""
    return any(text == secret or (len(secret) >= _DISTINCT_CHARS and secret in text) for secret in secrets)
