"""What is said around a piece of work is stored with each of its events, and with no others."""

from __future__ import annotations

import asyncio
from decimal import Decimal
from typing import Any

import pytest

from tailrace.eventstore.errors import UsageError
from tailrace.eventstore.streams import AppendTo, Stream, append, append_all, context, handle, load
from tailrace.testing import MemoryStreams
from tests.eventstore.streams.bank import Deposit, Deposited, account

ONE = Deposited(amount=Decimal(1))


def told(streams: MemoryStreams, id: str = "a") -> list[dict[str, Any]]:
    return [each.metadata for each in load(streams, Stream("account", id))]


def test_every_way_to_append_keeps_it() -> None:
    streams = MemoryStreams()
    with context(actor="u7"):
        append(streams, Stream("account", "a"), [ONE])
        append_all(streams, [AppendTo(Stream("account", "a"), [ONE])])
        handle(streams, account, "a", Deposit(1))
    append(streams, Stream("account", "a"), [ONE])
    assert told(streams) == [{"actor": "u7"}] * 3 + [{}]


def test_contexts_nest_and_what_is_given_comes_on_top() -> None:
    streams = MemoryStreams()
    with context(actor="u7", tenant="acme", reason="x"):
        with context(actor="u8", reason=None, more={"deep": [1]}):
            append(streams, Stream("account", "a"), [ONE], metadata={"tenant": "other"})
        append(streams, Stream("account", "a"), [ONE])
    assert told(streams) == [
        {"actor": "u8", "tenant": "other", "more": {"deep": [1]}},
        {"actor": "u7", "tenant": "acme", "reason": "x"},
    ]


def test_a_cause_is_named_and_the_whole_chain_has_its_first_id() -> None:
    streams = MemoryStreams()
    append(streams, Stream("account", "a"), [ONE])
    for _ in range(2):
        *_, last = load(streams, Stream("account", "a"))
        with context(last):
            append(streams, Stream("account", "a"), [ONE])
    first, second, _ = load(streams, Stream("account", "a"))
    root = str(first.event_id)
    assert told(streams)[1:] == [
        {"causation_id": root, "correlation_id": root},
        {"causation_id": str(second.event_id), "correlation_id": root},
    ]


def test_tasks_and_their_threads_have_their_own() -> None:
    streams = MemoryStreams()

    async def work(name: str) -> None:
        with context(actor=name):
            await asyncio.sleep(0.01)
            await asyncio.to_thread(append, streams, Stream("account", name), [ONE])

    async def both() -> None:
        await asyncio.gather(work("a"), work("b"))

    asyncio.run(both())
    assert (told(streams, "a"), told(streams, "b")) == ([{"actor": "a"}], [{"actor": "b"}])


@pytest.mark.parametrize("wrong", [object(), float("nan"), "a\0b"])
def test_what_is_not_json_is_refused_when_it_is_said(wrong: object) -> None:
    with pytest.raises(UsageError, match="the metadata"), context(actor=wrong):
        pytest.fail("it was let in")
