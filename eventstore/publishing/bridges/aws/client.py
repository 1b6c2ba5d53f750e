"""What the bridges to Amazon's services share: a client, its errors as ours, and batches of what a request takes. Who
we are is said by the environment, as AWS' SDK reads it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from tailrace.eventstore.errors import OperatorError, TransientError, optional_part
from tailrace.eventstore.publishing.bridges.certificates import certificate_error

with optional_part("SQS and Kinesis", "aws"):
    import boto3
    from botocore import config, exceptions

Item = TypeVar("Item")
_SECONDS = 15.0
_AGAIN = {
    "LimitExceededException", "OverLimit", "ProvisionedThroughputExceededException", "RequestThrottled",
    "ServiceUnavailable", "Throttling", "ThrottlingException",
}  # fmt: skip
REFUSALS = (exceptions.ClientError, exceptions.BotoCoreError)


def client(service: str, region: str | None, endpoint: str | None) -> Any:
    """Raises OperatorError when it is not known which region is meant."""
    limits = config.Config(connect_timeout=_SECONDS, read_timeout=_SECONDS, retries={"total_max_attempts": 1})
    try:
        return boto3.client(service, region_name=region, endpoint_url=endpoint, config=limits)
    except exceptions.BotoCoreError as error:
        raise OperatorError(f"{service} cannot be asked: {error}", hint="set `region`") from None


def batches(
    items: Sequence[Item], size: Callable[[Item], int], most: int, bytes_max: int
) -> Iterator[list[Item]]:
    """As few as hold them, with so many items and bytes at most; an item that alone is larger is alone."""
    held: list[Item] = []
    held_bytes = 0
    for each in items:
        own = size(each)
        if held and (len(held) == most or held_bytes + own > bytes_max):
            yield held
            held, held_bytes = [], 0
        held.append(each)
        held_bytes += own
    if held:
        yield held


def code_of(error: Exception) -> str:
    """AWS' code of a refusal, "" for what is none."""
    if not isinstance(error, exceptions.ClientError):
        return ""
    return str(error.response.get("Error", {}).get("Code", "")).rpartition(".")[2]


def translated(error: Exception, service: str, setting: str) -> OperatorError | TransientError:
    """One of ``REFUSALS``; ``setting`` names what may be wrong. AWS' codes name no values."""
    if isinstance(error, exceptions.NoCredentialsError):
        return OperatorError(f"{service}: {error}", hint="give credentials as AWS' SDK reads them")
    if wrong := certificate_error(error, service, "AWS_CA_BUNDLE"):
        return wrong
    if not isinstance(error, exceptions.ClientError):
        return TransientError(
            f"{service} is out of reach: {type(error).__name__}", hint=f"look at `{setting}` and the network"
        )
    status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 500)
    if status >= 500 or code_of(error) in _AGAIN:
        return TransientError(f"{service} does not take it now: {code_of(error)}", hint="wait")
    return OperatorError(
        f"{service} refuses us: {code_of(error)}", hint=f"correct `{setting}`, or the rights of its user"
    )
