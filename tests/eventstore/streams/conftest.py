"""What keeps streams: the database on connections of both libraries, and the memory that tests get."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest
from sqlalchemy import create_engine

from tailrace.eventstore.model.event_schema import schema_in_use
from tailrace.eventstore.streams.database.event_tables import install, upgrade
from tailrace.eventstore.streams.database.source import AnyConnection
from tailrace.testing import MemoryStreams


@pytest.fixture(
    params=["memory", "psycopg", "another schema", pytest.param("SQLAlchemy", marks=pytest.mark.slow)]
)
def connection(request: pytest.FixtureRequest) -> Iterator[AnyConnection]:
    if request.param == "memory":
        yield MemoryStreams()
        return
    dsn = request.getfixturevalue("database")
    install(dsn)
    if request.param == "psycopg":
        with psycopg.connect(dsn) as opened:
            yield opened
    elif request.param == "another schema":
        with schema_in_use("kept_apart"), psycopg.connect(dsn) as opened:
            upgrade(opened)
            yield opened
    else:
        engine = create_engine(dsn.replace("postgresql://", "postgresql+psycopg://"))
        with engine.begin() as begun:
            yield begun
        engine.dispose()
