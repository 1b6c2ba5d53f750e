"""Which rows of a topic are of one key, and of the keys that its row had before and after.

A *lifetime* of a key ends with its delete, or a truncate: what comes under the same key later is another row. A key
change is a delete and a create that follows it at once (``_moved_from``), so it joins two lifetimes. A request for a
key means all its lifetimes, and all that are joined to them; other lifetimes of other keys are other rows.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from tailrace.eventstore.model.postgres_text import postgres_texts

Key = tuple[str | None, ...]  # texts of its columns
Place = tuple[int, int, int]  # (epoch, LSN, ordinal)
# The topic's rows from its start, in offset order within each partition, of at least ``COLUMNS``; asked several times.
Read = Callable[[], Iterable[pa.Table]]

COLUMNS = (
    "_partition",
    "_offset",
    "_epoch",
    "_hash",
    "_op",
    "_lsn",
    "_ordinal",
    "key",
    "_moved_from",
    "_raw",
)


@dataclass(frozen=True, slots=True)
class KeyRows:
    """Offsets of the rows by partition, ascending; ``keys`` are all keys they had, the requested one first."""

    offsets: dict[int, list[int]]
    keys: tuple[Key, ...]


@dataclass(frozen=True, slots=True)
class _Row:
    partition: int
    offset: int
    place: Place
    op: str
    key_hash: int
    key: Key
    moved: bool


def rows_of(read: Read, key_hash: int, key: Key) -> KeyRows:
    """The rows of a key; none when there is none. Reads as often as key changes make it necessary."""
    wanted = {key_hash}
    places: set[Place] = set()
    while True:
        rows = list(_candidate_rows(read(), wanted, places))
        creates = [row for row in rows if row.moved]
        halves = {(row.place[0], row.place[1], row.place[2] - 1) for row in creates}
        deletes = {row.place: row for row in rows if row.op == "d"}
        # Only changes that touch a key of ours: others are seen because every one is read.
        more, grown = set(wanted), True
        while grown:
            grown = False
            for create in creates:
                old = deletes.get((create.place[0], create.place[1], create.place[2] - 1))
                both = {create.key_hash} | ({old.key_hash} if old is not None else set())
                if both & more and not both <= more:
                    more, grown = more | both, True
        if more == wanted and halves <= places:
            return _joined_lifetimes(rows, wanted, key_hash, key)
        wanted, places = more, places | halves


def rows_about(tables: Iterable[pa.Table], column: str, text: str) -> KeyRows:
    """Rows whose ``column``, after or before the change, is this text, as the source prints it; a row that was given
    from one to another is about both in that change."""
    offsets: dict[int, list[int]] = defaultdict(list)
    found: set[Key] = set()
    for table in tables:
        mask = pa.array([False] * table.num_rows, pa.bool_())
        for image in ("after", "before"):
            structs = table[image].combine_chunks()
            at = structs.type.get_field_index(column) if pa.types.is_struct(structs.type) else -1
            if at >= 0:
                same = pc.equal(postgres_texts(pc.struct_field(structs, [at])), text)
                mask = pc.or_(mask, pc.fill_null(same, False))
        mine = table.filter(mask)
        if mine.num_rows:
            found.update(_texts(mine))
            for partition, offset in zip(
                mine["_partition"].to_pylist(), mine["_offset"].to_pylist(), strict=True
            ):
                offsets[partition].append(offset)
    return KeyRows(
        {partition: sorted(each) for partition, each in offsets.items()}, tuple(sorted(found, key=str))
    )


def _candidate_rows(tables: Iterable[pa.Table], hashes: set[int], places: set[Place]) -> Iterator[_Row]:
    """Rows of these keys, truncates, all key changes, and the deletes at these places."""
    mine = pa.array(sorted(hashes), pa.int64())
    lsns = pa.array(sorted({lsn for _, lsn, _ in places}), pa.int64())
    for table in tables:
        mask = pc.or_(pc.is_in(table["_hash"], value_set=mine), pc.equal(table["_op"], "t"))
        mask = pc.or_(mask, pc.is_valid(table["_moved_from"]))
        if len(lsns):
            halves = pc.and_(pc.equal(table["_op"], "d"), pc.is_in(table["_lsn"], value_set=lsns))
            mask = pc.or_(mask, halves)
        chosen = table.filter(mask)
        if chosen.num_rows:
            yield from _rows(chosen)


def _rows(table: pa.Table) -> Iterator[_Row]:
    keys = _texts(table)
    narrow = zip(
        *(table[name].to_pylist() for name in ("_partition", "_offset", "_epoch", "_lsn", "_ordinal")),
        table["_op"].to_pylist(),
        table["_hash"].to_pylist(),
        pc.is_valid(table["_moved_from"]).to_pylist(),
        strict=True,
    )
    for (partition, offset, epoch, lsn, ordinal, op, key_hash, moved), key in zip(narrow, keys, strict=True):
        yield _Row(partition, offset, (epoch, lsn, ordinal), op, key_hash, key, moved)


def _texts(table: pa.Table) -> list[Key]:
    """The keys as the source prints them."""
    structs = table["key"].combine_chunks()
    columns = []
    raw = [dict(entries or ()) for entries in table["_raw"].to_pylist()]
    for at, field in enumerate(structs.type):
        column = int(field.metadata[b"PARQUET:field_id"])
        texts = postgres_texts(structs.field(at)).to_pylist()
        columns.append(
            [
                entries[column].decode(errors="replace") if column in entries and text is None else text
                for text, entries in zip(texts, raw, strict=True)
            ]
        )
    return list(zip(*columns, strict=True)) if columns else [()] * len(structs)


def _joined_lifetimes(rows: Sequence[_Row], wanted: set[int], key_hash: int, key: Key) -> KeyRows:
    """The rows of the lifetimes that are joined to those of the key."""
    lifetimes = _lifetimes(rows, wanted)
    of_row = {(row.partition, row.offset): life for life, members in lifetimes.items() for row in members}
    joins: dict[tuple[int, Key, int], set[tuple[int, Key, int]]] = defaultdict(set)
    deletes = {row.place: row for row in rows if row.op == "d"}
    for row in rows:
        old = deletes.get((row.place[0], row.place[1], row.place[2] - 1)) if row.moved else None
        if old is not None and row.key_hash in wanted and old.key_hash in wanted:
            one, other = of_row[row.partition, row.offset], of_row[old.partition, old.offset]
            joins[one].add(other)
            joins[other].add(one)
    named = {life[1] for life in lifetimes if life[0] == key_hash}
    exact = {key} & named or named  # several keys of one hash: the one that was named
    reached = [life for life in lifetimes if life[0] == key_hash and life[1] in exact]
    seen = set(reached)
    for life in reached:
        further = joins[life] - seen
        seen |= further
        reached += further
    offsets: dict[int, list[int]] = defaultdict(list)
    for life in reached:
        for row in lifetimes[life]:
            offsets[row.partition].append(row.offset)
    others = sorted({life[1] for life in reached if life[1] not in exact}, key=str)
    keys = (*sorted(exact, key=str), *others) if offsets else ()
    return KeyRows({partition: sorted(found) for partition, found in offsets.items()}, keys)


def _lifetimes(rows: Sequence[_Row], wanted: set[int]) -> dict[tuple[int, Key, int], list[_Row]]:
    """(hash, key, number) -> rows."""
    found: dict[tuple[int, Key, int], list[_Row]] = defaultdict(list)
    number: dict[tuple[int, Key], int] = defaultdict(int)
    truncates = sorted({row.place for row in rows if row.op == "t"})
    for row in sorted(rows, key=lambda row: (row.partition, row.offset)):
        if row.op != "t" and row.key_hash in wanted:
            mine = (row.key_hash, row.key)
            # Deletes and truncates both only count up, so their sum tells lifetimes apart.
            found[(*mine, number[mine] + bisect_right(truncates, row.place))].append(row)
            number[mine] += row.op == "d"
    return found
