"""A store, its configuration and its projections go on working that were made when each room was a package of its own.

``golden/store-0.tar.gz`` is the folder of a project as commit 1b9607a left it: ``tailrace.toml``, projections in Python
(``views.py``) and SQL, a sink of the project's own, a catalog of format 1 with two captured tables, four projections
of which one has two generations, and the last epoch not refreshed yet. It names no path outside the folder.

Its own sink is kept in a form that could run any code (pickle). That is not read: this generation asks to be rebuilt.
"""

from __future__ import annotations

import json
import tarfile

import pytest

from tests.support import REPOSITORY
from tests.support.wheels import run
from tests.tailrace.conftest import Project

STORE = REPOSITORY / "tests" / "tailrace" / "golden" / "store-0.tar.gz"
# What a project has to change: the modules that its own sink is made of. And its SQL says that it is Spark's.
MOVED = {
    "from eventstore.settings": "from tailrace.eventstore.settings",
    "from projections.readers.keyvalue": "from tailrace.projections.sinks.keyvalue.reader",
    "from projections.sinks.keyvalue": "from tailrace.projections.sinks.keyvalue.sink",
}
SERVICE = """
import json

import tailrace
from tailrace.projections import load_projections
from tailrace.projections.definition.fingerprint import fingerprint

settings = tailrace.load_settings()
views = load_projections(settings.projections.modules, sql=settings.projections.sql)
with tailrace.Store.open(settings.store) as store:
    found = {
        "definitions": {name: fingerprint(view) for name, view in views.items()},
        "generations": {
            name: [each.fingerprint for each in store.derived.generations(name)] for name in views
        },
        "epochs": [epoch.rows for epoch in store.epochs()],
        "topics": {
            info.id.text: sum(batch.num_rows for batch in store.read(info.id)) for info in store.topics()
        },
    }
keys = {"totals": 2, "counts": 2, "named": 1, "cities": "Oslo"}
for name, key in keys.items():
    with tailrace.open_reader(settings, settings.store.name, name, views[name].sink) as reader:
        found[name] = reader.get(key)
print(json.dumps(found, default=str))
"""
SHOWN = {
    "totals": {"customer_id": 2, "total": "251.00"},
    "counts": {"customer_id": 2, "orders": 5},
    "named": {"id": 1, "name": "customer 1", "total": "240.00"},
    "cities": {"city": "Oslo", "customers": 4},
}


@pytest.fixture
def before(project: Project) -> Project:
    with tarfile.open(STORE) as archive:
        archive.extraction_filter = getattr(tarfile, "data_filter", None)  # since Python 3.11.4
        archive.extractall(project.folder)
    own_sink = project.folder / "own_sink.py"
    text = own_sink.read_text()
    for old, new in MOVED.items():
        text = text.replace(old, new)
    own_sink.write_text(text)
    for query in project.folder.rglob("*.sql"):
        query.write_text(query.read_text().replace("\n[inputs]", '\ndialect = "spark"\n\n[inputs]', 1))
    project.module("service", SERVICE)
    project.environment["SHOP_DSN"] = "postgresql://nobody@127.0.0.1:1/nowhere"  # what was captured is gone
    assert "tailrace store upgrade says" in " ".join(project.run("status").err.split())
    project.ok("store", "upgrade")
    return project


def served(project: Project) -> dict[str, object]:
    words = [f"{name}={value}" for name, value in project.environment.items()]
    found: dict[str, object] = json.loads(
        run("env", *words, f"PYTHONPATH={REPOSITORY}", project.python, "service.py", cwd=project.folder)
    )
    return found


def test_a_store_of_before_is_read_after_an_upgrade(before: Project) -> None:
    found = served(before)
    definitions, generations = found["definitions"], found["generations"]
    assert isinstance(definitions, dict) and isinstance(generations, dict)
    assert {name: set(each) for name, each in generations.items()} == {
        name: {each} for name, each in definitions.items()
    }
    assert found["epochs"] == [72, 7, 1]
    assert found["topics"] == {"shop.public.customers": 13, "shop.public.orders": 67}
    assert {name: found[name] for name in SHOWN} == SHOWN

    (status,) = before.ok("status", "--json").documents
    assert {each["name"]: each["state"] for each in status["projections"]} == dict.fromkeys(SHOWN, "live")


@pytest.mark.slow
def test_a_store_of_before_is_refreshed_rebuilt_and_verified(before: Project) -> None:
    refused, rebuilt, refreshed, proved, collected = before.together(
        ["run", "--once"],
        ["rebuild", "counts", "--yes"],
        ["run", "--once"],
        ["verify"],
        ["projection", "gc", "--yes"],
    )
    assert refused.code == 2 and "counts: failed" in refused.out and "hint: rebuild" in refused.out, (
        refused.out
    )
    for done in (refreshed, rebuilt, proved, collected):
        assert done.code == 0, done.out + done.err
        assert "definition" not in done.out
    assert served(before)["cities"] == {"city": "Oslo", "customers": 4}
