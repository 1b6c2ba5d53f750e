"""Make the golden files of this version's format: ``python -m tests.eventstore.golden.make``, once, when it is raised.

A folder for each format: files as capture, sealing, a state run and folding write them, what the catalog says of them,
and the rows that are in them.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from dataclasses import asdict
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
from sqlalchemy import select

from tailrace.eventstore.catalog import tables
from tailrace.eventstore.log.sources import register_source, register_topic
from tailrace.eventstore.maintenance.files import fold, tiers
from tailrace.eventstore.metadata import epochs as timeline
from tailrace.eventstore.metadata import segment_index, state_runs
from tailrace.eventstore.model.epoch import EpochBatch, TopicRows
from tailrace.eventstore.model.keys import hash_texts
from tailrace.eventstore.model.schema import Column, TopicSchema, change_schema
from tailrace.eventstore.model.segment_ref import SegmentRef
from tailrace.eventstore.model.topic import TopicId
from tailrace.eventstore.segment import encoding, segment
from tailrace.eventstore.settings import StoreSettings, UpkeepSettings
from tailrace.eventstore.store import Store

GOLDEN = Path(__file__).parent
TOPIC = TopicId.table("shop", "public", "things")
SCHEMA = TopicSchema(
    1,
    (
        Column(1, "id", 23, type_name="integer", key=True),
        Column(2, "note", 25, type_name="text"),
        Column(3, "amount", 1700, (12 << 16 | 2) + 4, "numeric(12,2)"),
        Column(4, "much", 20, type_name="bigint"),
        Column(5, "real", 701, type_name="double precision"),
        Column(6, "flag", 16, type_name="boolean"),
        Column(7, "day", 1082, type_name="date"),
        Column(8, "moment", 1184, type_name="timestamp with time zone"),
        Column(9, "data", 17, type_name="bytea"),
        Column(10, "tags", 1009, type_name="text[]"),
    ),
)
NOON = datetime(2026, 1, 1, 12, 0, 0, 123456, tzinfo=UTC)
CELLS = {
    "note": "naïve\n\t'\"", "amount": Decimal("-9999999999.99"), "much": -(2**63), "real": 0.1, "flag": True,
    "day": date(1, 1, 1), "moment": NOON, "data": b"\x00\xff", "tags": ["a", None, ""],
}  # fmt: skip


def change(op: str, lsn: int, key: int, **cells: Any) -> dict[str, Any]:
    whole = {"id": key, **dict.fromkeys(CELLS), **cells}
    return {
        "_hash": 0 if op == "t" else hash_texts([str(key)]), "_op": op, "_lsn": lsn, "_txn": 700 + lsn,
        "_ordinal": key, "_commit_ts": NOON, "_before": "none",
        "key": None if op == "t" else {"id": key}, "after": None if op in "dt" else whole,
    }  # fmt: skip


def transactions() -> list[list[dict[str, Any]]]:
    """Every operation, and every mark that a row may have."""
    full = change("u", 2, 2, note="new") | {"_before": "full", "before": {"id": 2, **CELLS}}
    kept = change("u", 2, 3, much=7) | {"_unchanged": [2]}
    raw = change("c", 2, 4) | {"_raw": [(3, b"NaN"), (2, None)]}
    moved = change("c", 2, 5, note="moved") | {"_moved_from": {"id": 1}}
    return [
        [change("r", 1, key, **(CELLS if key % 2 else {})) for key in range(1, 5)],
        [full, kept, raw, change("d", 2, 1), moved],
        [change("t", 3, 0), change("c", 3, 9, **CELLS)],
    ]


def as_json(rows: Any) -> Any:
    """As JSON gives them back."""
    return json.loads(json.dumps(rows, default=_text))


def _text(value: Any) -> str:
    if isinstance(value, date):
        return value.isoformat()
    return value.hex() if isinstance(value, bytes) else str(value)


def rows_of(folder: Path, ref: SegmentRef) -> Any:
    return as_json(segment.read_segment(folder, ref, SCHEMA).to_pylist())


def main() -> None:
    folder = GOLDEN / f"format-{encoding.FORMAT}"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    kept: dict[str, Any] = {}
    tiers.FAN_IN = fold.CHUNK = 2

    def keep(name: str, store: Store, ref: SegmentRef) -> None:
        shutil.copy(store.storage.place(str(ref.path)), folder / f"{name}.parquet")
        named = {**asdict(ref), "topic": ref.topic.text, "path": f"{name}.parquet"}
        mine = SegmentRef(**{**named, "topic": ref.topic, "ranges": ref.ranges})
        kept[name] = {"ref": named, "rows": rows_of(folder, mine)}

    with tempfile.TemporaryDirectory() as place:
        upkeep = UpkeepSettings(keep_seconds=0, state_bytes=1)
        settings = StoreSettings(partitions=2, inline_bytes=0, upkeep=upkeep)
        with Store.open(settings, create=True, root=Path(place)) as store:
            register_source(store.catalog, "shop", slot="s", publication="p", system_id="1")
            register_topic(store, TOPIC, SCHEMA)
            writer = store.take_over("shop")
            for lsn, changes in enumerate(transactions(), start=1):
                rows = TopicRows(TOPIC, 1, pa.Table.from_pylist(changes, schema=change_schema(SCHEMA)))
                more: dict[str, Any] = {"completes": [TOPIC]} if lsn == 1 else {}
                writer.append(EpochBatch("shop", lsn, lsn + 1, lsn + 1, NOON, 1, [rows], **more))
            keep("captured", store, store.files(TOPIC)[1])
            store.merge()
            list(fold.fold(store, 1))
            store.compact([TOPIC])
            with store.catalog.read() as connection:
                (run,) = state_runs.runs_of(connection, TOPIC, 1)
                merged = connection.execute(select(tables.segments)).all()
                epochs = connection.execute(select(tables.epoch_files)).one()
            keep("merged", store, segment_index.file_ref(TOPIC, merged[0]))
            keep("state-run", store, run.refs[0])
            shutil.copy(store.storage.place(epochs.path), folder / "epochs.parquet")
            found = [
                asdict(epoch) for epoch in timeline.rows_of(timeline.open_file(store.storage, epochs).read())
            ]
    kept["epochs"] = {"checksum": epochs.checksum, "rows": as_json(found)}
    (folder / "content.json").write_text(
        json.dumps(kept, indent=1, ensure_ascii=False) + "\n", encoding="utf-8"
    )


if __name__ == "__main__":
    main()
