"""Epochs of Kafka hold whole transactions where the connector's metadata says what they are."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.cdc.kafka.epochs.transactions import TransactionCut, joined, tables_of
from tailrace.eventstore.kafka.records import SCHEMA_WITH_HEADERS, RecordBatchRows

META, ITEMS, ORDERS = "p.transaction", "p.public.items", "p.public.orders"


def records(topic: str, values: list[Any], first: int = 0, partition: int = 0) -> RecordBatchRows:
    rows: list[dict[str, Any]] = [
        {"offset": first + at, "key": b"k", "value": None if value is None else json.dumps(value).encode()}
        | {"headers": []}
        for at, value in enumerate(values)
    ]
    table = pa.Table.from_pylist(rows, schema=SCHEMA_WITH_HEADERS)
    return RecordBatchRows(topic, partition, table, first + len(values))


def row(xid: int, order: int) -> dict[str, Any]:
    """The id behind the colon is that of the row."""
    return {"op": "c", "transaction": {"id": f"{xid}:{xid * 100 + order}", "total_order": order}}


def end(xid: int, **counts: int) -> dict[str, Any]:
    collections = [{"data_collection": f"public.{name}", "event_count": n} for name, n in counts.items()]
    return {"status": "END", "id": f"{xid}:{xid * 100 + 99}", "data_collections": collections}


def cut() -> TransactionCut:
    return TransactionCut(META, tables_of([ITEMS, ORDERS]))


def places(taken: list[RecordBatchRows]) -> dict[str, int]:
    return {each.topic: each.next_offset for each in joined(taken)}


def test_a_transaction_goes_when_its_end_and_all_of_its_rows_are_there() -> None:
    found = cut()
    found.add(records(ITEMS, [row(1, 1), row(1, 2)]))
    assert found.take() == ([], [])
    found.add(records(META, [{"status": "BEGIN", "id": "1:5"}, end(1, items=2, orders=1)]))
    assert found.take() == ([], [])
    found.add(records(ORDERS, [row(1, 3), row(2, 1)]))
    taken, broken = found.take()
    assert places(taken) == {ITEMS: 2, ORDERS: 1, META: 2} and broken == []
    found.add(records(META, [{"payload": end(2, orders=1, left_out=7)}], first=2))
    assert places(found.take()[0]) == {ORDERS: 2, META: 3}
    found.add(records(ITEMS, [{"op": "r"}], first=2))
    assert places(found.take()[0]) == {ITEMS: 3}, "ends are told once"


def test_what_follows_an_open_transaction_waits_in_every_partition() -> None:
    found = cut()
    found.add(records(ITEMS, [row(2, 1)]))
    found.add(records(ORDERS, [row(1, 2), row(2, 2)]))
    found.add(records(META, [end(1, items=1, orders=1), end(2, items=1, orders=1)]))
    assert found.take() == ([], []), "row 1 of transaction 1 has not come"
    assert found.bytes > 0


def test_rows_and_ends_that_come_again_neither_complete_nor_hold_back_a_transaction() -> None:
    found = cut()
    found.add(records(ITEMS, [row(1, 1), row(1, 1)]))
    found.add(records(META, [end(1, items=2)]))
    assert found.take() == ([], []), "one row came twice, the other not yet"
    found.add(records(ITEMS, [row(1, 2), None], first=2))
    found.add(records(META, [end(1, items=2)], first=1))
    assert places(found.take()[0]) == {ITEMS: 4, META: 2}
    found.add(records(ITEMS, [row(1, 1), row(2, 1)], first=4))
    found.add(records(META, [end(1, items=2), end(2, items=1)], first=2))
    assert places(found.take()[0]) == {ITEMS: 6, META: 4}


def test_rows_of_no_transaction_do_not_wait_and_everything_goes_on_demand() -> None:
    found = cut()
    found.add(records(ITEMS, [{"op": "r"}, None, row(3, 1)]))
    found.add(records(ORDERS, [{"op": "r", "transaction": None}]))
    assert places(found.take()[0]) == {ITEMS: 2, ORDERS: 1}
    taken, broken = found.take(everything=True)
    assert places(taken) == {ITEMS: 3} and broken == [3]
    found.add(records(ITEMS, [row(3, 2)], first=3))
    assert places(found.take()[0]) == {ITEMS: 4}, "the rest does not wait for what cannot be whole any more"


@given(data=st.data())
@settings(max_examples=60)
def test_however_it_comes_each_epoch_has_whole_transactions_in_their_order(data: st.DataObject) -> None:
    streams: dict[tuple[str, int], list[Any]] = {(META, 0): []}
    streams |= {(topic, number): [] for topic in (ITEMS, ORDERS) for number in range(2)}
    sizes: dict[int, int] = {}
    for xid in range(1, data.draw(st.integers(1, 8)) + 1):
        counts = {"items": 0, "orders": 0}
        sizes[xid] = data.draw(st.integers(0, 4))
        for order in range(1, sizes[xid] + 1):
            topic, number = data.draw(st.sampled_from([key for key in streams if key[0] != META]))
            streams[topic, number].append(row(xid, order))
            counts[topic.rpartition(".")[2]] += 1
        streams[META, 0].append(end(xid, **counts))
    found, read, went = cut(), dict.fromkeys(streams, 0), list[list[int]]()
    while any(read[key] < len(values) for key, values in streams.items()):
        key = data.draw(st.sampled_from([key for key, values in streams.items() if read[key] < len(values)]))
        more = data.draw(st.integers(1, len(streams[key]) - read[key]))
        found.add(records(key[0], streams[key][read[key] : read[key] + more], read[key], key[1]))
        read[key] += more
        taken, broken = found.take()
        assert broken == []
        values = [json.loads(value) for each in taken for value in each.table["value"].to_pylist()]
        if values:
            went.append(sorted(int(value["transaction"]["id"].partition(":")[0]) for value in values))
    for epoch in went:
        assert all(epoch.count(xid) == sizes[xid] for xid in epoch)
    in_order = [xid for epoch in went for xid in epoch]
    assert in_order == sorted(in_order) == [xid for xid, size in sizes.items() for _ in range(size)]


ABSURD = [
    "[" * 100_000,
    '{"status": "END", "id": "1:5", "data_collections": ' + "[" * 100_000,
    '{"status": "END", "id": "1:5", "data_collections": [{"data_collection": "public.items", "event_count": 1e999}]}',
    '{"status": "END", "id": "1:5", "data_collections": [{"data_collection": "public.items", "event_count": NaN}]}',
    '{"status": "END", "id": "1:5", "data_collections": [{"data_collection": [], "event_count": 1}]}',
    '{"status": "END", "id": "1:5", "data_collections": 7}',
    '{"status": "END", "id": "' + "9" * 5000 + ':5", "data_collections": []}',
    '{"status": "END", "id": "' + "9" * 50 + ':5", "data_collections": []}',
    '{"payload": 7}',
    "\ud800",
]  # fmt: skip


@pytest.mark.parametrize("text", ABSURD, ids=range(len(ABSURD)))
def test_a_record_of_the_metadata_topic_that_is_no_end_says_nothing(text: str) -> None:
    found = cut()
    found.add(records(ITEMS, [row(1, 1)]))
    one = pa.Table.from_pylist(
        [{"offset": 0, "key": b"k", "value": text.encode(errors="surrogatepass"), "headers": []}],
        schema=SCHEMA_WITH_HEADERS,
    )
    found.add(RecordBatchRows(META, 0, one, 1))
    assert found.take() == ([], []), "the transaction waits for its end"
    found.add(records(META, [end(1, items=1)], first=1))
    assert places(found.take()[0]) == {ITEMS: 1, META: 2}
