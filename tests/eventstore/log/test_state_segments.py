"""Inside a look what was resolved for one position serves the next, and the state is the same as when resolved anew."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from sqlalchemy import Connection

from tailrace.eventstore.log.log import Log
from tailrace.eventstore.maintenance.redaction.redact import RedactionRequest, redact
from tailrace.eventstore.maintenance.rounds import maintain
from tailrace.eventstore.metadata import segment_index
from tailrace.eventstore.model.position import Cut
from tailrace.eventstore.settings import StoreSettings, UpkeepSettings
from tailrace.eventstore.state.input import plan_state
from tailrace.eventstore.state.state import readable_states
from tailrace.eventstore.store import Store
from tests.fixtures.scale import Scale
from tests.projections.shoplog import ShopLog, topic

CUSTOMERS = topic("customers")


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[ShopLog]:
    settings = StoreSettings(
        name="acme",
        catalog=f"sqlite:///{tmp_path}/catalog.db",
        segments=tmp_path / "segments",
        inline_bytes=2000,  # some epochs are files at once
        upkeep=UpkeepSettings(keep_seconds=0),
    )
    with Store.open(settings, create=True) as store:
        yield ShopLog.start(store)


def rows(log: Log, cut: Cut) -> list[dict[str, object]]:
    """The state, of which no file may be gone."""
    planned = plan_state(log, CUSTOMERS, cut)
    states = readable_states(log.storage, planned, range(planned.buckets))
    found = pa.concat_tables([planned.schema.empty_table(), *states]).to_pylist()
    return sorted(found, key=lambda row: int(row["id"]))


def change(shop: ShopLog, random: Random) -> None:
    """Something happens to the log."""
    what = random.choices(["commit", "seal", "maintain", "compact", "redact"], [12, 2, 1, 1, 1])[0]
    ids = sorted(shop.state["customers"])
    if what == "commit":
        some = random.choices(range(1, 30), k=random.choice([1, 2, 2, 40]))
        new = [{"id": each, "name": f"n{random.random()}", "city": "Oslo"} for each in dict.fromkeys(some)]
        shop.commit({"customers": [("u" if row["id"] in ids else "c", row) for row in new]})
    elif what == "seal":
        shop.store.seal()
    elif what == "maintain":
        maintain(shop.store)
    elif what == "compact":
        shop.store.compact([CUSTOMERS])
    else:
        request = RedactionRequest(CUSTOMERS, [str(random.choice(ids))], ["name"])
        redact(shop.store, request)


@pytest.mark.parametrize("seed", range(4))
def test_the_state_is_that_of_a_log_that_is_asked_for_the_first_time(
    shop: ShopLog, seed: int, scale: Scale
) -> None:
    random, store = Random(seed), shop.store
    for _ in range(scale.pick(smoke=25, full=600)):
        change(shop, random)
        head = store.cut().epoch
        cuts = [Cut(head), *(Cut(random.randint(1, head)) for _ in range(2))]
        random.shuffle(cuts)
        for cut in cuts:
            with store.look.taken():  # a new one each time
                known = rows(store, cut)
            assert known == rows(store, cut), cut


def test_a_later_position_reads_what_came_since(shop: ShopLog, monkeypatch: pytest.MonkeyPatch) -> None:
    store, asked = shop.store, list[int]()
    page = segment_index.page

    def counted(connection: Connection, *given: Any) -> segment_index.Page:
        found = page(connection, *given)
        asked.append(len(found.refs))
        return found

    monkeypatch.setattr("tailrace.eventstore.metadata.segment_index.page", counted)
    for number in range(2, 40):
        shop.commit({"customers": [("c", {"id": number, "name": "x", "city": "Oslo"})]})
        with store.look.taken():
            assert len(store.state_segments(CUSTOMERS, store.cut())) == number
            assert len(store.state_segments(CUSTOMERS, Cut(store.cut().epoch - 1))) == number - 1
    assert asked == [2, *[1] * 37], "the first time all, then one more each"
    store.seal()
    with store.look.taken():
        assert len(store.state_segments(CUSTOMERS, store.cut())) == 1, "what was sealed is read as a file"
