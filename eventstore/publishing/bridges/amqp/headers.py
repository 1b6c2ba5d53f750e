"""What either version of AMQP says beside a record's value."""

from __future__ import annotations

from tailrace.eventstore.publishing.bridges.bridge import Message


def content_type(message: Message) -> str:
    return next(
        (value.decode() for name, value in message.headers if name == "content-type"), "application/json"
    )


def application_headers(message: Message) -> dict[str, str]:
    """Attributes of CloudEvents are named as its "AMQP protocol binding", 3.1.3.1, says."""
    headers = {"tailrace-topic": message.topic, "tailrace-offset": message.place}
    if message.key is not None:
        headers["tailrace-key"] = message.key.decode()
    for name, value in message.headers:
        if name != "content-type":
            headers["cloudEvents:" + name[3:] if name.startswith("ce_") else name] = value.decode()
    return headers
