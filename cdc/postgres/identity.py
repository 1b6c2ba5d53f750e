"""What a topic's completeness rests on: how its table is published, and of which partitions it is made.

Kept in the catalog with the load that completed the topic, and compared with the source's at every look. The catalog
of the source keeps no history, but its rows have identities (oid and xmin) that nothing brings back: a table that left
the publication and came back, also while nobody looked, has another entry than before. Partitions that were filled
before they were attached, or that are gone, changed rows of which the stream of their root says nothing.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field


@dataclass(frozen=True, slots=True)
class Leaf:
    """A partition that holds rows. ``links`` are its ties to the root, level by level; ``born``: it was made as a
    partition, so was empty then, and was not rewritten since."""

    file: int  # relfilenode
    links: str
    born: bool = False


@dataclass(frozen=True, slots=True)
class Identity:
    """``publication`` is the publication itself with its options, ``entries`` what makes it hold this table."""

    publication: str
    entries: tuple[str, ...] = ()
    row_filter: str = ""
    column_list: str = ""
    leaves: Mapping[int, Leaf] = field(default_factory=dict)

    def to_json(self) -> str:
        return json.dumps(asdict(self), ensure_ascii=False, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> Identity:
        data = json.loads(text)
        leaves = {int(oid): Leaf(**leaf) for oid, leaf in data.pop("leaves").items()}
        return cls(entries=tuple(data.pop("entries")), leaves=leaves, **data)


def lost_by(before: Identity, now: Identity) -> str:
    """Why changes of the table may be missing since ``before``; "" when none are."""
    if before.publication != now.publication:
        return "its publication was altered or made again"
    if before.row_filter != now.row_filter:
        return "its row filter changed"
    if before.column_list != now.column_list:
        return "its column list changed"
    if before.entries != now.entries:
        return "it left the publication and came back"
    if before.leaves.keys() - now.leaves.keys():
        return "a partition was detached or dropped"
    if any(now.leaves[oid].links != leaf.links for oid, leaf in before.leaves.items()):
        return "a partition was detached and attached again"
    if any(now.leaves[oid].file != leaf.file for oid, leaf in before.leaves.items()):
        return "a partition was truncated or rewritten"
    if not all(now.leaves[oid].born for oid in now.leaves.keys() - before.leaves.keys()):
        return "a partition was attached that may have had rows"
    return ""
