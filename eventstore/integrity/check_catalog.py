"""Do the catalog's rows fit each other? Pure: from one picture of it to findings."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from itertools import pairwise

from tailrace.eventstore.catalog import terms
from tailrace.eventstore.integrity.catalog_snapshot import AnyRow, CatalogSnapshot, Tile, Topic, blob_place
from tailrace.eventstore.integrity.findings import Finding, LogProblem
from tailrace.eventstore.metadata import segment_index
from tailrace.eventstore.metadata.projection_steps import step_hash
from tailrace.eventstore.metadata.state_runs import rows_at_start
from tailrace.eventstore.segment import hash_chain
from tailrace.eventstore.segment.content_hash import Content


def epochs(picture: CatalogSnapshot, last_folded: str | None) -> Iterator[Finding]:
    """The numbers and hashes of the catalog's epochs, up to the head. ``last_folded``: hash of the last epoch that is
    in a file, None when it is not known."""
    number, previous = 0, last_folded
    for row in picture.epoch_files:
        if row.first_epoch != number + 1:
            yield _epoch_mismatch(row.path, number + 1, row.first_epoch)
        number = row.last_epoch
    for row in picture.epochs:
        if row.epoch != number + 1:
            yield _epoch_mismatch(f"epoch {row.epoch}", number + 1, row.epoch)
        elif previous is not None and hash_chain.epoch_hash(previous, row._asdict()) != row.hash:
            detail = "its hash does not match its catalog row and the epoch before"
            yield Finding(LogProblem.CHANGED, f"epoch {row.epoch}", detail)
        if (row.blob_bytes is None) != (row.append_id not in picture.blobs):
            problem = LogProblem.CHANGED if row.blob_bytes is None else LogProblem.MISSING
            what = (
                "is there, but its rows are in files" if row.blob_bytes is None else "is not in the catalog"
            )
            yield Finding(problem, blob_place(row.epoch), f"it {what}")
        number, previous = row.epoch, row.hash
    for append_id in sorted(picture.blobs - {row.append_id for row in picture.epochs}):
        yield Finding(LogProblem.FOREIGN, f"the blob of append {append_id}", "no epoch names it")
    if number != picture.epoch:
        yield Finding(
            LogProblem.GAP,
            "the log's head",
            f"it names epoch {picture.epoch}, but the last epoch is {number}",
        )
    elif previous is not None and previous != picture.hash:
        yield Finding(LogProblem.CHANGED, "the log's head", f"its hash is not that of epoch {number}")


def redactions(picture: CatalogSnapshot) -> Iterator[Finding]:
    """The receipts: each is what its epoch's hash covers, as long as that epoch is in the catalog."""
    contents = {row.epoch: row.content for row in picture.epochs}
    for row in picture.redactions:
        if contents.get(row.epoch, hash_chain.receipt_hash(row.receipt)) != hash_chain.receipt_hash(
            row.receipt
        ):
            detail = "its receipt is not the one that its epoch's hash was made of"
            yield Finding(LogProblem.CHANGED, f"the redaction of epoch {row.epoch}", detail)
        elif json.loads(row.receipt)["topic"] != picture.topics[row.topic_id].name.text:
            detail = "its receipt is of another topic"
            yield Finding(LogProblem.CHANGED, f"the redaction of epoch {row.epoch}", detail)


def repartitions(picture: CatalogSnapshot) -> Iterator[Finding]:
    """Every incarnation of a topic is what its epoch's hash covers, as long as that epoch is in the catalog."""
    contents = {row.epoch: row.content for row in picture.epochs}
    for topic in picture.topics.values():
        for each in topic.partitioning.incarnations[1:]:
            content = hash_chain.partitioning_hash(topic.name.text, each.first, each.count)
            if contents.get(each.behind, content) != content:
                detail = f"{topic.name}: its partitions from {each.first} on are not those that its hash was made of"
                yield Finding(LogProblem.CHANGED, f"epoch {each.behind}", detail)


def control_epochs(picture: CatalogSnapshot) -> Iterator[Finding]:
    """Each epoch without rows that is none of capture's tells of a redaction, a repartition or a retirement."""
    known, redacted = {hash_chain.parts_hash([])}, {row.epoch for row in picture.redactions}
    for topic in picture.topics.values():
        known.add(hash_chain.retirement_hash(topic.name.text))
        for each in topic.partitioning.incarnations[1:]:
            known.add(hash_chain.partitioning_hash(topic.name.text, each.first, each.count))
    for row in picture.epochs:
        if not row.rows and row.epoch not in redacted and row.content not in known:
            yield Finding(LogProblem.MISSING, f"epoch {row.epoch}", "what it tells of is not in the catalog")


def start(topic: Topic) -> Iterator[Finding]:
    """Where the topic begins is said twice, with the number of rows that make its state there."""
    book = topic.lineage
    if book is None:
        return  # ``lineage`` tells
    held = rows_at_start(topic.runs, topic.start_epoch)
    if (topic.start_epoch, held) != (book.start_epoch, book.start_rows):
        detail = (
            f"it begins behind epoch {topic.start_epoch}, with {held} rows of state; epoch {book.start_epoch}, with"
            f" {book.start_rows} rows, was recorded"
        )
        yield Finding(LogProblem.CHANGED, topic.name.text, detail)


def archived(topic: Topic) -> Iterator[Finding]:
    """Archived files lie one behind the other, before the rows that the log has. Some may be given up."""
    following = 0
    for row in topic.archived:
        if not following <= row.first_row <= sum(topic.begins) - row.rows:
            detail = f"{topic.name}: it is said to begin at row {row.first_row} of the topic"
            yield Finding(LogProblem.CHANGED, row.path, detail)
        if row.last_epoch > topic.start_epoch:
            yield Finding(
                LogProblem.CHANGED, row.path, f"{topic.name}: rows of its last epoch are in the log"
            )
        following = row.first_row + row.rows


def retired(picture: CatalogSnapshot) -> Iterator[Finding]:
    """Upkeep removes what is retired, so nothing that is in use may be, and no file of somebody else."""
    in_use = picture.in_use
    for path in sorted(picture.retired):
        place = f"retired: path {path}"
        if path in in_use:
            yield Finding(LogProblem.CHANGED, place, "the file is in use, and is said to be replaced")
        elif terms.FILE_NAME.fullmatch(path) is None:
            yield Finding(LogProblem.CHANGED, place, "it is no name that the log gives to a file of its own")


def _epoch_mismatch(place: str, expected: int, found: int) -> Finding:
    if found > expected:
        return Finding(LogProblem.GAP, place, f"epochs {expected} to {found - 1} before it are missing")
    return Finding(LogProblem.OVERLAP, place, f"epochs {found} to {expected - 1} are there twice")


def appended_files(picture: CatalogSnapshot) -> Iterator[Finding]:
    """Epochs whose rows are all in the files that capture wrote: their checksums are what the epoch's hash covers."""
    parts: dict[int, list[hash_chain.AppendedPart]] = {}
    rows: dict[int, int] = {}
    for topic in picture.topics.values():
        for row in topic.segments:
            if not row.sealed:
                parts.setdefault(row.first_epoch, []).append(appended_part(topic, row))
                rows[row.first_epoch] = rows.get(row.first_epoch, 0) + row.rows
    for epoch in picture.epochs:
        if epoch.rows and rows.get(epoch.epoch) == epoch.rows:
            yield from changed_parts(epoch, parts[epoch.epoch])


def appended_part(topic: Topic, row: AnyRow) -> hash_chain.AppendedPart:
    ranges = segment_index.ranges_from_json(row.ranges)
    return hash_chain.AppendedPart(topic.name.text, row.version, row.first_row, row.checksum, ranges)


def changed_parts(epoch: AnyRow, parts: Sequence[hash_chain.AppendedPart]) -> Iterator[Finding]:
    """Whether these, all that an epoch brought, are what its hash covers."""
    if hash_chain.parts_hash(parts) != epoch.content:
        detail = "its rows are not those that its hash was made of"
        yield Finding(LogProblem.CHANGED, f"epoch {epoch.epoch}", detail)


def tiles(topic: Topic, head: int) -> Iterator[Finding]:
    """Everything that holds rows of the topic, laid end to end: no gap, no overlap, in every partition."""
    following = list(topic.begins)
    row, epoch = sum(following), topic.start_epoch + 1
    before = "the log's start"
    for tile in topic.tiles:
        findings = list(_offset_findings(topic, tile, following, before))
        if not findings and tile.first_row != row:
            text = f"it is said to begin at row {tile.first_row} of the topic; row {row} is next"
            findings = [Finding(_sign(tile.first_row - row), tile.place, f"{topic.name}: {text}")]
        if tile.rows != sum(piece.rows for piece in tile.ranges):
            text = f"{topic.name}: its {tile.rows} rows are not those of its ranges of offsets"
            findings.append(Finding(LogProblem.CHANGED, tile.place, text))
        if not epoch <= tile.first_epoch <= tile.last_epoch <= head:
            text = f"epochs {tile.first_epoch} to {tile.last_epoch} do not follow epoch {epoch} of {before}"
            findings.append(Finding(LogProblem.CHANGED, tile.place, f"{topic.name}: {text}"))
        yield from findings
        yield from _partition_findings(topic, tile)
        row, epoch, before = tile.first_row + tile.rows, tile.last_epoch, tile.place
    wrong = [
        f"{_offsets(*sorted((at, end)))} of partition {partition}"
        for partition, (at, end) in enumerate(zip(following, topic.ends, strict=True))
        if at != end
    ]
    if wrong:
        sign = sum(topic.ends) - sum(following)
        text = f"{', '.join(wrong)} {'are in no file' if sign > 0 else 'are not in the log'}, behind {before}"
        yield Finding(_sign(sign), topic.name.text, text)


def _offset_findings(topic: Topic, tile: Tile, following: list[int], before: str) -> Iterator[Finding]:
    """Moves ``following`` behind the tile."""
    gaps, overlaps = [], []
    for piece in tile.ranges:
        expected = following[piece.partition]
        if piece.first_offset > expected:
            gaps.append(f"{_offsets(expected, piece.first_offset)} of partition {piece.partition}")
        elif piece.first_offset < expected:
            overlaps.append(f"{_offsets(piece.first_offset, expected)} of partition {piece.partition}")
        following[piece.partition] = piece.first_offset + piece.rows
    if gaps:
        text = f"{topic.name}: {', '.join(gaps)} are in no file, between {before} and this"
        yield Finding(LogProblem.GAP, tile.place, text)
    if overlaps:
        text = f"{topic.name}: {', '.join(overlaps)} are in {before} as well"
        yield Finding(LogProblem.OVERLAP, tile.place, text)


def _partition_findings(topic: Topic, tile: Tile) -> Iterator[Finding]:
    """Partitions with rows of epochs that are not those of their incarnation."""
    ends = [*(each.behind for each in topic.partitioning.incarnations[1:]), tile.last_epoch]
    lives = dict(zip(topic.partitioning.incarnations, ends, strict=True))
    for piece in tile.ranges:
        of = topic.partitioning.incarnation_of(piece.partition)
        if tile.last_epoch <= of.behind or tile.first_epoch > lives[of]:
            text = (
                f"epochs {tile.first_epoch} to {tile.last_epoch} have no rows in partition {piece.partition}"
            )
            yield Finding(LogProblem.CHANGED, tile.place, f"{topic.name}: {text}")


def _offsets(first: int, end: int) -> str:
    return f"offset {first}" if end - first == 1 else f"offsets {first} to {end - 1}"


def _sign(rows: int) -> LogProblem:
    return LogProblem.GAP if rows > 0 else LogProblem.OVERLAP


def lineage(topic: Topic) -> Iterator[Finding]:
    """The double entry of a topic's files: their contents add up, and their chain of entries holds."""
    book = topic.lineage
    if book is None:
        yield Finding(LogProblem.MISSING, topic.name.text, "the topic has no row in lineage")
        return
    known = [row for row in topic.segments if row.content]
    total = sum((Content.parse(row.content) for row in known), Content())
    rows = sum(row.rows for row in known)
    if (rows, total.text) != (book.rows, book.content):
        detail = f"its files hold {rows} rows, sum {total.text}; {book.rows} rows, sum {book.content} were recorded"
        yield Finding(LogProblem.CHANGED, topic.name.text, detail)
    entries = {}
    for row in topic.segments:
        if row.origin:
            origin = hash_chain.RewriteOrigin.from_json(row.origin)
            entries[origin.number] = (row, origin, hash_chain.entry_hash(origin, row._asdict()))
    for number, (row, origin, digest) in sorted(entries.items()):
        if digest == book.hash and number != book.entries:
            detail = f"{topic.name}: the chain ends with entry {number}; lineage says {book.entries}"
            yield Finding(LogProblem.CHANGED, row.path, detail)
        follower = entries.get(number + 1)
        expected = book.hash if number == book.entries else follower[1].previous if follower else digest
        if digest != expected or number > book.entries:
            detail = (
                f"{topic.name}: entry {number} ({origin.by}) of the topic's chain is not what was recorded"
            )
            yield Finding(LogProblem.CHANGED, row.path, detail)


def steps(picture: CatalogSnapshot) -> Iterator[Finding]:
    """The derived steps of every generation: each hash follows from the one before. The oldest may be forgotten."""
    for before, row in pairwise([None, *picture.steps]):
        assert row is not None
        place = f"projection {row.projection} g{row.generation}, step to epoch {row.to_epoch}"
        follows = before is not None and before[:2] == row[:2]
        if follows and before is not None and before.to_epoch != row.from_epoch:
            detail = f"it begins at epoch {row.from_epoch}, the step before ends at {before.to_epoch}"
            yield Finding(_sign(row.from_epoch - before.to_epoch), place, detail)
        elif step_hash(row.digest, row._mapping) != row.hash:
            yield Finding(LogProblem.CHANGED, place, "its hash does not match its catalog row")
        elif follows and before is not None and before.hash != row.previous:
            yield Finding(LogProblem.CHANGED, place, "it does not follow the step before")
