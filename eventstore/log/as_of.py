"""``as of``: from an epoch, LSN or time to a Cut. All statements of one resolution run in one snapshot."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from sqlalchemy import Connection, Row, select

from tailrace.eventstore.catalog import tables
from tailrace.eventstore.catalog.database import Catalog, retry_on_missing_file
from tailrace.eventstore.errors import BeyondLog, UsageError
from tailrace.eventstore.metadata import segment_index, topics
from tailrace.eventstore.metadata.epochs import Epoch, EpochFilter, Timeline
from tailrace.eventstore.model.position import Cut, format_lsn, parse_lsn
from tailrace.eventstore.model.retention import seconds_of
from tailrace.eventstore.model.time import from_micros, moment_of, now_micros, to_micros
from tailrace.eventstore.model.topic import TopicId
from tailrace.eventstore.segment import segment
from tailrace.eventstore.storage import Storage

_FORMS = (
    "write an epoch (123), an LSN (0/16B3748 or SOURCE=0/16B3748), an ISO time (2026-05-01T12:00:00Z; UTC where it"
    " names no zone), today or yesterday (their first moment in UTC), or how long ago (-1h, -30min, -2d)"
)
_DAYS_AGO = {"today": 0, "yesterday": 1}


_NO_ROWS = pa.table({"_lsn": pa.array([], pa.int64()), "_commit_ts": pa.array([], pa.timestamp("us", "UTC"))})


@dataclass(frozen=True, slots=True)
class AtEpoch:
    epoch: int


@dataclass(frozen=True, slots=True)
class AtLsn:
    source: str | None
    lsn: int


@dataclass(frozen=True, slots=True)
class AtTime:
    micros: int


AsOf = AtEpoch | AtLsn | AtTime | None


def parse(as_of: str | int | datetime | None) -> AsOf:
    """What a text means, without looking at a log. A naive time is UTC, and so are days. Raises UsageError."""
    match as_of:
        case None:
            return None
        case datetime():
            return AtTime(_micros(as_of))
        case int():
            return AtEpoch(as_of)
    text = as_of.strip()
    if text.isascii() and text.isdigit():
        return AtEpoch(int(text))
    if (moment := _relative(text.lower(), datetime.now(UTC))) is not None:
        return AtTime(_micros(moment))
    source, equals, lsn = text.rpartition("=")
    if equals or "/" in text:
        return AtLsn(source.strip() or None, parse_lsn(lsn.strip()))
    try:
        return AtTime(_micros(datetime.fromisoformat(text)))
    except ValueError:
        raise UsageError(f"{as_of!r} is not a position of the log", hint=_FORMS) from None


def _relative(text: str, now: datetime) -> datetime | None:
    """``yesterday``, ``-1h``, ``1h`` and ``1h ago`` as a moment; None for what is none of these."""
    if text in _DAYS_AGO:
        return now.replace(hour=0, minute=0, second=0, microsecond=0) - timedelta(days=_DAYS_AGO[text])
    try:
        return now - timedelta(seconds=seconds_of(text.removeprefix("-").removesuffix("ago")))
    except (ValueError, OverflowError):
        return None


def absolute(as_of: str | int | datetime) -> str:
    """The same position as a text that means the same at any time: a moment is in UTC. Raises UsageError."""
    match parse(as_of):
        case AtTime(micros):
            return moment_of(micros).isoformat().replace("+00:00", "Z")
        case _:
            return str(as_of).strip()


def _micros(moment: datetime) -> int:
    micros = to_micros(moment)
    assert micros is not None
    return micros


def resolve(catalog: Catalog, storage: Storage, as_of: str | int | datetime | None) -> Cut:
    """As ``Log.cut``."""
    position = parse(as_of)
    return retry_on_missing_file(catalog, lambda connection: Resolver(connection, storage).resolve(position))


@dataclass(frozen=True, slots=True)
class Resolver:
    """Resolves against the log as one snapshot shows it."""

    connection: Connection
    storage: Storage

    @property
    def _timeline(self) -> Timeline:
        return Timeline(self.connection, self.storage)

    def resolve(self, as_of: AsOf) -> Cut:
        """Raises UsageError when the position is beyond the head, or names no or an unknown source."""
        head = topics.head_epoch(self.connection)
        match as_of:
            case None:
                return self._cut_at_epoch(head)
            case AtEpoch(epoch):
                if epoch < 0:
                    raise UsageError(
                        f"there is no epoch {epoch}", hint="epochs are counted from 1, 0 is before them"
                    )
                if epoch > head:
                    raise BeyondLog(
                        f"epoch {epoch} is not in the log; its head is epoch {head}",
                        hint="name an earlier one, or wait until capture has come that far",
                    )
                return self._cut_at_epoch(epoch)
            case AtLsn(source, lsn):
                row = self._source(source)
                if lsn > row.through_lsn:
                    raise BeyondLog(
                        f"LSN {format_lsn(lsn)} of {row.name} is beyond the log, which knows every commit below "
                        f"{format_lsn(row.through_lsn)}",
                        hint="name an earlier one, or wait until capture has come that far",
                    )
                return self._cut_below({row.name: lsn}, head, {row.name: row.incarnation})
            case AtTime(micros):
                return self._cut_at_time(micros, head)

    def _cut_at_epoch(self, epoch: int) -> Cut:
        last = self._timeline.last(EpochFilter(upto=epoch, dated=True))
        return Cut(epoch, {}, from_micros(None if last is None else last.commit_ts))

    def _source(self, name: str | None) -> Row[*tuple[Any, ...]]:
        rows = self.connection.execute(select(tables.sources).order_by(tables.sources.c.name)).all()
        names = [row.name for row in rows]
        if name is None:
            if len(rows) == 1:
                return rows[0]
            raise UsageError(
                f"an LSN belongs to one source, and this log has {len(rows)}",
                hint=f"write SOURCE=LSN with one of {', '.join(names)}"
                if names
                else "run `tailrace capture`",
            )
        for row in rows:
            if row.name == name:
                return row
        raise UsageError(
            f"no source {name!r} in the log", hint=f"its sources are {', '.join(names) or 'none'}"
        )

    def _cut_at_time(self, micros: int, head: int) -> Cut:
        if micros > now_micros():
            raise BeyondLog(
                f"{from_micros(micros):%Y-%m-%dT%H:%M:%S.%fZ} has not come yet",
                hint="name a time in the past",
            )
        below: dict[str, int] = {}
        incarnations: dict[str, int] = {}
        quiet_until = 0  # last epoch of the sources that have no later commit
        sources = self.connection.scalars(select(tables.sources.c.name)).all()
        for source in sources:
            first_later = self._timeline.first(EpochFilter(source=source, later_than=micros))
            if first_later is not None:
                if _is_load(first_later, micros) and len(sources) == 1:
                    return self._cut_at_epoch(first_later.epoch - 1)
                below[source] = self._first_lsn(first_later, micros)
                incarnations[source] = first_later.incarnation
            elif (last := self._timeline.last(EpochFilter(source=source))) is not None:
                quiet_until = max(quiet_until, last.epoch)
        return self._cut_below(below, head, incarnations, at_least=quiet_until)

    def _first_lsn(self, epoch: Epoch, micros: int) -> int:
        """Commit LSN of the first transaction of an epoch that committed later than a time."""
        if epoch.first_lsn is None:  # a load of empty tables, behind all that had committed
            return int(epoch.commit_lsn) + 1
        if epoch.first_ts is not None and epoch.first_ts > micros:
            return int(epoch.first_lsn)
        rows = self._transactions(epoch)
        later = rows.filter(pc.greater(rows["_commit_ts"].cast(pa.int64()), micros))
        if not later.num_rows:  # retention removed them: what is left of the epoch had committed by then
            return int(epoch.last_lsn or 0) + 1
        return int(pc.min(later["_lsn"]).as_py())

    def _transactions(self, epoch: Epoch) -> pa.Table:
        """``_lsn`` and ``_commit_ts`` of all rows of an epoch that are still there."""
        ids = [int(text) for text in epoch.topics.split(",") if text]
        names = self.connection.execute(
            select(tables.topics.c.id, tables.topics.c.name).where(tables.topics.c.id.in_(ids))
        )
        found = []
        for row in names.all():
            topic = TopicId.parse(row.name)
            page = segment_index.page(self.connection, topic, row.id, Cut(epoch.epoch), epoch.epoch - 1)
            columns = ("_lsn", "_commit_ts")
            found += [segment.read_segment(self.storage, ref, columns=columns) for ref in page.refs]
        chosen = [table.select(["_lsn", "_commit_ts"]) for table in found]
        return pa.concat_tables(chosen) if chosen else _NO_ROWS

    def _cut_below(
        self, lsns: Mapping[str, int], head: int, incarnations: Mapping[str, int], at_least: int = 0
    ) -> Cut:
        """A cut with everything that committed below the LSN of each named source, in its incarnation, and
        everything of other sources up to the last epoch this takes, or up to ``at_least``. The head when no named
        source has a later commit."""
        later: dict[str, Epoch] = {}  # first epoch with rows at or above the LSN
        lsns = dict(lsns)
        for source, lsn in list(lsns.items()):
            life = incarnations[source]
            found = self._timeline.first(EpochFilter(source=source, incarnation=life, reaches_lsn=lsn))
            if found is None:  # all of it is below; what follows is of a later incarnation
                found = self._timeline.first(EpochFilter(source=source, later_incarnation_than=life))
                lsns[source] = 0
            if found is not None:
                later[source] = found
        if not later:
            return self._cut_at_epoch(head)
        ends = [
            row.epoch if (row.first_lsn or 0) < lsns[source] else row.epoch - 1
            for source, row in later.items()
        ]
        epoch = max(*ends, at_least) if len(later) == len(lsns) else head
        inside = {source: row for source, row in later.items() if row.epoch <= epoch}
        if not inside:
            return self._cut_at_epoch(epoch)
        below = {source: lsns[source] for source in inside}
        epochs = {source: row.epoch for source, row in inside.items()}
        return Cut(epoch, below, self._clock(epoch, below, inside), epochs)

    def _clock(self, epoch: int, below: Mapping[str, int], inside: Mapping[str, Epoch]) -> datetime | None:
        """Commit time of the last transaction inside a cut that ends within epochs: the latest over the sources."""
        times: list[int] = []
        for source in self.connection.scalars(select(tables.sources.c.name)).all():
            last = epoch
            if source in below:
                rows = self._transactions(inside[source])
                kept = rows.filter(pc.less(rows["_lsn"], below[source])).sort_by("_lsn")
                if (
                    kept.num_rows
                    and (commit_ts := kept["_commit_ts"][-1].cast(pa.int64()).as_py()) is not None
                ):
                    times.append(commit_ts)
                    continue
                last = inside[source].epoch - 1
            found = self._timeline.last(EpochFilter(source=source, upto=last, dated=True))
            if found is not None and found.commit_ts is not None:
                times.append(found.commit_ts)
        return from_micros(max(times, default=None))


def _is_load(epoch: Epoch, micros: int) -> bool:
    """Whether an epoch is a load later than a time. Its rows carry the LSN of their snapshot, but the transactions in
    epochs before it committed earlier, wherever their LSNs stand."""
    return epoch.transactions == 0 and (epoch.first_lsn is None or (epoch.first_ts or 0) > micros)
