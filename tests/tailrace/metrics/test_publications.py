"""What monitoring sees of publications."""

from __future__ import annotations

from collections import Counter
from urllib.request import urlopen

from prometheus_client.parser import text_string_to_metric_families

from tailrace.eventstore.publishing.progress import PublicationProgress
from tailrace.eventstore.settings import PublicationSettings
from tailrace.metrics.capture import serve
from tailrace.metrics.publications import PublicationCollector
from tests.eventstore.shop import batch, writer
from tests.fixtures.stores import StoreFactory, one_catalog
from tests.support import REPOSITORY

PAGE = REPOSITORY / "docs" / "reference" / "metrics.md"


def scrape(collector: PublicationCollector) -> dict[str, float]:
    """By the metric's name and its labels but the publication's."""
    port, end = serve(collector, 0, "127.0.0.1")
    try:
        with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
            text = answer.read().decode()
    finally:
        end()
    found = {}
    for family in text_string_to_metric_families(text):
        suffix = "_total" if family.type == "counter" else ""
        assert f"`{family.name}{suffix}`" in PAGE.read_text(), "documented"
        for sample in family.samples:
            labels = [value for label, value in sample.labels.items() if label != "publication"]
            found[" ".join([sample.name.removeprefix("tailrace_publication_"), *labels])] = sample.value
    return found


@one_catalog
def test_position_lag_and_counts_of_a_publication_are_measured(new_store: StoreFactory) -> None:
    store = new_store()
    to = writer(store)
    for number in range(1, 6):
        to.append(batch(100 * number, [("c", number)] if number != 4 else [], [("c", number)]))
    settings = {"feed": PublicationSettings(destination="bus", topics=("shop.public.orders",))}
    progress = PublicationProgress()
    collector = PublicationCollector(store, settings, {"feed": progress})
    found = scrape(collector)
    assert "position_epoch" not in found and "lag_epochs" not in found
    assert (found["records_total"], found["failing"]) == (0, 0)

    progress.epoch, progress.parked, progress.records, progress.bytes, progress.transactions = 2, 1, 7, 700, 3
    progress.failing, progress.failed_at = 2, 1e9
    progress.failures = Counter(TransientError=2)
    found = scrape(collector)
    assert found["lag_seconds"] > 0
    expected = {
        "position_epoch": 2, "lag_epochs": 2, "parked_keys": 1, "records_total": 7, "bytes_total": 700,
        "transactions_total": 3, "failing": 2, "failed_timestamp_seconds": 1e9,
        "failures_total TransientError": 2, "tailrace_log_epoch": 5,
    }  # fmt: skip
    assert {name: found[name] for name in expected} == expected
    progress.epoch = 5
    found = scrape(collector)
    assert (found["lag_epochs"], found["lag_seconds"]) == (0, 0)
