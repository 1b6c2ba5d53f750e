"""Which messages of our own are ours: any role may emit a logical message with any prefix. Pure.

A message is believed when it carries an HMAC under a secret of the database (``migrations/source/ddl/install.sql`` and
``versions/0010_emit.sql`` have the formats), begins with its prefix, names the transaction that it came in, and was
written behind the one before it: so none can be made without the secret, carried into another transaction, or repeated.
"""

from __future__ import annotations

import hashlib
import hmac

OWN_PREFIX = "tailrace."  # of logical messages of our own: descriptions and marks, not data
_PREFIX, _PREFIX_AT = OWN_PREFIX.encode(), 10  # behind tag, flags and LSN
_MAC_BYTES = hashlib.sha256().digest_size
_HEAD_MAX = 64
_XID_MASK = (1 << 32) - 1


def claims_to_be_ours(frame: bytes | memoryview) -> bool:
    """Whether a logical message of the stream has a prefix of ours."""
    return bytes(frame[_PREFIX_AT : _PREFIX_AT + len(_PREFIX)]) == _PREFIX


def sign(secret: bytes, prefix: str, xid: int, position: int, body: bytes) -> bytes:
    """A message as the source makes it. ``xid`` has 64 bits, ``position`` is that of the WAL before it."""
    text = f"{prefix} {xid} {position >> 32:X}/{position & _XID_MASK:X}\n".encode()
    return hmac.digest(secret, text + body, "sha256") + text + body


def verify(content: bytes, secret: bytes, prefix: str, *, xid: int, after: int, lsn: int) -> bytes | None:
    """The body of a message; None when it is not to be believed. ``xid``: as the stream sends it, with 32 bits.
    ``lsn`` is the end of its record, ``after`` that of the believed one before it in its transaction, or 0."""
    mac, signed = content[:_MAC_BYTES], content[_MAC_BYTES:]
    if not hmac.compare_digest(hmac.digest(secret, signed, "sha256"), mac):
        return None
    line = signed.find(b"\n", 0, _HEAD_MAX)
    words = signed[: max(line, 0)].split(b" ")
    if len(words) != 3 or words[0] != prefix.encode():
        return None
    high, _, low = words[2].partition(b"/")
    try:
        full, position = int(words[1]), int(high, 16) << 32 | int(low, 16)
    except ValueError:
        return None
    if full & _XID_MASK != xid or not after <= position <= lsn:
        return None
    return signed[line + 1 :]
