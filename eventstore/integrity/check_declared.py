"""Are topics, schema versions, incomplete intervals and what is read of Kafka what the log declared? Pure: rows to
findings.

From the rows to the topic's sum, from there to the head's, and to that of the last epoch, which its hash covers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from tailrace.eventstore.integrity.findings import Finding, LogProblem
from tailrace.eventstore.metadata import declared, kafka_progress
from tailrace.eventstore.metadata.declared import AnyRow, Declared


def findings(rows: Mapping[str, Sequence[AnyRow]]) -> Iterator[Finding]:
    """``rows`` of tables by name."""
    for topic in declared.of_rows(rows["topics"], rows["topic_schemas"], rows["incomplete"]):
        if not topic.holds:
            yield Finding(LogProblem.CHANGED, topic.place, declared.CHANGED)
    sums = {row.id: int(row.declared, 16) for row in rows["topics"] if declared.is_sum(row.declared)}
    apart = {table: rows[table.name] for table in kafka_progress.COVERED}
    for table, found in apart.items():
        for row in found:
            if not kafka_progress.holds(table, row):
                yield Finding(LogProblem.CHANGED, kafka_progress.place_of(table, row), kafka_progress.CHANGED)
    beside = kafka_progress.total(apart)
    for row in rows["log_head"]:
        if Declared.parse(row.declared) != declared.of_sums(sums, max(sums, default=0)).plus(beside):
            detail = "its sum is not that over the topics, kafka_partitions and parked_records"
            yield Finding(LogProblem.CHANGED, f"log_head: id {row.id}", detail)
    last = max(rows["epochs"], key=lambda row: row.epoch, default=None)
    if last is None or last.declared is None:
        return  # nothing was appended since the tables had no such sums
    said = Declared.parse(last.declared)
    if said is None or said != declared.of_sums(sums, said.highest).plus(beside):
        detail = "its sum is not that over the topics that there were, kafka_partitions and parked_records"
        yield Finding(LogProblem.CHANGED, f"epochs: epoch {last.epoch}", detail)
