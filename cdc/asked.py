"""What other processes asked of a source's capture (``eventstore.requests``): to read topics again."""

from __future__ import annotations

from collections.abc import Container

from cdc.directory import Topics
from eventstore.log import Store
from eventstore.model import TopicId
from eventstore.requests import Request, RequestState

SNAPSHOT = "snapshot"


def is_waiting(store: Store, source: str) -> bool:
    """Whether somebody asks for something that no session has taken up yet."""
    return any(request.state is RequestState.ASKED for request in store.requests.open(source, SNAPSHOT))


def to_read_again(
    store: Store, source: str, topics: Topics, published: Container[int]
) -> tuple[list[TopicId], list[Request]]:
    """The complete topics that are asked for, and the requests to mark as running once these are suspended. A request
    for what cannot be read (``published``: oids of the tables that can) is answered at once, and spoils nothing."""
    asked = [r for r in store.requests.open(source, SNAPSHOT) if r.state is RequestState.ASKED]
    readable = {topic for topic in topics.tables if topics.relid(topic) in published}
    unreadable = [request.id for request in asked if request.topic not in readable]
    if unreadable:
        store.requests.answer(unreadable, RequestState.FAILED, "no table is published for it")
    asked = [request for request in asked if request.topic in readable]
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
