"""Orders over HTTP, whose clients read what they wrote: a plain ASGI application, for any server or framework.

    POST /orders/7?total=10   places an order; the answer has the position of the write: Tailrace-Position
    GET  /orders/7            its state as the log has it; with a Tailrace-Position, not before the log has come there

Without the header the answer may be some milliseconds old; with it it is at least what the client has seen. A read that
waits in vain is 503, and may be asked again.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, MutableMapping
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, TypeAlias
from urllib.parse import parse_qs

from sqlalchemy.ext.asyncio import AsyncEngine

from examples.orders.order import Place, orders
from tailrace import NotYet, Store, aio, state_of

Message: TypeAlias = MutableMapping[str, Any]
POSITION = b"tailrace-position"


class Orders:
    """``engine`` is of the database that orders live in, ``store`` the log that follows it, as ``source``."""

    def __init__(self, engine: AsyncEngine, store: Store, source: str) -> None:
        self._engine, self._store, self._source = engine, store, source

    async def __call__(
        self,
        scope: MutableMapping[str, Any],
        receive: Callable[[], Awaitable[Message]],
        send: Callable[[Message], Awaitable[None]],
    ) -> None:
        folder, _, order = scope["path"].strip("/").partition("/")
        if scope["type"] != "http" or folder != "orders" or not order:
            await answer(send, 404, {"error": "no such page"})
        elif scope["method"] == "POST":
            total = Decimal(parse_qs(scope["query_string"].decode())["total"][0])
            await self._place(order, total, send)
        else:
            await self._show(order, dict(scope["headers"]).get(POSITION), send)

    async def _place(self, order: str, total: Decimal, send: Callable[[Message], Awaitable[None]]) -> None:
        done = await aio.handle(self._engine, orders, order, Place(order, total, datetime.now(UTC)))
        await answer(send, 201, {"order": order}, position=done.position)

    async def _show(
        self, order: str, position: bytes | None, send: Callable[[Message], Awaitable[None]]
    ) -> None:
        try:
            state = await asyncio.to_thread(self._state, order, position)
        except NotYet as late:
            await answer(send, 503, {"error": str(late)})
        else:
            found = {"order": order, "total": str(state.total), "closed": state.closed}
            await answer(send, 200 if state.id else 404, found)

    def _state(self, order: str, position: bytes | None) -> Any:
        if position is not None:
            self._store.wait_for(position.decode(), timeout=5)
        return state_of(self._store.streams(self._source), orders, order).state


async def answer(
    send: Callable[[Message], Awaitable[None]], status: int, content: object, position: str | None = None
) -> None:
    headers = [(b"content-type", b"application/json")]
    if position is not None:
        headers.append((POSITION, position.encode()))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": json.dumps(content).encode()})
