"""State runs on Spark, and Spark SQL as the judge of what a state is."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tailrace.eventstore.model.schema import change_schema
from tailrace.eventstore.model.segment_ref import SegmentRef
from tailrace.eventstore.settings import UpkeepSettings
from tailrace.eventstore.state.input import StateInput
from tailrace.projections.compute.state_runs import SparkWorkers
from tests.eventstore.bucket_state import compute_state
from tests.eventstore.histories import FIRST, History
from tests.eventstore.maintenance.retention.test_model import NOWHERE, at_epoch, run_of
from tests.eventstore.maintenance.state_runs.test_state_runs import fill, rows_read, state_of
from tests.fixtures.scale import Scale
from tests.fixtures.stores import StoreFactory

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# The plain definition: of the rows behind the last truncate the last of each key, unless it is a delete; a cell that
# was not sent is that of the last row that has it.
DEFINITION = """
WITH living AS (
  SELECT c.* FROM changes c LEFT JOIN (
    SELECT history, max(_ordinal) AS last FROM changes WHERE _op = 't' GROUP BY history
  ) t ON c.history = t.history WHERE c._op <> 't' AND c._ordinal > coalesce(t.last, 0)
)
SELECT history, key.id AS id,
  max_by(struct(after.body), _ordinal) FILTER (WHERE _op <> 'd' AND NOT body_unsent).body AS body,
  max_by(struct(after.extra), _ordinal) FILTER (WHERE _op <> 'd' AND NOT extra_unsent).extra AS extra
FROM (
  SELECT *, coalesce(array_contains(_unchanged, 2), false) AS body_unsent,
            coalesce(array_contains(_unchanged, 3), false) AS extra_unsent FROM living
) GROUP BY history, key.id HAVING max_by(_op, _ordinal) <> 'd'
"""


def random_history(random: Random) -> History:
    """Without cells that came from another key: SQL has no plain word for those."""
    history = History(hash_modulus=random.choice([0, 2]))
    texts = [None, "", "a", "b", "ü"]
    for _ in range(random.randint(0, 40)):
        key = random.randint(0, 5)
        step = random.choice(["put", "put", "put", "put", "move", "delete", "truncate", "cut", "cut"])
        if step == "put":
            unsent = random.sample(["body", "extra"], random.randint(0, 2))
            history.put(key, {"body": random.choice(texts), "extra": random.choice(texts)}, unsent)
        elif step == "move":
            history.move(key, random.randint(0, 5), [])
        elif step == "delete":
            history.delete(key)
        elif step == "cut" or random.random() < 0.2:
            history.cut() if step == "cut" else history.truncate()
    return history


def through_runs(whole: StateInput, random: Random) -> list[SegmentRef]:
    """The references of a state by way of runs up to random epochs, each made on the one before."""
    left: list[SegmentRef] = []
    after = 0
    last = max((ref.last_epoch for ref in whole.refs), default=0)
    for cut in sorted(random.sample(range(1, last + 2), min(last + 1, 3))):
        left += run_of(whole, [ref for ref in whole.refs if after < ref.last_epoch <= cut], list(left), after)
        after = cut
    return [*left, *(ref for ref in whole.refs if ref.last_epoch > after)]


def rows_of(whole: StateInput, refs: list[SegmentRef], history: int) -> set[tuple[Any, ...]]:
    wanted = at_epoch(whole, whole.refs)
    found = set()
    for bucket in range(wanted.buckets):
        table = compute_state(NOWHERE, replace(wanted, refs=tuple(refs)), bucket)
        columns = (table[name].to_pylist() for name in ("id", "body", "extra"))
        found |= {(history, *row) for row in zip(*columns, strict=True)}
    return found


def test_the_state_by_way_of_runs_is_that_of_all_rows_and_what_spark_sql_says(
    spark: SparkSession, tmp_path: Path, scale: Scale
) -> None:
    random = Random(20261122)
    rows: list[dict[str, Any]] = []
    by_runs: set[tuple[Any, ...]] = set()
    by_rows: set[tuple[Any, ...]] = set()
    for number in range(scale.pick(smoke=40, full=2000)):
        history = random_history(random)
        rows += [{**row, "history": number} for _, epoch in history.epochs for row in epoch]
        whole = history.state_input(random.choice([1, 3]), random.choice([1, 2]))
        by_rows |= rows_of(whole, list(whole.refs), number)
        by_runs |= rows_of(whole, through_runs(whole, random), number)
    schema = change_schema(FIRST).append(pa.field("history", pa.int64()))
    pq.write_table(pa.Table.from_pylist(rows, schema=schema), tmp_path / "changes.parquet")
    spark.read.parquet(str(tmp_path / "changes.parquet")).createOrReplaceTempView("changes")
    defined = {tuple(row) for row in spark.sql(DEFINITION).collect()}
    assert len(defined) > 50
    assert by_rows == defined
    assert by_runs == defined


@pytest.mark.parametrize("catalog_url", ["sqlite"], indirect=True)
def test_spark_makes_the_runs_that_this_process_would_make(
    spark: SparkSession, new_store: StoreFactory
) -> None:
    store = new_store(upkeep=UpkeepSettings(state_bytes=1))
    fill(store, 1, 30)
    before = state_of(store)
    made = store.compact(workers=SparkWorkers(spark, 2))
    assert [bool(each.bytes) for each in made] == [True, False]
    assert state_of(store) == before
    assert rows_read(store) == made[0].kept
    assert store.verify().findings == ()
