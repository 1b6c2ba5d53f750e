"""Records reach a webhook at least once, in the order of their key, signed; what it refuses waits."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tailrace.eventstore.errors import Fenced, OperatorError, TransientError
from tailrace.eventstore.failpoints import VARIABLE
from tailrace.eventstore.publishing.bridges.webhook import answer_to
from tests.eventstore.publishing.bridges.endpoint import KEY, SECRET, Answer, Endpoint, Request, endpoint
from tests.eventstore.publishing.bridges.feeds import (
    NAME,
    Feed,
    commits,
    each_in_order,
    filled,
    require_order,
)
from tests.eventstore.shop import batch, writer
from tests.fixtures.stores import StoreFactory, one_catalog

OK: Answer = (204, {}, b"")


@pytest.fixture
def hook() -> Iterator[Endpoint]:
    with endpoint() as found:
        yield found


def feed(hook: Endpoint, **publication: Any) -> Feed:
    return Feed({"kind": "webhook", "url": hook.url, "secret": SECRET}, publication)


def once_each(answers: list[Answer]) -> Any:
    """The first requests are answered with these."""
    left, lock = list(answers), threading.Lock()

    def answer(_: Request) -> Answer:
        with lock:
            return left.pop(0) if left else OK

    return answer


def test_each_record_is_posted_signed_and_in_the_order_of_its_key(
    hook: Endpoint, new_store: StoreFactory
) -> None:
    store = filled(new_store)
    to = store.take_over("shop")
    to.append(batch(700, [("d", 1)]))
    wanted = feed(hook)
    position = wanted.publisher(store).run_once()
    assert position.epoch == 7
    found = hook.taken()
    assert commits(found) == {**each_in_order(), 1: [*each_in_order()[1], 700]}
    assert len({each.id for each in found}) == len(found) == 19  # no tombstone
    request, _ = hook.requests[0]
    assert all(each.is_signed_by(KEY) and not each.is_signed_by(KEY[:-1]) for each, _ in hook.requests)
    assert (request.headers["tailrace-topic"], request.headers["content-type"]) == (
        "shop.public.orders",
        "application/json",
    )
    assert wanted.publisher(store).run_once().epoch == 7
    assert len(hook.requests) == 19


@pytest.mark.slow
@one_catalog
def test_what_may_be_tried_again_is_until_it_is_taken_and_later_records_of_its_key_wait(
    hook: Endpoint, new_store: StoreFactory
) -> None:
    store = filled(new_store, 3)
    hook.answer = once_each(
        [
            (503, {"retry-after": "0"}, b"busy"),
            OK,
            (429, {"retry-after": "1"}, b""),
            OK,
            (500, {}, b"\xff" * 10**6),
        ]
    )
    notes: list[str] = []
    feed(hook).publisher(store, note=notes.append).run_once()
    assert commits(hook.taken()) == each_in_order(3)
    assert len(hook.taken()) == 9
    assert any("it answered 429; trying again in 1 s" in each for each in notes)


@one_catalog
def test_a_key_with_a_record_that_is_refused_waits_and_the_others_go_on(
    hook: Endpoint, new_store: StoreFactory
) -> None:
    store = filled(new_store, 3)
    hook.answer = lambda request: (422, {}, b"no") if request.key == {"id": 2} else OK
    notes: list[str] = []
    feed(hook).publisher(store, note=notes.append).run_once()
    everything = each_in_order(3)
    assert commits(hook.taken()) == {1: everything[1], 3: everything[3]}
    assert len(hook.requests) == 7
    hook.answer = lambda _: OK
    feed(hook).publisher(store).run_once()
    assert commits(hook.taken()) == everything
    assert len(hook.taken()) == 9


@one_catalog
def test_of_many_records_that_are_refused_each_is_sent_once(hook: Endpoint, new_store: StoreFactory) -> None:
    store = new_store()
    writer(store).append(batch(100, [("c", key) for key in range(130)]))
    hook.answer = lambda request: (422, {}, b"no") if request.key["id"] % 2 else OK
    feed(hook).publisher(store).run_once()
    assert len(hook.requests) == 130
    hook.answer = lambda _: OK
    feed(hook).publisher(store).run_once()
    assert commits(hook.taken()) == {key: [100] for key in range(130)}
    assert len(hook.requests) == 195


@one_catalog
@pytest.mark.parametrize(
    ("status", "said"), [(410, "it wants nothing more"), (401, "compare `secret`"), (302, "do not follow")]
)
def test_an_answer_that_concerns_every_record_stops_the_publication_and_nothing_is_parked(
    hook: Endpoint, new_store: StoreFactory, status: int, said: str
) -> None:
    store = filled(new_store, 1)
    hook.answer = lambda _: (status, {"location": hook.url}, b"")
    with pytest.raises(OperatorError, match=f"it answered {status}") as caught:
        feed(hook).publisher(store).run_once()
    assert said in caught.value.hint
    hook.answer = lambda _: OK
    feed(hook).publisher(store).run_once()
    assert commits(hook.taken()) == each_in_order(1)


@pytest.mark.parametrize("after", ["soon", "-1", "1" * 5000, "Wed, 99 Foo 2026", "9" * 90, "٣"])
def test_any_retry_after_of_a_receiver_is_bounded(after: str) -> None:
    answer = answer_to(503, after, "")
    assert 0 <= getattr(answer, "after_seconds") <= 3600  # noqa: B009


@one_catalog
def test_an_endpoint_out_of_reach_is_a_transient_error_and_nothing_is_lost(new_store: StoreFactory) -> None:
    store = filled(new_store, 1)
    with endpoint() as gone:
        pass
    with pytest.raises(TransientError, match="it cannot be reached"):
        feed(gone).publisher(store, patience_seconds=0.1).run_once()


@one_catalog
def test_a_second_publisher_fences_the_first(hook: Endpoint, new_store: StoreFactory) -> None:
    store = filled(new_store, 1)
    begun, stop = threading.Event(), threading.Event()
    with ThreadPoolExecutor() as pool:
        running = pool.submit(feed(hook).publisher(store, report=lambda _: begun.set(), stop=stop).run)
        assert begun.wait(60)
        feed(hook).publisher(store).run_once()
        store.take_over("shop").append(batch(200, [("u", key) for key in (1, 2, 3)]))
        with pytest.raises(Fenced, match="another process publishes it now"):
            running.result(60)
    feed(hook).publisher(store).run_once()
    assert commits(hook.taken()) == each_in_order(2)


@one_catalog
@pytest.mark.parametrize(
    "step",
    ["batch_sent:2"]
    + [
        pytest.param(each, marks=pytest.mark.slow)
        for each in ("portion_read", "portion_sent:2", "publication_committing:2", "portion_published:2")
    ],
)
def test_a_publisher_killed_at_any_step_sends_again_with_the_same_ids_and_loses_nothing(
    hook: Endpoint, new_store: StoreFactory, store_dir: Path, step: str
) -> None:
    filled(new_store)
    project = feed(hook, transaction_bytes=1).project(store_dir)
    killed = project.run("publish", NAME, "--once", environment={VARIABLE: step})
    assert killed.code == -9, killed.err
    project.ok("publish", NAME, "--once")
    assert commits(hook.taken()) == each_in_order()
    require_order(hook.taken())


@pytest.mark.slow
@one_catalog
def test_status_and_doctor_say_how_it_is_and_no_secret(
    hook: Endpoint, new_store: StoreFactory, store_dir: Path
) -> None:
    writer(new_store()).append(batch(100, [("c", 1), ("c", 2)]))
    hook.answer = lambda request: (
        (400, {}, b"") if request.method == "POST" and request.key["id"] == 1 else OK
    )
    project = feed(hook).project(store_dir)
    told = (store_dir / "tailrace.toml").read_text()
    project.configure(told + "[sources.shop]\ndsn = 'host=127.0.0.1 port=1'\n")
    published = project.ok("publish", NAME, "--once")
    shown = project.ok("status")
    asked = project.run("doctor")
    assert "its key waits" in published.err
    assert NAME in shown.out and "it answered 400" in shown.out
    assert "1 key of it waits" in asked.out or "1 key of it wait" in asked.out
    for done in (published, shown, asked):
        assert "t0ken" not in done.out + done.err and SECRET not in done.out + done.err
    assert [request.method for request, _ in hook.requests].count("HEAD") == 1
