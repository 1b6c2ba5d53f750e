"""Row-level security on the tables of events, as the manual shows it: a tenant loads and decides on its own events."""

from __future__ import annotations

import re
from collections.abc import Iterator
from decimal import Decimal
from uuid import uuid4

import psycopg
import pytest

from tailrace.eventstore.streams import (
    Appended,
    Conflict,
    Query,
    Stream,
    append,
    context,
    load,
    load_all,
    load_boundary,
)
from tailrace.eventstore.streams.database.connection import GRANTS
from tailrace.eventstore.streams.database.event_tables import install
from tests.eventstore.streams.bank import Deposited
from tests.eventstore.streams.test_boundaries import Taken
from tests.support import REPOSITORY

Connection = psycopg.Connection[tuple[object, ...]]
_PAGE = REPOSITORY / "docs/domain-events.md"


@pytest.fixture
def service(database: str) -> Iterator[Connection]:
    """A connection of a role that has the application's grants, and to which the policies of the manual apply."""
    install(database)
    role = f"service_{uuid4().hex[:8]}"
    found = re.search(
        r"```sql\n(ALTER TABLE tailrace\.events ENABLE ROW.*?)```", _PAGE.read_text(), re.DOTALL
    )
    assert found is not None
    with psycopg.connect(database, autocommit=True) as owner:
        owner.execute(f"CREATE ROLE {role} LOGIN".encode())
        owner.execute(" ".join(GRANTS).format(role=role).encode())
        owner.execute(found[1].encode())
        try:
            with psycopg.connect(database, user=role) as connection:
                yield connection
        finally:
            owner.execute(f"DROP OWNED BY {role}".encode())
            owner.execute(f"DROP ROLE {role}".encode())


def work_for(connection: Connection, tenant: str) -> None:
    connection.execute("SELECT set_config('app.tenant', %s, true)", [tenant])


def test_a_tenant_sees_its_own_events_and_no_others(service: Connection) -> None:
    for tenant in ("acme", "other"):
        work_for(service, tenant)
        with context(tenant=tenant):
            done = append(service, Stream("account", tenant), [Deposited(amount=Decimal(1))])
            taken = append(service, Stream("room", tenant), [Taken(room="r", person=tenant)])
        assert isinstance(done, Appended) and isinstance(taken, Appended)
    work_for(service, "acme")
    assert len(load(service, Stream("account", "acme"))) == 1
    assert load(service, Stream("account", "other")) == []
    assert [each.stream.id for each in load_all(service, "account")] == ["acme"]
    seen = load_boundary(service, Query(Taken, room="r"))
    assert [each.data.person for each in seen.events] == ["acme"]


def test_versions_and_boundaries_hold_across_tenants(service: Connection) -> None:
    """Whoever cannot see an event is still refused by it: nobody overwrites what is hidden."""
    work_for(service, "acme")
    before = load_boundary(service, Query(Taken, room="r"))
    work_for(service, "other")
    with context(tenant="other"):
        append(service, Stream("room", "1"), [Taken(room="r", person="p")])
    work_for(service, "acme")
    mine = [Taken(room="r", person="q")]
    assert append(service, Stream("room", "1"), mine, expected=0) == Conflict(1, 0)
    assert append(service, Stream("room", "2"), mine, boundary=before) == Conflict(1, 0, tag="room:r")
