"""Uploads that ask for server-side encryption, by AWS' own client: Arrow's cannot send the headers.

What the server did is in its answer, so an upload that was not encrypted as asked for is removed and refused. Each is
one request: our files are far below the 5 GiB that one may have.

Source: <https://docs.aws.amazon.com/AmazonS3/latest/API/API_PutObject.html>, "x-amz-server-side-encryption".
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, BinaryIO

from tailrace.eventstore.errors import OperatorError, optional_part
from tailrace.eventstore.storage import s3_errors

if TYPE_CHECKING:
    from botocore.exceptions import ClientError

ATTEMPTS = 4
CONNECT_SECONDS = 5.0
_WORD = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")


@dataclass(frozen=True, slots=True)
class Encryption:
    """What uploads ask for. ``method``: ``AES256``, ``aws:kms`` or ``aws:kms:dsse``; ``kms_key``: id or ARN, None = the
    account's key for S3."""

    method: str
    kms_key: str | None = None

    @property
    def headers(self) -> dict[str, str]:
        key = {} if self.kms_key is None else {"SSEKMSKeyId": self.kms_key}
        return {"ServerSideEncryption": self.method, **key}


@dataclass(frozen=True, slots=True)
class EncryptedUploads:
    """Uploads to one server (None = AWS' own, and the environment's region)."""

    encryption: Encryption
    endpoint: str | None
    region: str | None

    def put(self, bucket: str, key: str, content: BinaryIO | bytes, place: str) -> None:
        """Make an object. Raises OperatorError, also when the server has not encrypted it, and TransientError."""
        client = _client(self.endpoint, self.region, os.getpid())
        from botocore.exceptions import BotoCoreError, ClientError

        try:
            answer = client.put_object(Bucket=bucket, Key=key, Body=content, **self.encryption.headers)
            if answer.get("ServerSideEncryption") != self.encryption.method:
                client.delete_object(Bucket=bucket, Key=key)
                raise OperatorError(
                    f"{place} would not have been encrypted: the object store ignores {self.encryption.method}",
                    hint="unset store.s3.encryption, and set the bucket's default encryption if it has one",
                )
        except ClientError as error:
            raise s3_errors.translate(_arrow_text(error), place) from None
        except BotoCoreError as error:
            raise s3_errors.translate(str(error), place) from None


def _arrow_text(error: ClientError) -> str:
    """``NoSuchBucket`` -> ``AWS Error NO_SUCH_BUCKET (HTTP status 404) during PutObject operation: …``"""
    answer: Any = error.response
    code = _WORD.sub("_", str(answer["Error"].get("Code", "unknown"))).replace(".", "_").upper()
    status = answer.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    said = answer["Error"].get("Message", "")
    return f"AWS Error {code} (HTTP status {status}) during {error.operation_name} operation: {said}"


@lru_cache(maxsize=8)
def _client(endpoint: str | None, region: str | None, _process: int) -> Any:
    """One for each process: a fork must not share connections."""
    with optional_part("store.s3.encryption", "s3"):
        import boto3
        from botocore.config import Config
    config = Config(
        connect_timeout=CONNECT_SECONDS, retries={"total_max_attempts": ATTEMPTS, "mode": "standard"}
    )
    return boto3.session.Session().client("s3", endpoint_url=endpoint, region_name=region, config=config)
