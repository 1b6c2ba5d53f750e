"""What ``tailrace status`` says of a publication whose destination does not answer."""

from __future__ import annotations

import pytest

from tailrace.eventstore.settings import StoreSettings
from tailrace.eventstore.store import Store
from tests.tailrace.conftest import Project

CONFIGURATION = """
[sources.shop]
dsn = "host=127.0.0.1 port=9 dbname=shop"
[destinations.bus]
kind = "kafka"
brokers = ["127.0.0.1:9"]
[publish.orders]
destination = "bus"
topics = ["*"]
"""


@pytest.mark.slow  # until a broker is given up
def test_an_error_is_shown_with_what_to_do(project: Project) -> None:
    project.configure(CONFIGURATION)
    Store.open(StoreSettings(), create=True, root=project.folder).close()
    (found,) = project.ok("status", "--json").documents[0]["publications"]
    assert found["state"].startswith("no broker of Kafka can be reached")
    assert found["hint"].startswith("check brokers")
    assert "orders: check brokers (HOST:PORT)" in project.ok("status").out
