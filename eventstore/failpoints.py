"""Named places where a process can be made to die or to wait, for crash tests. One name per step of the pipeline.

``TAILRACE_FAILPOINT="epoch_committed:3"`` kills this process (SIGKILL: no handler, no flush, as a power cut would) at
the third time it passes there; ``"inside_commit~250"`` makes every pass wait 250 ms instead, and
``"table_decoded=shop.public.orders"`` makes every pass with that subject fail. Several are separated by commas. Unset,
a pass costs one ``if``.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from tailrace.eventstore.errors import UsageError

VARIABLE = "TAILRACE_FAILPOINT"

# Architecture page, steps 1 to 10, are those of capture and projections.
GROUPS: Final[Mapping[str, tuple[str, ...]]] = {
    "capture": (
        "frame_received",
        "transaction_gathered",
        "records_fetched",  # of Kafka, enough for an epoch
        "table_decoded",  # the rows of one topic; can be refused
        "epoch_decoded",
        "segment_written",
        "inside_commit",  # everything executed, COMMIT not sent
        "epoch_committed",
        "position_confirmed",
        "repair_compared",  # everything compared, nothing of it in the log
        "adoption_read",  # what the slot of Debezium sends again is read, no epoch takes its source over yet
        "frames_kept",  # of a topic in quarantine: their file is written, no epoch names it
        "frames_retried",  # decoded again, nothing of it in the log
        "chunk_read",  # a load's chunk is read, its mark not committed
    ),
    "projections": (
        "refresh_planned",
        "derived_written",  # in a task: a bucket's files are durable, the driver does not know
        "derived_committed",
        "bucket_applied",
        "sink_fenced",
        "generation_promoted",
    ),
    "maintenance": (
        "seal_written",  # sealed files durable, catalog not touched
        "seal_swapped",  # catalog points to the sealed files, old ones not removed
        "merge_written",  # a merged file is durable, catalog not touched
        "merge_swapped",  # catalog points to the merged file, those it replaced are retired
        "fold_written",  # a file of epochs is durable, catalog not touched
        "fold_swapped",  # the catalog's rows or smaller files gave way to it
        "archive_copied",  # a file that retention is to remove is in the archive, not compared
        "retention_written",  # state run and what is left of a cut file are durable, catalog not touched
        "retention_swapped",  # the topic begins later, what it no longer needs is retired
        "state_run_written",  # a state run is durable, catalog not touched
        "state_run_swapped",  # readers find it, those it replaced are retired
        "redact_written",  # files with erased cells are durable, catalog not touched
        "redact_swapped",  # the catalog points to them, those they replaced are retired
        "forgotten_in_source",  # the keys of a subject are deleted, the log was not told
        "repartition_written",  # everything executed, COMMIT not sent
        "repartition_committed",  # later rows go to the new partitions, nobody was woken
        "retired_removed",  # a retired file is gone, its name is not
        "file_removed",  # an orphan
    ),
    "consumer": (
        "group_joined",
        "partition_taken",  # in the consumer's own database, where effects are; the group has it already
        "partitions_shared",  # the group knows who has what, this member does not yet
        "batch_given",  # fetched, the consumer has not seen it
        "position_committed",
        "effects_found",  # of a commit in the consumer's database, not reported to the group
    ),
    "publication": (
        "portion_read",  # rows are records, nothing is sent
        "batch_sent",  # a bridge's destination has some of the records
        "portion_sent",  # the destination has the records, not their position
        "publication_committing",  # it has both, and they are not committed
        "portion_published",  # committed, nobody was told
    ),
    "move": (
        "move_claimed",  # the new place is taken, the old one open
        "move_closed",  # nobody writes to the old place any more
        "move_file_copied",  # a file is in its new place, not compared
        "move_rows_copied",  # all rows are in the new catalog, which refuses to be opened
        "move_arrived",  # the new catalog is open, the old one does not know
        "move_marked",  # the old catalog says that the store has moved
        "backup_copied",  # every file is in the copy, its catalog is still the one before
    ),
}
NAMES: Final = frozenset(name for names in GROUPS.values() for name in names)


@dataclass(slots=True)
class _Armed:
    passes_left: int = 0  # kill when it reaches 0; 0 from the start = never
    wait_seconds: float = 0.0
    refused: str = ""  # the subject whose passes fail


class Refused(Exception):
    """What an armed fail point raises: an error of no class that anybody expects."""


def parse(text: str) -> dict[str, _Armed]:
    """``name[:n]``, ``name~milliseconds`` or ``name=subject``, comma-separated. Raises UsageError on an unknown name or
    bad number."""
    armed: dict[str, _Armed] = {}
    for item in filter(None, (item.strip() for item in text.split(","))):
        name, equals, subject = item.partition("=")
        name, tilde, wait = name.partition("~")
        name, _, count = name.partition(":")
        if name not in NAMES:
            raise UsageError(f"{VARIABLE} names no fail point: {name!r}", hint=f"one of {sorted(NAMES)}")
        try:
            if equals:
                armed[name] = _Armed(refused=subject)
            else:
                armed[name] = _Armed(wait_seconds=int(wait) / 1000) if tilde else _Armed(int(count or 1))
        except ValueError:
            raise UsageError(
                f"{VARIABLE}={item!r} has a bad number",
                hint="write NAME, NAME:COUNT, NAME~MS or NAME=SUBJECT",
            ) from None
    return armed


_armed: dict[str, _Armed] = {}
_lock = threading.Lock()


def arm(text: str) -> None:
    """Arm these and no others; at the import, what the environment says. Raises UsageError as ``parse`` does."""
    _armed.clear()
    _armed.update(parse(text))


arm(os.environ.get(VARIABLE, ""))


def hit(name: str, times: int = 1) -> None:
    """Pass the place called ``name``; what is taken together passes it as many ``times``, and waits once."""
    if not _armed or not times:
        return
    point = _armed.get(name)
    if point is None:
        return
    if point.wait_seconds:
        time.sleep(point.wait_seconds)
        return
    with _lock:
        before = point.passes_left
        point.passes_left -= times
        if before > 0 >= point.passes_left:
            os.kill(os.getpid(), signal.SIGKILL)


def refuse(name: str, subject: str) -> None:
    """Pass the place called ``name`` with one ``subject`` of several. Raises Refused when that is armed."""
    if _armed and (point := _armed.get(name)) is not None and point.refused == subject:
        raise Refused(f"fail point {name} refuses {subject}")
