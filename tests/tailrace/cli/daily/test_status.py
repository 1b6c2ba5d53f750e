"""``tailrace status`` beyond positions."""

from __future__ import annotations

from contextlib import closing

from tailrace.eventstore.metadata import refused_messages
from tailrace.eventstore.settings import StoreSettings
from tailrace.eventstore.store import Store
from tests.eventstore.shop import register
from tests.tailrace.conftest import Project


def test_messages_that_were_not_believed_are_counted_for_good(project: Project) -> None:
    project.configure('[sources.shop]\ndsn = "postgresql://127.0.0.1:1/x"\n')
    with closing(Store.open(StoreSettings(), create=True, root=project.folder)) as store:
        register(store)
        assert "not believed" not in project.ok("status").out
        for counts in ({"forged": 2, "marks": 1}, {"forged": 3}):
            refused_messages.add(store.catalog, "shop", counts)
    shown = project.ok("status").out
    assert "not believed, without effect" in shown and "forged" in shown
    (document,) = project.ok("status", "--json").documents
    (source,) = document["sources"]
    assert [(each["kind"], each["number"]) for each in source["refused"]] == [("forged", 5), ("marks", 1)]
