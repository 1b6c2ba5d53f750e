"""Amazon Kinesis Data Streams: each record is one of the stream that the publication names, up to 500 in a request.

Records of a key go to one shard, in their order. A record has no headers: its data is a JSON object with the id, where
it is from, and the value as it is.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from itertools import groupby
from typing import Any

from tailrace.eventstore.errors import OperatorError, TransientError
from tailrace.eventstore.publishing.bridges.aws import client as aws
from tailrace.eventstore.publishing.bridges.bridge import TAKEN, Answer, Later, Message, Refused
from tailrace.eventstore.settings import KinesisDestinationSettings

_RECORDS_AT_ONCE, _BYTES_AT_ONCE = 500, 4 << 20  # what one request may hold
_NOT_AS_IT_IS = {"InvalidArgumentException", "ValidationException"}  # of a record that is alone


class KinesisBridge:
    """The streams of one region."""

    def __init__(self, settings: KinesisDestinationSettings) -> None:
        self._client = aws.client("kinesis", settings.region, settings.endpoint)

    def close(self) -> None:
        self._client.close()

    def check(self) -> None:
        try:
            self._client.list_streams(Limit=1)
        except aws.REFUSALS as error:
            raise _translated(error) from None

    def send(self, messages: Sequence[Message]) -> Sequence[Answer]:
        return [
            answer
            for stream, found in groupby(messages, key=lambda each: each.name)
            for request in aws.batches([*found], _size, _RECORDS_AT_ONCE, _BYTES_AT_ONCE)
            for answer in self._put(stream, request)
        ]

    def _put(self, stream: str, messages: Sequence[Message]) -> list[Answer]:
        records = [_record(each) for each in messages]
        try:
            found = self._client.put_records(StreamName=stream, Records=records)
        except aws.REFUSALS as error:
            if aws.code_of(error) not in _NOT_AS_IT_IS:
                raise _translated(error) from None
            if len(messages) > 1:  # one of them it is
                return [answer for each in messages for answer in self._put(stream, [each])]
            said = f"Kinesis did not take it: {aws.code_of(error)}"
            return [Refused(said, "raise the stream's maximum record size")]
        return [_answer(each) for each in found["Records"]]


def _record(message: Message) -> dict[str, Any]:
    """Source: the API's PutRecords. A partition key has 256 characters at most."""
    told = {
        "id": message.id,
        "topic": message.topic,
        "offset": message.place,
        "key": None if message.key is None else message.key.decode(),
        "headers": {name: value.decode() for name, value in message.headers},
    }
    begin = json.dumps(told, ensure_ascii=False).encode()[:-1]
    data = begin + b',"value":' + (message.value or b"null") + b"}"
    key = message.id.encode() if message.key is None else message.key
    group = hashlib.sha256(f"{message.topic}\n".encode() + key).hexdigest()
    return {"Data": data, "PartitionKey": group}


def _size(message: Message) -> int:
    return len(_record(message)["Data"])


def _answer(found: dict[str, Any]) -> Answer:
    code = found.get("ErrorCode")
    return Later(f"Kinesis did not take it: {code}") if code else TAKEN


def _translated(error: Exception) -> OperatorError | TransientError:
    return aws.translated(error, "Kinesis", "topic")
