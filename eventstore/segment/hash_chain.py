"""The two chains of hashes: of epochs, as they were appended, and of what was made of a topic's files since. Pure.

An epoch's hash covers the hash before it, the checksums of its parts as they were stored first, its place and
times, and what the log declared of its topics (``metadata.declared``). Sealing drops those parts, so it checks them
against the hash first (``parts_hash``).

Then *content* takes over (``content``). Each file that replaces others is an entry in its topic's chain: number, hash
of the entry before, what it was made of, what it is. An entry lives as long as its file, in ``segments.origin``; the
topic's row of ``lineage`` holds the newest hash and the sum of all contents, so no row of ``segments`` can be taken
away, added or exchanged by itself.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from tailrace.eventstore.model.segment_ref import PartitionRange

# What an epoch's hash covers of its row, beside ``content``. The ids of topics are the catalog's own.
_COVERED = (
    "epoch", "source", "incarnation", "commit_lsn", "end_lsn", "first_lsn", "last_lsn",
    "commit_ts", "first_ts", "last_ts", "transactions", "rows",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class AppendedPart:
    """One topic's rows in an epoch as they were stored first. ``checksum``: of a file, or of the part's plain bytes."""

    topic: str
    version: int
    first_row: int
    checksum: str
    ranges: Sequence[PartitionRange]


def parts_hash(parts: Iterable[AppendedPart]) -> str:
    """SHA-256 over what an epoch brings, whatever order its parts come in."""
    described = sorted(
        [
            part.topic,
            part.first_row,
            part.version,
            part.checksum,
            [[r.partition, r.first_offset, r.rows] for r in part.ranges],
        ]
        for part in parts
    )
    return _sha256(described)


def receipt_hash(receipt: str) -> str:
    """What stands for the parts of an epoch that brings no rows and tells of a redaction."""
    return _sha256(["redaction", receipt])


def partitioning_hash(topic: str, first: int, count: int) -> str:
    """What stands for the parts of an epoch that brings no rows and gives a topic ``count`` new partitions, numbered
    from ``first`` on."""
    return _sha256(["partitions", topic, first, count])


def retirement_hash(topic: str) -> str:
    """What stands for the parts of an epoch that brings no rows and retires a topic."""
    return _sha256(["retired", topic])


def epoch_hash(previous: str, values: Mapping[str, Any]) -> str:
    """The hash of an epoch from its row and the hash of the one before ("" before the first). Epochs of a format that
    declared nothing have none of it in their hashes."""
    covered = [previous, values["content"], *(values[name] for name in _COVERED)]
    declared = values["declared"]
    return _sha256(covered if declared is None else [*covered, declared])


@dataclass(frozen=True, slots=True)
class RewriteOrigin:
    """An entry of a topic's chain. ``by``: seal, merge, …; ``inputs``: what was replaced, each with its checksum, or,
    where there were too many to name, one line for all with a hash over them."""

    number: int
    previous: str
    by: str
    inputs: tuple[tuple[str, str], ...]

    def to_json(self) -> str:
        return json.dumps(asdict(self), separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> RewriteOrigin:
        data = json.loads(text)
        return cls(**{**data, "inputs": tuple((name, digest) for name, digest in data["inputs"])})


def entry_hash(origin: RewriteOrigin, output: Mapping[str, Any]) -> str:
    """The hash of an entry; ``output``: the row of ``segments`` that it made ({} when it made none)."""
    made = [output.get(name) for name in ("path", "checksum", "content", "rows", "ranges")]
    return _sha256([origin.number, origin.previous, origin.by, origin.inputs, made])


def digest(names: Iterable[Sequence[object]]) -> str:
    """One hash for many inputs."""
    return _sha256(list(names))


def _sha256(value: object) -> str:
    return hashlib.sha256(json.dumps(value, separators=(",", ":")).encode()).hexdigest()
