"""The schema changes under load: the log's state is what a direct read of the source under a lock returns."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from tests.fixtures.scale import Scale
from tests.support import alterations
from tests.support.alterations import Alterer, assert_equals_locked_source, settle
from tests.support.capturing import RunningCapture, Site, assert_sound

pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def site(database: str, store_dir: Path) -> Site:
    alterations.prepare(database)
    return Site.at(store_dir, database, tables=alterations.PATTERNS)


@pytest.mark.parametrize("trigger", [False, True], ids=["without the trigger", "with the trigger"])
@pytest.mark.versions
def test_random_ddl_under_writes_leads_to_what_the_source_holds(
    site: Site, scale: Scale, trigger: bool
) -> None:
    site.init(ddl=trigger)
    rounds, count = scale.pick(smoke=(1, 17), full=(60, 20))
    with RunningCapture(site) as capture:
        for seed in range(rounds):
            with (
                closing(Alterer(site.dsn, seed, trigger=trigger)) as alterer,
                alterations.writing(site.dsn, seed),
            ):
                capture.catch_up()
                alterer.some(count)
                print(*alterer.done, sep="\n")
            if not trigger:
                alterations.touch(site.dsn)
            settle(capture)
            assert_equals_locked_source(capture)
        assert_sound(capture.store)
