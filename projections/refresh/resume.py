"""A build that was cut off goes on: the next attempt takes over the buckets that were finished.

The life of a bucket in the first step of a generation:

  1. *Written*: its files, then a receipt beside them. The receipt says what they hold, and their *basis*: everything
     that rows follow from besides the definition.
  2. *Left over*: the attempt ended without a commit. Its lease is over, so that nothing of its name can be committed.
  3. *Taken over*: the next attempt computes at the same position, does not compute this bucket, and copies its files to
     names of its own. The driver before may only have been asleep: when it finds itself fenced it removes what has its
     name. Files of another basis are removed.
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
from tailrace.eventstore.maintenance.files.owner import require_own_segments
from tailrace.eventstore.maintenance.redaction.receipts import erasures
from tailrace.eventstore.metadata import attempts
from tailrace.eventstore.model.position import Cut
from tailrace.eventstore.model.topic import TopicId
from tailrace.eventstore.segment import file_reader
from tailrace.projections.compute.bucket import BucketOutcome, BucketReceipt, BucketTask, receipts
from tailrace.projections.compute.read_plan import resolve_reads
from tailrace.projections.context import ProjectionContext
from tailrace.projections.definition.model import Projection
from tailrace.projections.generations.generation import Generation
from tailrace.projections.generations.result_input import common_cut, results_at
from tailrace.projections.generations.step_files import BucketFiles, folder_of


@dataclass(frozen=True, slots=True)
class Basis:
    """What the rows of a build follow from: the epoch and its hash, the generations of the results that are read, and
    for each topic the last epoch that reports a redaction."""

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
class Leftovers:
    """Files of attempts at a build that have ended, and the receipts among them."""

    paths: tuple[str, ...]
    receipts: tuple[BucketReceipt, ...]


def leftovers_of(ctx: ProjectionContext, generation: Generation) -> Leftovers:
    """The leftovers of a generation without steps. The files are listed before the leases of dead attempts are ended,
    so that no commit can name one of them afterwards."""
    name, number = generation.projection, generation.number
    listed = list(ctx.store.storage.list(folder_of(name, number)))
    living = attempts.live_attempts(ctx.store.catalog, name, number) if listed else frozenset()
    paths = tuple(path for path in listed if not any(attempts.is_by(path, each) for each in living))
    return Leftovers(paths, tuple(receipts(ctx.store.storage, paths)))


def basis_at(ctx: ProjectionContext, generation: Generation, cut: Cut, results: Mapping[str, int]) -> Basis:
    return Basis(cut.epoch, ctx.epoch(cut.epoch).hash, dict(results), _redactions(ctx, generation))


def _redactions(ctx: ProjectionContext, generation: Generation) -> dict[str, int]:
    topics = [TopicId.parse(need.topic) for need in generation.inputs]
    return {topic.text: epoch for topic, epoch in erasures(ctx.store, topics).items()}


def position_of(
    ctx: ProjectionContext, projection: Projection, generation: Generation, leftovers: Leftovers
) -> Cut | None:
    """Where a build that follows the log has finished most buckets, if its inputs can still be read there."""
    found = Counter(receipt.basis for receipt in leftovers.receipts)
    for text, _ in found.most_common():
        basis = Basis.from_text(text)
        with suppress(TailraceError):  # whatever it is: then it is computed at the head
            cut = ctx.store.cut(basis.epoch)
            if common_cut(ctx.store, projection, cut) != cut:
                continue
            results = results_at(ctx.store, projection, cut, {})
            if basis_at(ctx, generation, cut, results) == basis:
                resolve_reads(ctx.store, projection, cut)  # its history may be gone
                return cut
    return None


def take_over(
    ctx: ProjectionContext, generation: Generation, task: BucketTask, leftovers: Leftovers
) -> dict[int, BucketOutcome]:
    """Copy the buckets that earlier attempts finished on the task's basis, and remove all else that they left.

    Raises what the store does: then the next attempt finds one copy or the other.
    """
    found: dict[int, BucketReceipt] = {}
    for receipt in leftovers.receipts:
        if receipt.basis == task.basis:
            found.setdefault(receipt.outcome.bucket, receipt)
    wanted = {path for receipt in found.values() for path in receipt.paths}
    require_own_segments(ctx.store)
    for path in leftovers.paths:  # first: where there is no room, it is needed
        if path not in wanted:
            task.storage.delete(path)
    outcomes: dict[int, BucketOutcome] = {}
    step = f"taking over finished buckets of {generation.projection}"
    with ThreadPoolExecutor(os.cpu_count() or 1, "tailrace-copy") as pool:
        copies = pool.map(lambda receipt: _copy(task, receipt), found.values())
        for done, outcome in enumerate(copies):
            ctx.report(step, done, len(found), "buckets")
            if outcome is not None:
                outcomes[outcome.bucket] = outcome
    return outcomes


def _copy(task: BucketTask, receipt: BucketReceipt) -> BucketOutcome | None:
    """The bucket under a name of this attempt; None when its file is not what was written."""
    storage, outcome = task.storage, None
    with suppress(MissingFile):
        data = storage.open(receipt.file.path)
        if file_reader.checksum(data) == receipt.file.checksum:
            file = replace(receipt.file, path=f"{task.stem(receipt.file.bucket)}.run.arrow")
            storage.write(file.path, data)
            outcome = replace(receipt.outcome, files=BucketFiles(file), delta=file)
            task.receipt(outcome)
    for path in receipt.paths:
        storage.delete(path)
    return outcome


def resumable_files(ctx: ProjectionContext, generation: Generation, paths: Collection[str]) -> set[str]:
    """The files of a build that another attempt may take over: none that could hold what was erased since."""
    erased = _redactions(ctx, generation)
    found = receipts(ctx.store.storage, paths)
    return {
        path for receipt in found if Basis.from_text(receipt.basis).erased == erased for path in receipt.paths
    }
