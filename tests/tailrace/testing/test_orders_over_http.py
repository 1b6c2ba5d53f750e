"""``examples/orders/web.py``: a client reads what it wrote, from a log that follows."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from sqlalchemy import make_url
from sqlalchemy.ext.asyncio import create_async_engine

from examples.orders.web import application
from tailrace.eventstore.streams.database.event_tables import install
from tailrace.testing.plugin import SOURCE, FollowingLog


@pytest.fixture
def log(database: str, tmp_path: Path) -> Iterator[FollowingLog]:
    install(database)
    following = FollowingLog(database, tmp_path)
    following.catch_up()
    yield following
    following.close()


def test_a_client_reads_what_it_wrote(log: FollowingLog) -> None:
    async def work() -> None:
        engine = create_async_engine(make_url(log.dsn).set(drivername="postgresql+psycopg"))
        transport = httpx.ASGITransport(application(engine, log.store, SOURCE))
        async with httpx.AsyncClient(transport=transport, base_url="http://orders") as client:
            for order in map(str, range(10)):
                placed = await client.post(f"/orders/{order}", params={"total": "10.50"})
                at = placed.headers["tailrace-position"]
                shown = await client.get(f"/orders/{order}", headers={"tailrace-position": at})
                assert (placed.status_code, shown.status_code) == (201, 200)
                assert shown.json() == {"order": order, "total": "10.50", "closed": ""}
            assert (await client.get("/orders/none")).status_code == 404
            assert (await client.get("/lunch")).status_code == 404
        await engine.dispose()

    asyncio.run(work())
