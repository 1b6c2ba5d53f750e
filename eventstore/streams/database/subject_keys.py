"""Keys of subjects in the database that events are appended to: made in the transaction of the first event with one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from tailrace.eventstore.streams.database.connection import Ask
from tailrace.eventstore.streams.database.tagging import texts
from tailrace.eventstore.streams.personal.sealing import Key, new_secret

_SEAL: Final = """
SELECT subject, CAST(id AS text), secret
FROM tailrace.seal_keys(CAST(%(subjects)s AS text[]), CAST(%(secrets)s AS text[]))
"""
_OPEN: Final = "SELECT id, secret FROM tailrace.open_keys(CAST(%(ids)s AS text[]))"
_TAG_SECRET: Final = "SELECT tailrace.tag_secret(%(secret)s)"
_KEYS_OF: Final = "SELECT CAST(id AS text), secret FROM tailrace.keys_of(%(subject)s)"
_FORGET: Final = "SELECT id FROM tailrace.forget_keys(CAST(%(ids)s AS text[])) AS id"
_ROTATE: Final = "SELECT CAST(id AS text), secret FROM tailrace.rotate_key(%(subject)s, %(secret)s)"


class SourceKeys:
    """``KeyStore`` in table ``tailrace.subject_keys``."""

    __slots__ = ("_ask",)

    def __init__(self, ask: Ask) -> None:
        self._ask = ask

    async def seal_keys(self, subjects: Sequence[str]) -> Mapping[str, Key]:
        wanted = sorted(set(subjects))
        values = {"subjects": texts(wanted), "secrets": texts(new_secret().hex() for _ in wanted)}
        return {
            subject: Key(id, bytes.fromhex(secret)) for subject, id, secret in await self._ask(_SEAL, values)
        }

    async def open_keys(self, ids: Sequence[str]) -> Mapping[str, bytes | None]:
        rows = await self._ask(_OPEN, {"ids": texts(ids)})
        return {id: None if secret is None else bytes.fromhex(secret) for id, secret in rows}

    async def tag_secret(self) -> bytes:
        ((secret,),) = await self._ask(_TAG_SECRET, {"secret": new_secret().hex()})
        return bytes.fromhex(secret)

    async def rotate(self, subject: str) -> Key | None:
        rows = await self._ask(_ROTATE, {"subject": subject, "secret": new_secret().hex()})
        return _key(rows[0]) if rows else None

    async def keys_of(self, subject: str) -> Sequence[Key]:
        return [_key(row) for row in await self._ask(_KEYS_OF, {"subject": subject})]

    async def forget(self, ids: Iterable[str]) -> Sequence[str]:
        return [id for (id,) in await self._ask(_FORGET, {"ids": texts(ids)})]


def _key(row: Sequence[str]) -> Key:
    id, secret = row
    return Key(id, bytes.fromhex(secret))
