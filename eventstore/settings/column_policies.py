"""What capture makes of columns' values before it writes them, and the secret that it hashes them with."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated

from pydantic import AfterValidator, Field, SecretStr

HASH_KEY_BYTES_MIN = 16


def _policy(text: str) -> str:
    if not re.fullmatch(r"plain|drop|hash|truncate:[1-9][0-9]{0,5}", text):
        raise ValueError('must be "drop", "hash", "truncate:N" or "plain"')
    return text


def _hash_key(secret: SecretStr) -> SecretStr:
    if len(secret.get_secret_value().encode()) < HASH_KEY_BYTES_MIN:
        raise ValueError(f"must have {HASH_KEY_BYTES_MIN} bytes or more, random ones: openssl rand -hex 32")
    return secret


ColumnPolicies = Annotated[
    dict[str, Annotated[str, AfterValidator(_policy)]],
    Field(
        description="What capture makes of columns' values: by pattern SCHEMA.TABLE.COLUMN, one of drop, hash,"
        " truncate:N and plain."
    ),
]
HashKey = Annotated[
    Annotated[SecretStr, AfterValidator(_hash_key)] | None,
    Field(description=f"Secret of the policy hash, {HASH_KEY_BYTES_MIN} bytes or more."),
]


def require_hash_key(columns: Mapping[str, str], key: SecretStr | None) -> None:
    """Raises ValueError where a policy needs a key that is not there."""
    if key is None and "hash" in columns.values():
        raise ValueError('a column has the policy "hash", which needs hash_key = "${VAR}" or "${file:…}"')
