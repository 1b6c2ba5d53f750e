"""What a producer may write to do harm has a clear end, and takes bounded memory to find out."""

from __future__ import annotations

import random

import pytest

from tailrace.eventstore.errors import OperatorError
from tailrace.eventstore.kafka import records
from tailrace.eventstore.kafka.records import FetchedBatches, RecordBatchRows, decode
from tests.support.kafka_batches import CODECS, BatchMade, Record

SMALL = [Record(delta, None, None) for delta in range(50)]
MANY_HEADERS = [Record(delta, b"k", b"v", ((b"", None),) * 25) for delta in range(2)]


def decoded(*made: BatchMade) -> list[RecordBatchRows]:
    data = memoryview(b"".join(each.bytes() for each in made))
    return list(decode(FetchedBatches("shop", 2, 0, data), headers=True))


@pytest.mark.parametrize("codec", CODECS)
def test_a_batch_of_more_records_than_any_producer_sends_is_refused(
    codec: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each costs more memory than bytes: compressed, millions are a few kilobytes."""
    monkeypatch.setattr(records, "BATCH_RECORDS_MAX", 49)
    with pytest.raises(OperatorError, match="batch at offset 9: 50 records are more than 49") as caught:
        decoded(BatchMade(3, SMALL[:5]), BatchMade(9, SMALL, codec))
    assert "continue behind it" in caught.value.hint
    monkeypatch.setattr(records, "BATCH_RECORDS_MAX", 50)
    (rows,) = decoded(BatchMade(3, SMALL[:5]), BatchMade(9, SMALL, codec))
    assert rows.table.num_rows == 55


def test_records_of_more_headers_than_any_producer_sends_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "HEADERS_MAX", 49)
    with pytest.raises(OperatorError, match="batch at offset 9: 50 headers are more than 49"):
        decoded(BatchMade(3, SMALL[:5]), BatchMade(9, MANY_HEADERS))
    monkeypatch.setattr(records, "HEADERS_MAX", 50)
    (rows,) = decoded(BatchMade(3, SMALL[:5]), BatchMade(9, MANY_HEADERS))
    assert [len(each) for each in rows.table["headers"].to_pylist()] == [0] * 5 + [25] * 2


@pytest.mark.slow
@pytest.mark.parametrize("codec", CODECS)
def test_a_record_of_100_mb_with_a_key_and_a_header_of_its_size_is_read(codec: str) -> None:
    part = random.Random(1).randbytes(1 << 20)
    large = part * 60
    record = Record(0, part * 20, large, ((part * 20, part),))
    (rows,) = decoded(BatchMade(5, [record], codec))
    assert rows.table["value"][0].as_py() == large and rows.table["key"][0].as_py() == part * 20
    assert rows.table["headers"][0].as_py() == [{"name": part * 20, "value": part}]
