"""Every bridge passes the suite that is shipped for a user's own; and a bridge of one's own publishes."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import boto3
import pytest
import redis as redis_client
from pydantic import SecretStr

from examples.file_bridge import FileBridge
from tailrace.eventstore.errors import UsageError
from tailrace.eventstore.publishing.bridges.aws.kinesis import KinesisBridge
from tailrace.eventstore.publishing.bridges.aws.sqs import SqsBridge
from tailrace.eventstore.publishing.bridges.bridge import Bridge, Refused, Taken
from tailrace.eventstore.publishing.bridges.own import open_own
from tailrace.eventstore.publishing.bridges.redis_streams import RedisStreamsBridge
from tailrace.eventstore.publishing.bridges.webhook import WebhookBridge
from tailrace.eventstore.settings import (
    KinesisDestinationSettings,
    OwnDestinationSettings,
    RedisDestinationSettings,
    SqsDestinationSettings,
    WebhookDestinationSettings,
)
from tailrace.testing import Arrived, BridgeContract
from tests.eventstore.publishing.bridges.endpoint import SECRET, endpoint
from tests.eventstore.publishing.bridges.feeds import Feed, Received, commits, each_in_order, filled
from tests.fixtures.stores import StoreFactory, one_catalog
from tests.support import REPOSITORY
from tests.support.object_store import S3Server

REGION = "eu-central-1"


class TestFile(BridgeContract):
    """The example of a bridge of one's own."""

    @pytest.fixture(autouse=True)
    def place(self, tmp_path: Path) -> None:
        self.path = tmp_path / "lines.jsonl"

    def open(self) -> Bridge:
        return FileBridge({"path": str(self.path)})

    def received(self) -> Sequence[Arrived]:
        return [Arrived(each["id"], _bytes(each["value"])) for each in lines_of(self.path)]

    def open_unreachable(self) -> Bridge:
        return FileBridge({"path": str(self.path.parent / "nowhere" / "lines.jsonl")})


@pytest.mark.slow
class TestWebhook(BridgeContract):
    @pytest.fixture(autouse=True)
    def place(self) -> Iterator[None]:
        with endpoint() as self.hook:
            yield

    def open(self) -> Bridge:
        return self._bridge(self.hook.url)

    def received(self) -> Sequence[Arrived]:
        posted = [each for each, _ in self.hook.requests if each.method == "POST"]
        return [Arrived(each.headers["webhook-id"], each.body) for each in posted]

    def open_unreachable(self) -> Bridge:
        return self._bridge("http://127.0.0.1:1/hook")

    def _bridge(self, url: str) -> Bridge:
        return WebhookBridge(
            WebhookDestinationSettings(kind="webhook", url=SecretStr(url), secret=SecretStr(SECRET))
        )


@pytest.mark.slow
@pytest.mark.valkey
class TestRedis(BridgeContract):
    @pytest.fixture(autouse=True)
    def place(self, redis_url: str) -> None:
        self.url = redis_url

    def open(self) -> Bridge:
        return RedisStreamsBridge(RedisDestinationSettings(kind="redis", url=SecretStr(self.url)))

    def received(self) -> Sequence[Arrived]:
        with redis_client.Redis.from_url(self.url) as client:
            found = client.xrange(self.name)
        return [Arrived(fields[b"id"].decode(), fields.get(b"value")) for _, fields in found]

    def open_unreachable(self) -> Bridge:
        url = SecretStr("redis://127.0.0.1:1/0")
        return RedisStreamsBridge(RedisDestinationSettings(kind="redis", url=url))


@pytest.mark.slow
class TestSqs(BridgeContract):
    """A FIFO queue: its receivers see each key's messages in order, and once."""

    @pytest.fixture(autouse=True)
    def place(self, s3: S3Server) -> None:
        self.server, self.found = s3.endpoint, list[Arrived]()
        self.client = boto3.client("sqs", endpoint_url=s3.endpoint, region_name=REGION)
        made = self.client.create_queue(
            QueueName=f"q{secrets.token_hex(4)}.fifo", Attributes={"FifoQueue": "true"}
        )
        self.url = made["QueueUrl"]

    def open(self) -> Bridge:
        return self._bridge(self.server)

    def received(self) -> Sequence[Arrived]:
        while found := self._receive():
            self.found += [Arrived(_sqs_id(each), _sqs_value(each["Body"])) for each in found]
            for each in found:
                self.client.delete_message(QueueUrl=self.url, ReceiptHandle=each["ReceiptHandle"])
        return self.found

    def open_unreachable(self) -> Bridge:
        return self._bridge("http://127.0.0.1:1")

    def test_what_is_sent_again_is_there_once_and_what_is_too_large_is_refused(self) -> None:
        sent, large = self.message(), self.message(b"x" * (2 << 20), key=b"2")
        for _ in range(2):
            bridge = self.open()
            first, second = bridge.send([sent, large])
            bridge.close()
            assert first == Taken()
            assert isinstance(second, Refused)
        assert [each.id for each in self.received()] == [sent.id]

    def _receive(self) -> list[dict[str, Any]]:
        answer = self.client.receive_message(
            QueueUrl=self.url, MaxNumberOfMessages=10, MessageAttributeNames=["All"]
        )
        return list(answer.get("Messages", ()))

    def _bridge(self, server: str) -> Bridge:
        return SqsBridge(
            SqsDestinationSettings(kind="sqs", url=SecretStr(self.url), region=REGION, endpoint=server)
        )


class TestKinesis(BridgeContract):
    """A stream of two shards."""

    @pytest.fixture(autouse=True)
    def place(self, s3: S3Server) -> None:
        self.server, self.name = s3.endpoint, f"s{secrets.token_hex(4)}"
        self.client = boto3.client("kinesis", endpoint_url=s3.endpoint, region_name=REGION)
        self.client.create_stream(StreamName=self.name, ShardCount=2)

    def open(self) -> Bridge:
        return self._bridge(self.server)

    def received(self) -> Sequence[Arrived]:
        return [_arrived(record) for each in self._shards() for record in self._records(each)]

    def open_unreachable(self) -> Bridge:
        return self._bridge("http://127.0.0.1:1")

    def test_what_is_too_large_is_refused_and_the_others_are_taken(self) -> None:
        sent = [self.message(), self.message(b"1" * (11 << 20), key=b"2"), self.message(key=b"3")]
        bridge = self.open()
        first, second, third = bridge.send(sent)
        bridge.close()
        assert first == third == Taken()
        assert isinstance(second, Refused)
        assert {each.id for each in self.received()} == {sent[0].id, sent[2].id}

    def _shards(self) -> list[str]:
        return [str(each["ShardId"]) for each in self.client.list_shards(StreamName=self.name)["Shards"]]

    def _records(self, shard: str) -> Iterator[dict[str, Any]]:
        at = self.client.get_shard_iterator(
            StreamName=self.name, ShardId=shard, ShardIteratorType="TRIM_HORIZON"
        )["ShardIterator"]
        while found := (answer := self.client.get_records(ShardIterator=at))["Records"]:
            yield from found
            at = answer["NextShardIterator"]

    def _bridge(self, server: str) -> Bridge:
        return KinesisBridge(KinesisDestinationSettings(kind="kinesis", region=REGION, endpoint=server))


def _arrived(record: dict[str, Any]) -> Arrived:
    data = bytes(record["Data"])
    value = data[data.index(b',"value":') + len(b',"value":') : -1]
    return Arrived(json.loads(data)["id"], None if value == b"null" else value)


def _sqs_id(message: dict[str, Any]) -> str:
    return str(message["MessageAttributes"]["tailrace-id"]["StringValue"])


def _sqs_value(body: str) -> bytes | None:
    return None if body == "null" else body.encode()


@one_catalog
def test_a_bridge_of_ones_own_is_published_to_and_has_forty_lines_at_most(
    new_store: StoreFactory, tmp_path: Path
) -> None:
    store = filled(new_store, 2)
    path = tmp_path / "lines.jsonl"
    feed = Feed(
        {
            "kind": "own",
            "bridge": "examples.file_bridge:FileBridge",
            "folder": str(REPOSITORY),
            "options": {"path": str(path)},
        }
    )
    feed.publisher(store).run_once()
    with path.open("ab") as torn:
        torn.write(b'{"id": "cut o')
    feed.publisher(store).run_once()
    found = [
        Received(each["id"], json.loads(each["key"]), json.loads(each["value"])) for each in lines_of(path)
    ]
    assert commits(found) == each_in_order(2)
    source = (REPOSITORY / "examples" / "file_bridge.py").read_text()
    assert len(source.partition("class FileBridge")[2].splitlines()) <= 40


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("nowhere.bridges:Mine", "there is no module nowhere in"),
        ("examples.file_bridge:Mine", "Mine is no class"),
        ("examples.file_bridge:Path", "Path has no send, check, close"),
    ],
)
def test_a_class_that_is_no_bridge_is_refused(name: str, said: str) -> None:
    settings = OwnDestinationSettings(kind="own", bridge=name, folder=REPOSITORY)
    with pytest.raises(UsageError, match=said):
        open_own(settings)


def lines_of(path: Path) -> list[dict[str, Any]]:
    """Of a line that was cut off nothing is known."""
    texts = path.read_text().splitlines() if path.exists() else []
    return [json.loads(each) for each in texts if each.endswith("}")]


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else text.encode()
