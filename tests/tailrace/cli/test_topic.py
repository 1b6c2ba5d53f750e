"""``tailrace topic repartition``, as an operator sees it."""

from __future__ import annotations

from contextlib import closing

from tailrace.eventstore.settings import StoreSettings
from tailrace.eventstore.store import Store
from tests.eventstore.shop import CUSTOMERS, ORDERS, batch, writer
from tests.tailrace.conftest import Project

CONFIGURATION = """
[sources.shop]
dsn = "postgresql://127.0.0.1:1/x"
"""


def test_what_it_did_is_said_and_shown_and_what_it_cannot_do_is_refused(project: Project) -> None:
    project.configure(CONFIGURATION)
    with closing(Store.open(StoreSettings(), create=True, root=project.folder)) as store:
        capture = writer(store)
        capture.append(batch(1, [("c", 1), ("c", 2)], completes=[ORDERS, CUSTOMERS]))
        wrong = project.run("topic", "repartition", "shop.public.order", "--partitions", "8")
        assert wrong.code == 2 and "did you mean shop.public.orders" in wrong.err
        wrong = project.run("topic", "repartition", ORDERS.text, "--partitions", "2000")
        assert wrong.code == 2 and "1 to 1,024 partitions" in wrong.err
        again = project.ok("topic", "repartition", ORDERS.text, "--partitions", "4")
        assert again.out == "shop.public.orders has 4 partitions: nothing to do\n"
        said = project.ok("topic", "repartition", ORDERS.text, "--partitions", "8").out
        assert "rows behind epoch 2 are in partitions 4 to 11" in said
        assert "those up to it stay in partitions 0 to 3" in said
        capture.append(batch(2, [("u", 1)]))
        (done,) = project.ok("--json", "topic", "repartition", ORDERS.text, "--partitions", "1").documents
        assert done == {
            "topic": ORDERS.text, "epoch": 4, "partitions": 1, "first_partition": 12, "partitions_before": 8,
        }  # fmt: skip
        capture.append(batch(3, [("u", 1)]))
    shown = project.ok("topic", "show", ORDERS.text).out
    assert "partitions 0 to 3 up to epoch 2; partitions 4 to 11 up to epoch 4; partition 12 since" in shown
    (listed,) = [
        each for each in project.ok("--json", "topic", "list").documents if each["topic"] == ORDERS.text
    ]
    assert (listed["partitions"], listed["incarnation"]) == (1, 3)
    history = project.ok("--json", "log", "show", ORDERS.text, "1").documents
    assert [(each["epoch"], each["partition"] >= 4) for each in history] == [(1, False), (3, True), (5, True)]
    project.ok("log", "verify")
