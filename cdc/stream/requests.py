"""Requests of other processes to a source's capture (``tailrace.eventstore.catalog.requests``): to read topics again,
or to decode the frames of topics in quarantine."""

from __future__ import annotations

from collections.abc import Container

from tailrace.cdc.topics import Topics
from tailrace.eventstore.catalog.requests import Request, RequestState
from tailrace.eventstore.model.topic import TopicId
from tailrace.eventstore.store import Store

SNAPSHOT = "snapshot"
RETRY = "retry"
AGAIN = "tailrace source snapshot"


def is_waiting(store: Store, source: str) -> bool:
    """Whether there is a request that no session has taken up yet."""
    return any(
        request.state is RequestState.ASKED
        for kind in (SNAPSHOT, RETRY)
        for request in store.requests.list_open(source, kind)
    )


def topics_to_read(
    store: Store, source: str, topics: Topics, published: Container[int]
) -> tuple[list[TopicId], list[Request]]:
    """The topics to read again that are complete or in quarantine, and the requests to mark as running once these
    topics are suspended. A request for a table that cannot be read (``published``: oids of those that can) is answered
    at once, and the topic stays as it is."""
    waiting = [r for r in store.requests.list_open(source, SNAPSHOT) if r.state is RequestState.ASKED]
    readable = {topic for topic in topics.tables if topics.relid(topic) in published}
    unreadable = [request.id for request in waiting if request.topic not in readable]
    if unreadable:
        store.requests.answer(unreadable, RequestState.FAILED, "no table is published for it")
    waiting = [request for request in waiting if request.topic in readable]
    wanted = dict.fromkeys(request.topic for request in waiting)
    suspended = [t for t in wanted if topics.tables[t].complete_since is not None or t in topics.quarantined]
    return suspended, waiting


def topics_to_decode(store: Store, source: str, topics: Topics) -> list[TopicId]:
    """The topics to decode again: all that came for them since is stored. Other requests are answered."""
    found = []
    for request in store.requests.list_open(source, RETRY):
        entry = topics.quarantined.get(request.topic)
        if entry is None:
            store.requests.answer([request.id], *_answer_without_quarantine(store, request))
        elif not entry.keeps:
            detail = f"its changes could not be stored; read it again: {AGAIN} {request.topic.text}"
            store.requests.answer([request.id], RequestState.FAILED, detail)
        else:
            store.requests.answer([request.id], RequestState.RUNNING, "")
            found.append(request.topic)
    return list(dict.fromkeys(found))


def _answer_without_quarantine(store: Store, request: Request) -> tuple[RequestState, str]:
    since = store.topic(request.topic).complete_since
    if since is None:
        return RequestState.FAILED, "it is being read again from its table"
    done = request.state is RequestState.RUNNING
    return RequestState.DONE, f"complete since epoch {since}" if done else "it is not in quarantine"


def answer_retry(store: Store, topic: TopicId, error: str) -> None:
    """It could not be decoded again."""
    ids = [request.id for request in store.requests.list_open(topic.source, RETRY) if request.topic == topic]
    store.requests.answer(ids, RequestState.FAILED, error)


def rates(store: Store, source: str) -> dict[TopicId, int]:
    """Rows per second that requests allow."""
    return {
        request.topic: int(request.options["rows_per_second"])
        for request in store.requests.list_open(source, SNAPSHOT)
        if request.options.get("rows_per_second")
    }


def answer(store: Store, source: str) -> None:
    """Requests whose topic has been read."""
    for request in store.requests.list_open(source, SNAPSHOT):
        if request.state is not RequestState.RUNNING:
            continue
        info = store.topic(request.topic)
        if info.complete_since is not None:
            detail = f"complete since epoch {info.complete_since}"
            store.requests.answer([request.id], RequestState.DONE, detail)
