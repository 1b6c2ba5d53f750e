"""What is said of every event of a piece of work: who acts, for whom, and because of what.

    with context(actor="u7", tenant="acme", traceparent=request.headers["traceparent"]):
        handle(pool, orders, "42", Place(…))

It is kept in a context variable, so it follows the work through calls, tasks and what asyncio runs in threads, and no
function hands it on. https://docs.python.org/3/library/contextvars.html
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from types import MappingProxyType
from typing import Any, Final, Protocol
from uuid import UUID

from tailrace.eventstore.errors import UsageError
from tailrace.eventstore.streams.models.codec import has_nul

_NOTHING: Final[Mapping[str, Any]] = MappingProxyType({})
_current: ContextVar[Mapping[str, Any]] = ContextVar("tailrace_metadata", default=_NOTHING)


class Cause(Protocol):
    """An event that led to others: ``Recorded``, or what a consumer is given."""

    @property
    def event_id(self) -> UUID: ...

    @property
    def metadata(self) -> Mapping[str, Any]: ...


@contextmanager
def context(cause: Cause | None = None, **metadata: Any) -> Iterator[None]:
    """Events that are appended inside have this ``metadata`` (JSON), beside that of contexts around it; None leaves a
    name out. By convention: ``actor``, ``tenant``, ``correlation_id``, ``causation_id``, ``traceparent``.

    A ``cause`` gives the last but one: its id, and its correlation id, or its id where it has none. Raises UsageError
    for what is not JSON.
    """
    merged = {**_current.get(), **(_NOTHING if cause is None else _because_of(cause)), **metadata}
    kept = {name: value for name, value in merged.items() if value is not None}
    metadata_json(kept)
    token = _current.set(MappingProxyType(kept))
    try:
        yield
    finally:
        _current.reset(token)


def _because_of(cause: Cause) -> Mapping[str, Any]:
    id = str(cause.event_id)
    return {"causation_id": id, "correlation_id": cause.metadata.get("correlation_id", id)}


def metadata_json(given: Mapping[str, Any] | None) -> str:
    """What is stored with events that are appended now: ``given``, over the context's. Raises UsageError for what
    is not JSON."""
    around = _current.get()
    metadata = {**around, **given} if around and given else given or around
    if not metadata:
        return "{}"
    try:
        text = json.dumps(dict(metadata), allow_nan=False)
    except (TypeError, ValueError) as error:
        raise UsageError(f"the metadata is not JSON: {error}", hint="use plain JSON values") from None
    if has_nul(dict(metadata)):
        raise UsageError("the metadata holds a NUL character", hint="Postgres cannot store it")
    return text
