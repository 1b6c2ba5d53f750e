"""A source whose address leads to a standby: every command says that it is one, and none takes it for a lost slot."""

from __future__ import annotations

import pytest

from tests.fixtures.servers import ServerFactory
from tests.support.capturing import execute
from tests.support.standby import LINK, start_standby, wait_until_replayed
from tests.tailrace.conftest import Project


@pytest.mark.servers
def test_an_address_that_leads_to_a_standby_is_said_to(
    project: Project, postgres_server: ServerFactory
) -> None:
    primary = postgres_server()
    execute(primary.dsn(), "CREATE TABLE items (id int PRIMARY KEY)")
    project.configure('store.name = "acme"\n[sources.shop]\ndsn = "${SHOP_DSN}"')
    project.environment["SHOP_DSN"] = primary.dsn()
    project.ok("init")
    project.ok("capture", "--once")
    standby = start_standby(primary, postgres_server, primary_slot_name=LINK)
    wait_until_replayed(primary, standby)
    project.environment["SHOP_DSN"] = standby.dsn()

    for command in (("capture", "--once"), ("source", "repair")):
        done = project.run(*command)
        assert done.code == 6 and "is a standby" in done.err and "promote it" in done.err
    assert "standby" in project.run("init").err
    (status,) = project.ok("status", "--json").documents
    assert status["sources"][0]["state"] == "server is a standby"
    (report,) = project.run("doctor", "--json").documents
    failed = [check for check in report["checks"] if check["verdict"] == "fail"]
    assert [check["subject"] for check in failed] == ["source shop server"] and "standby" in failed[0][
        "found"
    ]
