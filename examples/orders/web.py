"""Orders over HTTP, whose clients read what they wrote: an application of FastAPI.

    POST /orders/7?total=10   places an order; the answer has the position of the write: Tailrace-Position
    GET  /orders/7            its state as the log has it; with a Tailrace-Position, not before the log has come there

Without the header the answer may be some milliseconds old; with it it is at least what the client has seen. A read that
waits in vain is 503, and may be asked again.
"""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from typing import Annotated

from fastapi import FastAPI, Header, HTTPException, Response
from sqlalchemy.ext.asyncio import AsyncEngine

from examples.orders.order import Place, orders
from tailrace import NotYet, Store, aio, state_of

POSITION = "tailrace-position"


def application(engine: AsyncEngine, store: Store, source: str) -> FastAPI:
    """``engine`` is of the database that orders live in, ``store`` the log that follows it, as ``source``."""
    app = FastAPI(title="Orders")

    @app.post("/orders/{order}", status_code=201)
    async def place(order: str, total: Decimal, response: Response) -> dict[str, str]:
        done = await aio.handle(engine, orders, order, Place(order, total, datetime.now(UTC)))
        response.headers[POSITION] = done.position
        return {"order": order}

    @app.get("/orders/{order}")
    def show(order: str, position: Annotated[str | None, Header(alias=POSITION)] = None) -> dict[str, str]:
        # Not a coroutine: FastAPI runs it in a thread, where it may wait.
        try:
            if position is not None:
                store.wait_for(position, timeout=5)
        except NotYet as late:
            raise HTTPException(503, str(late)) from None
        state = state_of(store.streams(source), orders, order).state
        if not state.id:
            raise HTTPException(404, f"there is no order {order}")
        return {"order": order, "total": str(state.total), "closed": state.closed}

    return app
