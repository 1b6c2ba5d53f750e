"""How a value is encrypted with somebody's key, and where it stands in JSON meanwhile.

In the JSON of an event it is ``{"$personal":["KEY ID","TEXT"]}``: the id is that of the key, the text a nonce of 12
bytes and what AES-256-GCM (NIST SP 800-38D) makes of the value's JSON, in base64url. The JSON is filled up with spaces
to whole blocks, so that its length says little. What was erased is ``{"$personal":null}``.
"""

from __future__ import annotations

import base64
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from tailrace.eventstore.errors import IntegrityError, OperatorError

MARK: Final = "$personal"
QUOTED_MARK: Final = f'"{MARK}"'
ERASED_TEXT: Final = f'{{"{MARK}":null}}'
KEY_BYTES: Final = 32
_NONCE_BYTES: Final = 12
_BLOCK: Final = 32
_KEY_ID: Final = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
# A quote inside a JSON string is escaped, so this matches whole objects only.
_SEALED: Final = re.compile(
    rf'\{{\s*"\$personal":\s*\[\s*"({_KEY_ID.pattern})",\s*"([A-Za-z0-9_-]+)"\s*\]\s*\}}'
)
_COLLECTED: Final = re.compile(r'\{"\$personal":(\d+)\}')


def is_key_id(text: str) -> bool:
    return _KEY_ID.fullmatch(text) is not None


class Key(NamedTuple):
    """One of a subject's keys: its id, a UUID as text, and its bytes."""

    id: str
    secret: bytes


def new_secret() -> bytes:
    return os.urandom(KEY_BYTES)


def seal(key: Key, text: str) -> str:
    """What stands in JSON for the JSON ``text``."""
    data = text.encode()
    data += b" " * (-len(data) % _BLOCK)
    return f'{{"{MARK}":["{key.id}","{_encrypt(key, data)}"]}}'


def seal_collected(text: str, sealed: Sequence[str]) -> str:
    """JSON with values in the places that they were collected from."""
    return _COLLECTED.sub(lambda match: sealed[int(match[1])], text)


def key_ids(texts: Iterable[str]) -> set[str]:
    """The keys that these JSON texts need."""
    return {match[0] for text in texts if QUOTED_MARK in text for match in _SEALED.findall(text)}


def unseal(text: str, keys: Mapping[str, bytes | None]) -> str:
    """JSON with values as they were; None for a key: it was erased. Raises IntegrityError for what no such key has
    encrypted."""

    def value(match: re.Match[str]) -> str:
        secret = keys[match[1]]
        if secret is None:
            return ERASED_TEXT
        return _value(Key(match[1], secret), match[2])

    return _SEALED.sub(value, text) if QUOTED_MARK in text else text


def personal_values(text: str, keys: Mapping[str, bytes]) -> list[str]:
    """The values in JSON that these keys have encrypted, each as JSON."""
    return [_value(Key(id, keys[id]), sealed) for id, sealed in _SEALED.findall(text) if id in keys]


def seal_state(keys: Mapping[str, bytes], text: str) -> str:
    """JSON of a state that follows from values of several keys: who has all of them reads it."""
    sealed = _encrypt(_key_of_all(keys), text.encode())
    return f'{{"{MARK}":["{",".join(sorted(keys))}","{sealed}"]}}'


_STATE: Final = re.compile(
    r'\s*\{\s*"\$personal":\s*\[\s*"([0-9a-f,-]{36,})",\s*"([A-Za-z0-9_-]+)"\s*\]\s*\}\s*'
)


def keys_of_state(text: str) -> frozenset[str]:
    """The keys that a stored state needs; none for one that is not encrypted."""
    found = _STATE.fullmatch(text) if QUOTED_MARK in text else None
    return frozenset(found[1].split(",")) if found else frozenset()


def unseal_state(text: str, keys: Mapping[str, bytes]) -> str:
    """Raises IntegrityError for what these keys have not encrypted."""
    found = _STATE.fullmatch(text)
    return text if found is None else _decrypt(_key_of_all(keys), found[2]).decode()


def _key_of_all(keys: Mapping[str, bytes]) -> Key:
    import hashlib

    names = sorted(keys)
    return Key(
        ",".join(names), hashlib.sha256(b"tailrace state" + b"".join(keys[name] for name in names)).digest()
    )


def hidden_tag(secret: bytes, tag: str) -> str:
    """The tag ``name:value`` as it is stored where the value is personal: ``name#CODE``, an HMAC (RFC 2104) with
    SHA-256. It has no colon, as every other tag has."""
    import hmac

    code = hmac.digest(secret, tag.encode(errors="surrogatepass"), "sha256")
    return f"{tag.partition(':')[0]}#{_base64(code)}"


def is_hidden(tag: str) -> bool:
    return ":" not in tag


def _encrypt(key: Key, data: bytes) -> str:
    nonce = os.urandom(_NONCE_BYTES)
    return _base64(nonce + _cipher(key.secret).encrypt(nonce, data, key.id.encode()))


def _decrypt(key: Key, text: str) -> bytes:
    data = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
    try:
        return bytes(_cipher(key.secret).decrypt(data[:_NONCE_BYTES], data[_NONCE_BYTES:], key.id.encode()))
    except Exception as error:
        if type(error).__name__ not in ("InvalidTag", "ValueError"):
            raise
        raise IntegrityError(
            f"a personal value is not what key {key.id} has encrypted",
            hint="the key store is of another database, or somebody changed the event; restore either",
        ) from None


def _value(key: Key, text: str) -> str:
    return _decrypt(key, text).decode().rstrip(" ")


def _cipher(secret: bytes) -> Any:
    try:
        from cryptography.hazmat.primitives.ciphers.aead import (
            AESGCM,  # only for those who have personal values
        )
    except ImportError:
        raise OperatorError(
            "personal values need the package cryptography", hint="pip install 'tailrace[personal]'"
        ) from None
    return AESGCM(secret)


def _base64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()
