"""Amazon SQS: each record is a message of one queue, up to ten in a request.

A FIFO queue (``….fifo``) hands the messages of a key to receivers in their order, and drops what is sent again within
five minutes. Other queues do neither: ids and offsets tell.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import Any

from tailrace.eventstore.errors import OperatorError, TransientError
from tailrace.eventstore.publishing.bridges.aws import client as aws
from tailrace.eventstore.publishing.bridges.bridge import TAKEN, Answer, Later, Message, Refused
from tailrace.eventstore.settings import SqsDestinationSettings

_MESSAGES_AT_ONCE, _BYTES_AT_ONCE = 10, 256 << 10  # what one request may hold
_EMPTY = "null"  # a body cannot be empty
_NOT_AS_IT_IS = {
    "BatchRequestTooLong",
    "InvalidMessageContents",
    "InvalidParameterValue",
}  # of a message that is alone


class SqsBridge:
    """One queue."""

    def __init__(self, settings: SqsDestinationSettings) -> None:
        self._queue = settings.url.get_secret_value()
        self._fifo = self._queue.endswith(".fifo")
        self._client = aws.client("sqs", settings.region, settings.endpoint)

    def close(self) -> None:
        self._client.close()

    def check(self) -> None:
        try:
            self._client.get_queue_attributes(QueueUrl=self._queue, AttributeNames=["QueueArn"])
        except aws.REFUSALS as error:
            raise _translated(error) from None

    def send(self, messages: Sequence[Message]) -> Sequence[Answer]:
        answers: dict[str, Answer] = {}
        entries = [self._entry(each) for each in messages]
        for request in aws.batches(entries, _size, _MESSAGES_AT_ONCE, _BYTES_AT_ONCE):
            try:
                found = self._client.send_message_batch(QueueUrl=self._queue, Entries=request)
            except aws.REFUSALS as error:
                code = aws.code_of(error)
                if len(request) > 1 or code not in _NOT_AS_IT_IS:
                    raise _translated(error) from None
                found = {"Failed": [{"Id": request[0]["Id"], "Code": code}]}
            answers |= {each["Id"]: TAKEN for each in found.get("Successful", ())}
            answers |= {each["Id"]: _failed(each) for each in found.get("Failed", ())}
        return [answers.get(each.id, Later("SQS gave no answer")) for each in messages]

    def _entry(self, message: Message) -> dict[str, Any]:
        attributes = {"tailrace-id": message.id, "tailrace-topic": message.topic}
        attributes["tailrace-offset"] = message.place
        if message.key is not None:
            attributes["tailrace-key"] = message.key.decode()
        if message.headers:  # in one: a message has ten attributes at most
            told = {name: value.decode() for name, value in message.headers}
            attributes["tailrace-headers"] = json.dumps(told, ensure_ascii=False)
        entry = {
            "Id": message.id,
            "MessageBody": message.value.decode() if message.value else _EMPTY,
            "MessageAttributes": {
                name: {"DataType": "String", "StringValue": value} for name, value in attributes.items()
            },
        }
        if self._fifo:
            group = hashlib.sha256(f"{message.topic}\n".encode() + (message.key or b"")).hexdigest()
            entry |= {"MessageGroupId": group, "MessageDeduplicationId": message.id}
        return entry


def _size(entry: dict[str, Any]) -> int:
    """Of body and attributes, which count together."""
    texts = [entry["MessageBody"]]
    for name, each in entry["MessageAttributes"].items():
        texts += [name, each["DataType"], each["StringValue"]]
    return sum(len(each.encode()) for each in texts)


def _failed(found: dict[str, Any]) -> Answer:
    said = f"SQS did not take it: {found.get('Code')}"
    never = found.get("Code") in _NOT_AS_IT_IS
    return Refused(said, "its size or its characters are not those of SQS") if never else Later(said)


def _translated(error: Exception) -> OperatorError | TransientError:
    return aws.translated(error, "SQS", "url")
