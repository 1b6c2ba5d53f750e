"""The contract of a sink: one generation of a projection takes one derived step after the other, each exactly once.

A step leads from one fence to the next. Applying it is ``load`` → ``write`` per bucket → ``commit``. The bytes of a
step never change (the catalog commits them by compare-and-set), so a step that was cut off is simply applied again.

``atomic`` sinks show a step's rows and its fence at once or not at all. ``monotonic`` sinks show rows as they come;
each row carries the epoch that wrote it, an older epoch never overwrites a newer one, and the fence comes last.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol, runtime_checkable

import pyarrow as pa
import pyarrow.compute as pc

from tailrace.eventstore.errors import Fenced, OperatorError, TransientError, UsageError
from tailrace.eventstore.model import keys
from tailrace.eventstore.model.position import Fence
from tailrace.projections.sinks.columns import unsupported

if TYPE_CHECKING:
    pass

RESERVED = frozenset(
    {"_hash", "_op", "_bucket", "_epoch", "_deleted"}
)  # of derived files and of stamped rows


class CannotBuild(OperatorError):
    """A generation's columns do not fit its sink, or something there is in the way: all that was found, each a
    sentence."""

    def __init__(self, message: str, problems: Sequence[str] = (), *, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.problems = tuple(problems)


class HeldByReaders(TransientError):
    """Readers, or another promotion, are in the way of what is to be shown. Readers see what they saw before; trying
    again later works."""


class NoSink(UsageError):
    """What is named as a sink is not there: no entry of ``[sinks]``, no class that loads."""


class InMotion(TransientError):
    """A sink was read while a step was on its way into it, or while what was read was removed."""


@dataclass(frozen=True, slots=True)
class Target:
    """One generation of one projection. ``store`` is the store's name and starts every physical name.

    ``schema`` are the output columns in order; ``key`` some of them. ``partitions`` and ``split`` place a key hash in
    its bucket (``tailrace.eventstore.model.keys.bucket_of``). ``preview``: it is never promoted, so that nothing
    has to fit what
    readers see now.
    """

    store: str
    projection: str
    generation: int
    key: tuple[str, ...]
    schema: pa.Schema
    partitions: int
    split: int = 1
    preview: bool = False

    @property
    def buckets(self) -> int:
        return self.partitions * self.split

    def __str__(self) -> str:
        return f"generation {self.generation} of projection {self.projection!r}"


class SinkLoad(Protocol):
    """One derived step on its way into one generation. Not for use from several threads at once."""

    def write(self, bucket: int, upserts: pa.Table, deletes: pa.Table) -> None:
        """Rows of one bucket, possibly in several calls. A key occurs at most once in a step.

        ``upserts`` has the target's columns and ``_hash``, ``deletes`` the key columns and ``_hash``. Deleting a key
        that is not there is no error. Raises UsageError for a row that the sink cannot hold.
        """

    def commit(self) -> None:
        """The fence last. A load that is left without ``commit`` has not happened: its step is applied again, at most
        without the buckets that a ``ResumableLoad`` keeps.

        Raises Fenced when another process has moved the fence since, TransientError when the outcome is unknown:
        ``Sink.fence`` then tells.
        """


@runtime_checkable
class ResumableLoad(Protocol):
    """What a load can do besides, so that one that was cut off is gone on with by bucket."""

    @property
    def done(self) -> Collection[int]:
        """Buckets of this very step that are in the sink since an earlier load of it: they are not written again."""

    def bucket_done(self, bucket: int) -> None:
        """All rows of a bucket were written: they stay, whatever becomes of the load. Raises what ``commit`` does."""


class Sink(Protocol):
    """A place for generations. Holds no connection between calls; raises OperatorError (the hint says what to
    change) and TransientError (out of reach) from every method."""

    kind: Literal["atomic", "monotonic"]

    def check(self, target: Target) -> list[str]:
        """Everything that would go wrong, before anything is built; writes nothing. Returns remarks that do not
        hinder. Raises OperatorError with all problems found."""

    def create(self, target: Target) -> None:
        """An empty generation that nobody reads. May be called again."""

    def load(self, target: Target, expected: Fence | None, to: Fence) -> AbstractContextManager[SinkLoad]:
        """Begin the step from fence ``expected`` (None: the first step) to ``to``.

        Raises Fenced when the sink does not stand at ``expected``. A step that ended half-way, even by kill -9 of
        the process, can be begun again.
        """

    def fence(self, target: Target) -> Fence | None:
        """Where the generation stands: every step up to it is in completely. None: no step is, or no generation."""

    def promote(self, target: Target, expected_live: int | None) -> None:
        """Show this generation to readers, atomically. Succeeds without effect when it is live already.

        Raises Fenced when the live generation is not ``expected_live``, UsageError when no step was ever committed,
        HeldByReaders, after a second at most, where it would have to wait for them: who promotes tries again.
        """

    def live(self, store: str, projection: str) -> int | None:
        """The generation that readers see."""

    def drop(self, target: Target) -> None:
        """Remove a generation and its fence; may be called again. Raises UsageError when it is live."""

    def scan(self, target: Target) -> Iterator[pa.RecordBatch]:
        """All rows as readers find them, in no particular order, in ``target.schema`` exactly.

        Raises DifferenceFound for rows that no step wrote so and that the schema cannot hold, InMotion (monotonic
        sinks) while a step is half in, or when what is read is removed meanwhile: the next call may do better."""


@dataclass(frozen=True, slots=True)
class SinkSnapshot:
    """Where a generation stands, and its rows there as ``Sink.scan`` gives them: both of one position."""

    fence: Fence | None
    rows: Iterator[pa.RecordBatch]


@runtime_checkable
class SnapshotSink(Protocol):
    """What an atomic sink can do besides, so that it is compared with the log while it is refreshed all the time. One
    that cannot is read between two looks at its fence, again and again until no step came."""

    def snapshot(self, target: Target) -> AbstractContextManager[SinkSnapshot]:
        """The rows are read inside the block; steps that are applied meanwhile change neither them nor the fence.
        Raises what ``scan`` raises, also as its rows are read."""


@runtime_checkable
class MovingSink(Protocol):
    """What a monotonic sink can do besides, so that it is compared with the log while it is refreshed all the time."""

    def scan_in_motion(self, target: Target) -> Iterator[pa.RecordBatch]:
        """``scan`` that takes rows of steps on their way for rows: each as it is when it is read. A row that no step
        touches meanwhile comes exactly once."""

    def read(self, target: Target, keys: pa.Table) -> Iterator[pa.RecordBatch]:
        """The rows of some keys (key columns and ``_hash``), as ``scan`` gives them. Raises what ``scan`` raises."""


def column_problems(target: Target) -> list[str]:
    """What no sink can hold: key columns that are not there, reserved or repeated names, unsupported types."""
    names = target.schema.names
    problems = [f"the key column {name!r} is not in the output" for name in target.key if name not in names]
    problems += [f"the column name {name!r} is reserved" for name in names if name in RESERVED]
    problems += [
        f"the output has two columns {name!r}" for name in sorted({n for n in names if names.count(n) > 1})
    ]
    if not target.key:
        problems.append("the projection has no key")
    return problems + unsupported(target.schema)


def raise_problems(target: Target, problems: Sequence[str], hint: str = "") -> None:
    """Raise CannotBuild with all problems, if there are any."""
    if problems:
        listed = "".join(f"\n  - {problem}" for problem in problems)
        message = f"{target} cannot be built:{listed}"
        raise CannotBuild(message, problems, hint=hint or "mend these, then build again")


def rows_for(target: Target, upserts: pa.Table) -> pa.Table:
    """The upserts as the target's columns in order. Raises UsageError when a row's key has a NULL."""
    rows = upserts.select(target.schema.names).cast(target.schema)
    keys_for(target, rows)
    return rows


def keys_for(target: Target, rows: pa.Table) -> pa.Table:
    """The key columns of rows. Raises UsageError when one holds a NULL: such a row could not be addressed."""
    for name in target.key:
        if rows.column(name).null_count:
            nulls = rows.column(name).null_count
            raise UsageError(
                f"projection {target.projection!r}: {nulls} rows have NULL in key column {name!r}",
                hint="filter them out, or give them a value with coalesce",
            )
    schema = pa.schema([target.schema.field(name) for name in target.key])
    return rows.select(list(target.key)).cast(schema)


def key_texts(target: Target, rows: pa.Table) -> list[str]:
    """One text per row that identifies its key inside a generation: see ``join_key``."""
    return list(key_column(target, rows).to_pylist())


def key_column(target: Target, rows: pa.Table) -> pa.StringArray:
    """``key_texts`` as an array."""
    columns = [keys.texts(rows.column(name).combine_chunks()).cast(pa.string()) for name in target.key]
    if len(columns) == 1:
        return columns[0]
    for escaped in ("\\", ":"):
        columns = [pc.replace_substring(column, escaped, f"\\{escaped}") for column in columns]
    return pc.binary_join_element_wise(*columns, ":")


def join_key(cells: Sequence[str]) -> str:
    """The texts of a key's columns as one: a single one as it is, several joined by ``:`` (inside a text: ``\\:``)."""
    if len(cells) == 1:
        return cells[0]
    return ":".join(cell.replace("\\", "\\\\").replace(":", "\\:") for cell in cells)


def require_filled(target: Target, fence: Fence | None) -> None:
    """What is shown to readers has a fence. Raises UsageError."""
    if fence is None:
        raise UsageError(f"{target} was never filled", hint="rebuild the projection, then promote it")


def check_step(target: Target, found: Fence | None, expected: Fence | None, to: Fence) -> None:
    """Raises Fenced unless the sink stands where the step begins, UsageError for another target's fence."""
    if (to.projection, to.generation) != (target.projection, target.generation):
        raise UsageError(
            f"a fence of generation {to.generation} of {to.projection!r} cannot end a step of {target}",
            hint="take fence and target from the same generation",
        )
    if found != expected:
        raise refuse_fence(target, found, expected)


def refuse_fence(target: Target, found: Fence | None, expected: Fence | None) -> Fenced:
    """The error for a sink that does not stand where the step begins."""

    def said(fence: Fence | None) -> str:
        return "nothing" if fence is None else f"epoch {fence.epoch} of log {fence.log_id}"

    return Fenced(
        f"{target}: the sink holds {said(found)}, this step starts from {said(expected)}",
        hint="another process applies this projection, or sink and log were restored apart; "
        "in that case rebuild the projection",
    )
