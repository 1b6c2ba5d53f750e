"""What a build that was cut off had finished: the attempt that goes on with it takes whole buckets over.

In the first step of a generation each bucket that is done gets a receipt beside its files: what it holds, and its
*basis*, all that its rows follow from besides the definition. The next attempt computes at the same position, leaves
these buckets out and commits copies of their files under names of its own: the driver before may only have been asleep,
and removes what has its name when it finds itself fenced.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import Self

from tailrace.eventstore.errors import MissingFile, TailraceError
from tailrace.eventstore.maintenance.redaction.receipts import erasures
from tailrace.eventstore.metadata import attempts
from tailrace.eventstore.model.position import Cut
from tailrace.eventstore.model.topic import TopicId
from tailrace.eventstore.segment import file_reader
from tailrace.projections.compute.bucket import BucketOutcome, BucketReceipt, BucketTask, receipts
from tailrace.projections.compute.read_plan import plan_reads
from tailrace.projections.context import ProjectionContext
from tailrace.projections.definition.model import Projection
from tailrace.projections.generations.generation import Generation
from tailrace.projections.generations.result_input import common_cut, results_at
from tailrace.projections.generations.step_files import BucketFiles, folder_of


@dataclass(frozen=True, slots=True)
class Basis:
    """What the rows of a build follow from: the epoch and its hash, the generations of the results that are read, and
    of each topic the epoch that tells of rows that were erased last."""

    epoch: int
    epoch_hash: str
    results: Mapping[str, int]
    erased: Mapping[str, int]

    def to_text(self) -> str:
        return json.dumps(asdict(self), sort_keys=True)

    @classmethod
    def from_text(cls, text: str) -> Self:
        return cls(**json.loads(text))


@dataclass(frozen=True, slots=True)
class Left:
    """What the attempts at a build left that ended: files, and the receipts among them."""

    paths: tuple[str, ...]
    receipts: tuple[BucketReceipt, ...]


def left_of(ctx: ProjectionContext, generation: Generation) -> Left:
    """Of a generation without steps. What was listed before the leases of the dead were ended, none of these will name
    any more."""
    name, number = generation.projection, generation.number
    listed = list(ctx.store.storage.list(folder_of(name, number)))
    living = attempts.at_work(ctx.store.catalog, name, number) if listed else frozenset()
    paths = tuple(path for path in listed if not any(attempts.is_by(path, each) for each in living))
    return Left(paths, tuple(receipts(ctx.store.storage, paths)))


def basis_at(ctx: ProjectionContext, generation: Generation, cut: Cut, results: Mapping[str, int]) -> Basis:
    return Basis(cut.epoch, ctx.epoch(cut.epoch).hash, dict(results), _erased(ctx, generation))


def _erased(ctx: ProjectionContext, generation: Generation) -> dict[str, int]:
    topics = [TopicId.parse(need.topic) for need in generation.inputs]
    return {topic.text: epoch for topic, epoch in erasures(ctx.store, topics).items()}


def position(
    ctx: ProjectionContext, projection: Projection, generation: Generation, left: Left
) -> Cut | None:
    """Where a build that follows the log has finished most buckets, if it can be gone on with from there."""
    found = Counter(receipt.basis for receipt in left.receipts)
    for text, _ in found.most_common():
        basis = Basis.from_text(text)
        with suppress(TailraceError):  # whatever it is: then it is computed at the head
            cut = ctx.store.cut(basis.epoch)
            if common_cut(ctx.store, projection, cut) != cut:
                continue
            results = results_at(ctx.store, projection, cut, {})
            if basis_at(ctx, generation, cut, results) == basis:
                plan_reads(ctx.store, projection, cut, ctx.parallelism)  # its history may be gone
                return cut
    return None


def take_over(
    ctx: ProjectionContext, generation: Generation, task: BucketTask, left: Left
) -> dict[int, BucketOutcome]:
    """The buckets that earlier attempts finished on the task's basis, as this one's; what else they left is removed.

    Raises what the store does: then the next attempt finds either copy.
    """
    found: dict[int, BucketReceipt] = {}
    for receipt in left.receipts:
        if receipt.basis == task.basis:
            found.setdefault(receipt.outcome.bucket, receipt)
    wanted = {path for receipt in found.values() for path in receipt.paths}
    for path in left.paths:  # first: where there is no room, it is needed
        if path not in wanted:
            task.storage.delete(path)
    outcomes: dict[int, BucketOutcome] = {}
    step = f"taking over finished buckets of {generation.projection}"
    with ThreadPoolExecutor(os.cpu_count() or 1, "tailrace-copy") as pool:
        copies = pool.map(lambda receipt: _copied(task, receipt), found.values())
        for done, outcome in enumerate(copies):
            ctx.report(step, done, len(found), "buckets")
            if outcome is not None:
                outcomes[outcome.bucket] = outcome
    return outcomes


def _copied(task: BucketTask, receipt: BucketReceipt) -> BucketOutcome | None:
    """The bucket under a name of this attempt; None when its file is not what was written."""
    storage, outcome = task.storage, None
    with suppress(MissingFile):
        data = storage.open(receipt.file.path)
        if file_reader.checksum(data) == receipt.file.checksum:
            file = replace(receipt.file, path=f"{task.stem(receipt.file.bucket)}.run.parquet")
            storage.write(file.path, data)
            outcome = replace(receipt.outcome, files=BucketFiles(file), delta=file)
            task.receipt(outcome)
    for path in receipt.paths:
        storage.delete(path)
    return outcome


def resumable(ctx: ProjectionContext, generation: Generation, paths: Collection[str]) -> set[str]:
    """Of the files of a build those that another attempt may take over: none that could hold what was erased since."""
    erased = _erased(ctx, generation)
    found = receipts(ctx.store.storage, paths)
    return {
        path for receipt in found if Basis.from_text(receipt.basis).erased == erased for path in receipt.paths
    }
