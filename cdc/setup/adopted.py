"""A source that was taken over from Debezium and not confirmed yet: its slot stays where Debezium left it, so that the
connector can be started again. An open request in the catalog says so; nothing else does."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

from tailrace.eventstore.catalog.requests import Request, RequestState
from tailrace.eventstore.errors import IntegrityError
from tailrace.eventstore.model.info import SourceState
from tailrace.eventstore.model.topic import TopicId
from tailrace.eventstore.store import Store

ADOPT = "adopt"
_LSN_END = 1 << 63


@dataclass(frozen=True, slots=True)
class Adoption:
    """``lsn``: up to where the slot was confirmed when it was taken over. ``cluster`` and ``position``: of Kafka, as
    the source was read before."""

    slot: str
    publication: str
    lsn: int
    cluster: str
    position: int
    request: int = 0

    @classmethod
    def of(cls, request: Request) -> Self:
        """Raises IntegrityError for options that ``ask`` did not write."""
        found: dict[str, Any] = {name: request.options.get(name) for name in _TEXTS + _NUMBERS}
        texts = all(isinstance(found[name], str) and len(found[name]) < 256 for name in _TEXTS)
        numbers = all(type(found[name]) is int and 0 <= found[name] < _LSN_END for name in _NUMBERS)
        if not (texts and numbers):
            raise IntegrityError(
                f"request {request.id} in the catalog is not one that Tailrace wrote",
                hint="restore the catalog from a backup",
            )
        return cls(**found, request=request.id)


_TEXTS, _NUMBERS = ("slot", "publication", "cluster"), ("lsn", "position")


def ask(store: Store, topic: TopicId, adoption: Adoption) -> Adoption:
    """Say that a source is about to be taken over; ``topic`` is any of it. What was said before and came to nothing is
    taken back."""
    for request in store.requests.list_open(topic.source, ADOPT):
        store.requests.answer([request.id], RequestState.FAILED, "it was begun again")
    values = {name: getattr(adoption, name) for name in _TEXTS + _NUMBERS}
    (request,) = store.requests.ask(ADOPT, [topic], **values)
    return Adoption.of(request)


def unconfirmed(store: Store, state: SourceState) -> Adoption | None:
    """The source's adoption, when it is in the log and not confirmed."""
    found = [Adoption.of(each) for each in store.requests.list_open(state.name, ADOPT)]
    return next((each for each in found if state.system_id != each.cluster), None)


def end(store: Store, adoption: Adoption, *, confirmed: bool) -> None:
    state = RequestState.DONE if confirmed else RequestState.FAILED
    store.requests.answer([adoption.request], state, "confirmed" if confirmed else "taken back")
