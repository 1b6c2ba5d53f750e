"""A log whose segments are objects behind a real S3 API: capture writes them, upkeep replaces them, readers read.

The API is moto's, and that of S3Proxy, which others run in production (`make test-servers`).
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tailrace.eventstore.settings import StoreSettings, UpkeepSettings
from tests.support import workload
from tests.support.capturing import (
    RunningCapture,
    Site,
    assert_equals_source,
    assert_sound,
    execute,
    init_and_capture,
)


@pytest.fixture(params=["bucket", pytest.param("s3proxy_bucket", marks=pytest.mark.servers)])
def site(database: str, store_dir: Path, request: pytest.FixtureRequest) -> Site:
    bucket = request.getfixturevalue(request.param)
    workload.create_tables(database)
    store = StoreSettings(
        name="acme",
        segments=f"s3://{bucket}/acme",
        inline_bytes=20_000,
        upkeep=UpkeepSettings(keep_seconds=0),
    )
    return replace(Site.at(store_dir, database, tables=workload.PATTERNS), store_settings=store)


@pytest.mark.slow
def test_capture_into_an_object_store_equals_the_source_before_and_after_upkeep(site: Site) -> None:
    workload.write(site.dsn, seed=1, transactions=60)
    with init_and_capture(site) as capture:
        workload.write(site.dsn, seed=2, transactions=30)
        capture.catch_up()
        execute(
            site.dsn, "INSERT INTO public.customers VALUES (1000001, 'a small epoch', 1.5, NULL, NULL, NULL)"
        )
        capture.catch_up()
        assert_equals_source(site)
    with site.open() as store:
        before = set(store.storage.list("log"))
        assert before
        done = store.maintain()
        assert done.sealed_epochs >= 1
        assert set(store.storage.list("log")) > before
        assert_sound(store)
    with RunningCapture(site) as capture:
        assert_equals_source(site)
        workload.write(site.dsn, seed=5, transactions=15)
        capture.catch_up()
        assert_equals_source(site)
        assert_sound(capture.store)
