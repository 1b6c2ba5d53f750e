"""What is told beside a body in headers that are ASCII text, as HTTP's and NATS' are.

Source: CloudEvents, "HTTP protocol binding", 3.1.3: names of attributes begin with ``ce-``, values are percent-encoded.
"""

from __future__ import annotations

from urllib.parse import quote

from tailrace.eventstore.publishing.bridges.bridge import Message

_AS_IT_IS = "".join(chr(code) for code in range(0x21, 0x7F) if chr(code) not in '"%')


def headers_of(message: Message) -> dict[str, str]:
    """Of the record, and where it is from. The key is there for what the body does not say: a row that is gone."""
    found = {"content-type": "application/json", "tailrace-topic": _text(message.topic.encode())}
    found["tailrace-offset"] = message.place
    if message.key is not None:
        found["tailrace-key"] = _text(message.key)
    for name, value in message.headers:
        if name == "content-type":
            found[name] = value.decode()
        else:
            found[name.replace("ce_", "ce-", 1) if name.startswith("ce_") else name] = _text(value)
    return found


def _text(value: bytes) -> str:
    return quote(value, safe=_AS_IT_IS)
