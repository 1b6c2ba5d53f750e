"""``tailrace log verify``: what it says of a log that is whole and of one that is not."""

from __future__ import annotations

from pathlib import Path

from tailrace.eventstore.settings import StoreSettings
from tailrace.eventstore.store import Store
from tests.eventstore.maintenance.files.test_seal import fill
from tests.tailrace.conftest import Project

TOML = """
[store]
catalog = "sqlite:///catalog.db"
segments = "segments"
"""


def test_it_says_what_it_looked_at_names_what_is_wrong_and_exits_with_4(project: Project) -> None:
    project.configure(TOML)
    settings = StoreSettings(catalog="sqlite:///catalog.db", segments=Path("segments"))
    with Store.open(settings, create=True, root=project.folder) as store:
        fill(store, 6)
        store.seal()
        head = store.head()
        path = next(path for path in store.storage.list("log/shop/1"))
    assert head is not None
    clean = project.ok("log", "verify").out.splitlines()
    assert clean[0].startswith("up to epoch 6: 2 topics, ")
    assert clean[-1] == "the log is what was written"
    assert clean[1] == f"head 6:{head.hash}"
    project.ok("log", "verify", "--quick", "--head", f"6:{head.hash}")
    assert project.run("log", "verify", "--quick", "--head", f"6:{'0' * 64}").code == 4
    assert project.run("log", "verify", "--head", "6").code == 2
    (document,) = project.ok("log", "verify", "--json").documents
    assert document["clean"]
    assert (document["epoch"], document["hash"]) == (6, head.hash)
    assert project.run("log", "verify", "shop.public.order").code == 2
    file = project.folder / "segments" / path
    data = file.read_bytes()
    file.write_bytes(data[:100] + bytes([data[100] ^ 4]) + data[101:])
    assert project.ok("log", "verify", "--quick").out.splitlines()[-1] == "nothing is missing"
    assert project.ok("log", "verify", "shop.public.customers").code == 0
    broken = project.run("log", "verify", "shop.public.orders", "shop.public.customers")
    assert broken.code == 4
    assert broken.out.splitlines()[0] == f"DAMAGED  {path}: its bytes are not those that were written"
    assert "hint: put back" in broken.out
    found = project.run("log", "verify", "--json")
    assert found.code == 4
    (finding,) = found.documents[0]["findings"]
    assert (finding["problem"], finding["place"]) == ("damaged", path)
