"""A folder with a configuration, a log of a few rows, and a projection that is live in a sink of files."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path

import pyarrow as pa

from tailrace.config.load import load_settings
from tailrace.eventstore.metadata.generations import NewGeneration
from tailrace.eventstore.store import Store
from tailrace.projections.sinks.open import open_sink
from tailrace.projections.sinks.record import spec_to_text
from tailrace.projections.sinks.specs import ParquetFolder
from tests.eventstore import shop
from tests.projections.sinks.sink_data import fill, target

PROJECTION = "customer_totals"
LIVE_ROW = {"customer_id": 7, "total": Decimal("10.50")}
COLUMNS = pa.schema({"customer_id": pa.int64(), "total": pa.decimal128(12, 2)})


def make_live(folder: Path) -> None:
    """Customer 5 is in the log since epoch 1 and was changed in epoch 2; the projection's only row is ``LIVE_ROW``."""
    (folder / "tailrace.toml").write_text(
        'store.name = "acme"\n[sinks.lake]\nkind = "parquet"\npath = "lake"\n', encoding="utf-8"
    )
    settings, spec = load_settings(folder / "tailrace.toml"), ParquetFolder("lake")
    with Store.open(settings.store, create=True, root=folder) as store:
        writer = shop.writer(store)
        writer.append(shop.batch(10, customers=[("c", 5)], completes=[shop.CUSTOMERS]))
        writer.append(shop.batch(20, customers=[("u", 5)]))
        number = store.derived.create_generation(NewGeneration(
            PROJECTION, fingerprint="", sink=spec_to_text(spec), key=["customer_id"],
            schema=COLUMNS.serialize().to_pybytes(), partitions=2, split=1,
        ))  # fmt: skip
        store.derived.promote(PROJECTION, number, None)
    sink, shown = open_sink(spec, settings), target(schema=COLUMNS)
    fill(sink, shown, [LIVE_ROW])
    sink.promote(shown, None)
