"""State runs written by Spark: a task writes those of some partitions, without the catalog, and returns file names."""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from tailrace.eventstore.maintenance.state_runs.write import Share, WrittenShare
from tailrace.projections.spark.connect import connect_session
from tailrace.projections.spark.errors import translate_upkeep_errors
from tailrace.projections.spark.masters import is_connect, parallelism_of
from tailrace.projections.spark.session import master, open_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tailrace.eventstore.settings import Settings


@dataclass(frozen=True, slots=True)
class SparkWorkers:
    """The tasks of a session as workers that write state runs. A task that Spark runs twice writes under another name;
    files that nothing names are collected as orphans."""

    session: SparkSession
    shares: int

    @classmethod
    def of(cls, settings: Settings) -> SparkWorkers:
        """Raises what ``open_session`` and ``connect_session`` raise."""
        where = master(settings)
        session = connect_session(settings) if is_connect(where) else open_session(settings)
        return cls(session, parallelism_of(where, settings.spark.shuffle_partitions))

    def write(self, shares: Sequence[Share]) -> Sequence[WrittenShare]:
        units = pa.table(
            {
                "at": pa.array(range(len(shares)), pa.int32()),
                "unit": pa.array([pickle.dumps(share) for share in shares], pa.binary()),
            }
        )
        with translate_upkeep_errors("writing state runs"):
            frame = self.session.createDataFrame(units).repartition(len(shares), "at")
            answers: pa.Table = frame.mapInArrow(_write_shares, "at int, written binary").toArrow()
        found = dict(zip(answers["at"].to_pylist(), answers["written"].to_pylist(), strict=True))
        return [pickle.loads(found[at]) for at in range(len(shares))]


def _write_shares(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Spark task: its shares, one after another."""
    for batch in batches:
        for at, unit in zip(batch["at"].to_pylist(), batch["unit"].to_pylist(), strict=True):
            share: Share = pickle.loads(unit)
            yield pa.record_batch(
                {"at": pa.array([at], pa.int32()), "written": [pickle.dumps(share.write())]}
            )
