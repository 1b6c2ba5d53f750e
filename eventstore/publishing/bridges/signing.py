"""The headers by which a receiver knows a webhook. Source: Standard Webhooks, specification 1.0."""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Sequence


def signed_headers(keys: Sequence[bytes], message_id: str, timestamp: int, body: bytes) -> dict[str, str]:
    """``timestamp`` in seconds since 1970: receivers refuse an old one, so a message that is sent again has a new
    one."""
    signed = f"{message_id}.{timestamp}.".encode() + body
    return {
        "webhook-id": message_id,
        "webhook-timestamp": str(timestamp),
        "webhook-signature": " ".join(f"v1,{_signature(key, signed)}" for key in keys),
    }


def _signature(key: bytes, signed: bytes) -> str:
    return base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()
