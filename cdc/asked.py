"""What other processes asked of a source's capture (``eventstore.requests``): to read topics again."""

from __future__ import annotations

from cdc.directory import Topics
from eventstore.log import Store
from eventstore.model import TopicId
from eventstore.requests import Request, RequestState

SNAPSHOT = "snapshot"


def is_waiting(store: Store, source: str) -> bool:
    """Whether somebody asks for something that no session has taken up yet."""
    return any(request.state is RequestState.ASKED for request in store.requests.open(source, SNAPSHOT))


def to_read_again(store: Store, source: str, topics: Topics) -> tuple[list[TopicId], list[Request]]:
    """The complete topics that are asked for, and the requests to mark as running once these are suspended. A request
    that names no table of the source is answered at once."""
    asked = [r for r in store.requests.open(source, SNAPSHOT) if r.state is RequestState.ASKED]
    foreign = [request.id for request in asked if request.topic not in topics.tables]
    if foreign:
        store.requests.answer(foreign, RequestState.FAILED, "it is no table of this source")
    asked = [request for request in asked if request.topic in topics.tables]
    complete = [request.topic for request in asked if topics.tables[request.topic].complete_since is not None]
    return list(dict.fromkeys(complete)), asked


def rates(store: Store, source: str) -> dict[TopicId, int]:
    """Rows per second that requests allow."""
    return {
        request.topic: int(request.options["rows_per_second"])
        for request in store.requests.open(source, SNAPSHOT)
        if request.options.get("rows_per_second")
    }


def answer(store: Store, source: str) -> None:
    """Requests whose topic has been read."""
    for request in store.requests.open(source, SNAPSHOT):
        if request.state is not RequestState.RUNNING:
            continue
        info = store.topic(request.topic)
        if info.complete_since is not None:
            detail = f"complete since epoch {info.complete_since}"
            store.requests.answer([request.id], RequestState.DONE, detail)
