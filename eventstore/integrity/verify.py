"""Verification: the log against itself, beside whatever runs.

1. Take a lease: files that are replaced from now on stay (``leases.reader_lease``).
2. List the files, then read the blobs by pages, each page in one snapshot. A blob that is sealed before its page comes
   is in a file of the next step.
3. Take a picture of the catalog in one snapshot. Its rows must fit each other; a listed file that it does not name and
   that has no name of ours is foreign.
4. Read the files that it names. One that is missing is reported only when a newer snapshot still names it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace

from sqlalchemy import select
from sqlalchemy.exc import NoResultFound

from tailrace.eventstore.catalog import leases, tables, terms
from tailrace.eventstore.integrity import catalog_snapshot, check_catalog, check_files, check_rows
from tailrace.eventstore.integrity.catalog_snapshot import CatalogSnapshot, NamedPath, Topic
from tailrace.eventstore.integrity.findings import Finding, LogProblem, VerificationResult
from tailrace.eventstore.log.log import Log
from tailrace.eventstore.metadata import archived
from tailrace.eventstore.metadata.topics import head_epoch
from tailrace.eventstore.model.topic import TopicId
from tailrace.eventstore.segment.segment import folder_of
from tailrace.eventstore.storage.open import CATALOG_MARKER, MARKER, read_marker

Report = Callable[[str], None]
# Files of derived steps, and what a storage writes to see whether it may.
_UNREADABLE = (
    *check_rows.UNREADABLE,
    AssertionError,
    RuntimeError,
    StopIteration,
    SystemError,
    NoResultFound,
)
_OTHERS = re.compile(r"derived/[^/]+/\d+/\d+-[0-9a-f-]+\.(run|delta)\.parquet(\.partial)?|probe/[0-9a-f]+")


def verify(
    log: Log,
    topics: Sequence[TopicId] = (),
    *,
    quick: bool = False,
    archives: bool = False,
    head: tuple[int, str] | None = None,
    report: Report = lambda _: None,
) -> VerificationResult:
    """Look at the whole log, or at some topics alone. ``quick``: at the catalog and whether files are there, not at
    what is in them. ``archives``: at what is archived, too. ``head``: the number and hash of an
    epoch as they were kept elsewhere. ``report`` gets what is under way. Raises UsageError for
    an unknown topic, OperatorError or TransientError for an archive out of reach; what is wrong with the log is in the
    result."""
    for topic in topics:
        log.topic(topic)
    with leases.reader_lease(log.catalog, "log verify"):
        found = _LogVerification(log, frozenset(topics), quick, archives, report).run()
        return replace(found, findings=(*found.findings, *_kept_head(log, head))) if head else found


def _kept_head(log: Log, head: tuple[int, str]) -> Iterator[Finding]:
    """Whether the log still has the epoch that somebody kept the hash of."""
    number, digest = head
    epochs = log.epochs(number - 1, 1)
    if not epochs or epochs[0].epoch != number:
        yield Finding(LogProblem.MISSING, f"epoch {number}", "its hash was kept, and it is not in the log")
    elif epochs[0].hash != digest:
        yield Finding(LogProblem.CHANGED, f"epoch {number}", "its hash is not the one that was kept")


class _LogVerification:
    def __init__(
        self, log: Log, topics: frozenset[TopicId], quick: bool, archives: bool, report: Report
    ) -> None:
        self._log = log
        self._archives = archives
        self._reached: set[str] = set()
        self._topics = topics
        self._quick = quick
        self._memory = log.settings.upkeep.memory_bytes
        self._report = report
        self._findings: list[Finding] = []
        self._files = 0
        self._bytes = 0
        self._unregistered = 0

    def run(self) -> VerificationResult:
        """Rows of the catalog by themselves come first: what cannot be read must not stop the verification, and is
        all that it tells of when the rest rests on it."""
        listed = list(self._log.storage.list())
        with self._log.catalog.read() as connection:
            self._findings += check_rows.findings(connection)
            log_id = connection.scalar(select(tables.log.c.log_id))
        if self._log.storage.exists(MARKER) and read_marker(self._log.storage) != log_id:
            detail = f"its log_id is not the one in {MARKER} beside the segments"
            self._findings.append(Finding(LogProblem.CHANGED, "log: id 1", detail))
        rows_are_wrong = bool(self._findings)
        try:
            return self._look(listed)
        except _UNREADABLE:
            if not rows_are_wrong:
                raise
        with self._log.catalog.read() as connection:
            head = connection.execute(select(tables.log_head)).one_or_none()
        return self._result(head.epoch if head else 0, head.hash if head else "", 0, 0)

    def _look(self, listed: Collection[str]) -> VerificationResult:
        if not self._quick:
            self._blobs()
        with self._log.catalog.read() as connection:
            seen = catalog_snapshot.take(connection)
        selected = self._selected_topics(seen.topics)
        self._report("the catalog")
        for topic in selected:
            self._findings += check_catalog.tiles(topic, seen.epoch)
            self._findings += check_catalog.lineage(topic)
            self._findings += check_catalog.start(topic)
            self._findings += check_catalog.archived(topic)
        if not self._topics:
            self._check_log(seen, listed)
        self._contents(seen, selected)
        self._findings = list(self._drop_removed(self._findings))
        if self._archives:
            self._findings += [each for topic in selected for each in self._archive_findings(topic)]
        erased = sum(row.topic_id in {topic.id for topic in selected} for row in seen.redactions)
        return self._result(seen.epoch, seen.hash, len(selected), erased)

    def _result(self, epoch: int, digest: str, topics: int, redactions: int) -> VerificationResult:
        return VerificationResult(
            log_id=self._log.log_id,
            epoch=epoch,
            hash=digest,
            topics=topics,
            files=self._files,
            bytes=self._bytes,
            unregistered=self._unregistered,
            quick=self._quick,
            redactions=redactions,
            findings=tuple(self._findings),
        )

    def _archive_findings(self, topic: Topic) -> Iterator[Finding]:
        """Files that retention put into archives: nobody removes them, so each must be there."""
        for row in topic.archived:
            archive = self._log.archive(row.place)
            if row.place not in self._reached:
                archived.require(archive, self._log.log_id)
                self._reached.add(row.place)
            place = archive.place(row.path)
            self._files += 1
            self._report(f"archived file {place}")
            if self._quick:
                if not archive.exists(row.path):
                    yield Finding(LogProblem.MISSING, place, "retention archived it")
                continue
            self._bytes += row.bytes
            found = list(check_files.file_findings(archive, NamedPath(row.path, row.checksum, row.bytes)))
            if not found:
                found = list(check_files.chosen_rows(archive, topic, row, self._memory))
            yield from (replace(finding, place=place) for finding in found)

    def _selected_topics(self, topics: Mapping[int, Topic]) -> list[Topic]:
        return [topic for topic in topics.values() if not self._topics or topic.name in self._topics]

    def _blobs(self) -> None:
        with self._log.catalog.read() as connection:
            head = head_epoch(connection)
        after = 0
        while after < head:
            with self._log.catalog.read() as connection:
                topics = self._selected_topics(catalog_snapshot.topics_of(connection))
                after, found, size = check_files.blobs(connection, topics, after, head)
            self._findings += found
            self._bytes += size
            self._report(f"epoch {after:,} of {head:,}")

    def _check_log(self, seen: CatalogSnapshot, listed: Collection[str]) -> None:
        """What is no single topic's: epochs, derived steps, and files that nothing names."""
        folded: str | None = ""
        if seen.epoch_files:
            folded = check_files.last_hash(self._log.storage, seen.epoch_files[-1])
        self._findings += check_catalog.epochs(seen, folded)
        self._findings += check_catalog.appended_files(seen)
        self._findings += check_catalog.steps(seen)
        self._findings += check_catalog.redactions(seen)
        self._findings += check_catalog.repartitions(seen)
        self._findings += check_catalog.control_epochs(seen)
        self._findings += check_catalog.retired(seen)
        named = seen.paths
        folders = {f"{folder_of(topic.name, topic.id)}/" for topic in seen.topics.values()}
        for path in listed:
            if path in named or path in (MARKER, CATALOG_MARKER):
                continue
            folder = path[: path.rindex("/") + 1] if "/" in path else ""
            ours = terms.FILE_NAME.fullmatch(path) is not None and (folder in folders or folder == "epochs/")
            if ours or _OTHERS.fullmatch(path):
                self._unregistered += 1
            else:
                detail = "the catalog does not name it, and its name is not one that Tailrace gives"
                self._findings.append(Finding(LogProblem.FOREIGN, path, detail))

    def _contents(self, seen: CatalogSnapshot, selected: Sequence[Topic]) -> None:
        others = [] if self._topics else seen.others
        epochs = [] if self._topics else seen.epoch_files
        total = sum(len(topic.segments) + len(topic.runs) for topic in selected) + len(epochs) + len(others)
        for topic in selected:
            for row in topic.segments:
                if self._check_file(NamedPath(row.path, row.checksum, row.bytes), total):
                    self._findings += check_files.segment_rows(
                        self._log.storage, seen, topic, row, self._memory
                    )
            for row in topic.runs:
                if self._check_file(NamedPath(row.path, row.checksum, row.bytes), total):
                    self._findings += check_files.chosen_rows(self._log.storage, topic, row, self._memory)
        for named in others:
            self._check_file(named, total)
        rows = sum(row.rows for row in seen.epochs)
        for row in epochs:
            if self._check_file(NamedPath(row.path, row.checksum, row.bytes), total):
                found, brought = check_files.epoch_file(self._log.storage, row)
                self._findings += found
                rows += brought
        held = sum(sum(topic.ends) for topic in selected)
        if not self._topics and not self._quick and not self._findings and rows != held:
            detail = f"the epochs brought {rows} rows, the topics hold {held}"
            self._findings.append(Finding(LogProblem.CHANGED, "the log", detail))

    def _check_file(self, named: NamedPath, total: int) -> bool:
        """Whether it is worth looking inside."""
        self._files += 1
        storage = self._log.storage
        if self._quick:
            if not storage.exists(named.path):
                self._findings.append(Finding(LogProblem.MISSING, named.path, "the catalog names it"))
            return False
        found = list(check_files.file_findings(storage, named))
        self._findings += found
        self._bytes += named.bytes or 0
        self._report(f"file {self._files:,} of {total:,}")
        return not found

    def _drop_removed(self, findings: Sequence[Finding]) -> Iterator[Finding]:
        """Without files that were let go since the picture was taken (kept frames, derived steps)."""
        if not any(finding.problem is LogProblem.MISSING for finding in findings):
            yield from findings
            return
        with self._log.catalog.read() as connection:
            now = catalog_snapshot.take(connection)
        named = now.in_use
        before = {path for path in (finding.place for finding in findings) if "/" in path}
        for finding in findings:
            gone = finding.problem is LogProblem.MISSING and finding.place in before - named
            if not gone:
                yield finding
