"""The contract of a sink: a generation of a projection takes its steps one after another, each exactly once.

A step leads from one fence to the next. It is applied by ``load``, ``write`` for each bucket, and ``commit``. The bytes
of a step never change (the catalog commits them by compare-and-set), so a step that was cut off is applied again.

``atomic`` sinks show the rows of a step and its fence together or not at all. ``monotonic`` sinks show rows as they
come: each row carries the epoch that wrote it, an older epoch never overwrites a newer one, and the fence comes last.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

import pyarrow as pa
import pyarrow.compute as pc

from tailrace.eventstore.errors import (
    Fenced,
    NotOwner,
    OperatorError,
    TransientError,
    UsageError,
    manual_page,
)
from tailrace.eventstore.model import keys
from tailrace.eventstore.model.position import Fence
from tailrace.projections.sinks.columns import unsupported_columns

RESERVED = frozenset(
    {"_hash", "_op", "_bucket", "_epoch", "_deleted"}
)  # of derived files and of stamped rows


class CannotBuild(OperatorError):
    """A generation does not fit its sink. ``problems`` has a sentence for each reason."""

    def __init__(self, message: str, problems: Sequence[str] = (), *, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.problems = tuple(problems)


class HeldByReaders(TransientError):
    """Readers, or another promotion, hold what a promotion replaces. Readers see what they saw before; try again
    later."""


class NoSink(UsageError):
    """The sink does not exist: no entry of ``[sinks]``, or a class that does not load."""


class InMotion(TransientError):
    """A step was applied to the sink while it was read, or what was read was removed. Read again."""


@dataclass(frozen=True, slots=True)
class Target:
    """One generation of one projection, as a sink sees it. Every physical name begins with ``store``, the name of the
    store. Another store may have the same name; ``log_id`` says whose the generation is.

    ``schema`` has the output columns in order; ``key`` names some of them. ``partitions`` and ``split`` give the bucket
    of a key hash (``tailrace.eventstore.model.keys.bucket_of``). A ``preview`` is never promoted, so it need not fit
    what readers see now.
    """

    store: str
    log_id: str
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
    """One step on its way into one generation. Not for use by several threads at once."""

    def write(self, bucket: int, upserts: pa.Table, deletes: pa.Table) -> None:
        """Write rows of one bucket; several calls may write one bucket. A key occurs at most once in a step.

        ``upserts`` has the target's columns and ``_hash``, ``deletes`` the key columns and ``_hash``. It is no error to
        delete a key that does not exist. Raises UsageError for a row that the sink cannot hold.
        """

    def commit(self) -> None:
        """Write the fence, last. A load that is left without ``commit`` has not happened: its step is applied again,
        except for buckets that a ``ResumableLoad`` keeps.

        Raises Fenced when another process has moved the fence meanwhile, TransientError when the outcome is unknown;
        ``Sink.fence`` then tells.
        """


@runtime_checkable
class ResumableLoad(Protocol):
    """Optional for a load: buckets that were written completely stay, so that the next load goes on after them."""

    @property
    def done(self) -> Collection[int]:
        """Buckets of this step that an earlier load has written. They are not written again."""

    def bucket_done(self, bucket: int) -> None:
        """All rows of a bucket are written. They stay, whatever becomes of the load. Raises what ``commit`` raises."""


class Sink(Protocol):
    """A place for generations. It holds no connection between calls. Every method raises OperatorError, whose hint says
    what to change, and TransientError when the sink is out of reach."""

    kind: Literal["atomic", "monotonic"]

    def check(self, target: Target) -> list[str]:
        """Find everything that would go wrong, before anything is built. Writes nothing and returns remarks that are no
        obstacle. Raises OperatorError with all problems."""

    def create(self, target: Target) -> None:
        """Create an empty generation that nobody reads, and keep ``target.log_id`` with it, before anything else of it.
        May be called again. Raises NotOwner when it is there and another log's."""

    def owner(self, target: Target) -> str | None:
        """The log whose generation it is, as ``create`` kept it, whether or not a step was applied. None: there is no
        generation, or it was created by a version that kept nothing."""

    def load(self, target: Target, expected: Fence | None, to: Fence) -> AbstractContextManager[SinkLoad]:
        """Begin the step from fence ``expected`` (None: the first step) to ``to``.

        Raises Fenced when the sink's fence is not ``expected``. A step that ended half-way, even by kill -9 of the
        process, can be begun again.
        """

    def fence(self, target: Target) -> Fence | None:
        """The fence of the generation: every step up to it is in the sink completely. None: there is no such step, or
        no generation."""

    def promote(self, target: Target, expected_live: int | None) -> None:
        """Show this generation to readers, atomically. Does nothing when it is live already.

        Raises Fenced when the live generation is not ``expected_live``, UsageError when no step was ever committed, and
        HeldByReaders when it would wait for readers longer than a second; the caller tries again.
        """

    def live(self, store: str, projection: str) -> int | None:
        """The generation that readers see."""

    def drop(self, target: Target) -> None:
        """Remove a generation and its fence; may be called again. Raises UsageError when it is live, NotOwner when it
        is another log's."""

    def scan(self, target: Target) -> Iterator[pa.RecordBatch]:
        """All rows as readers find them, in any order, in exactly ``target.schema``.

        Raises DifferenceFound for rows that no step wrote and that the schema cannot hold. A monotonic sink raises
        InMotion while a step is half applied, or when what is read is removed meanwhile: call again.
        """


@dataclass(frozen=True, slots=True)
class SinkSnapshot:
    """The fence of a generation, and its rows as ``Sink.scan`` gives them, both at one position."""

    fence: Fence | None
    rows: Iterator[pa.RecordBatch]


@runtime_checkable
class SnapshotSink(Protocol):
    """Optional for an atomic sink: it can be compared with the log while it is refreshed. A sink without it is read
    until its fence is the same before and after."""

    def snapshot(self, target: Target) -> AbstractContextManager[SinkSnapshot]:
        """The rows are read inside the block. Steps that are applied meanwhile change neither them nor the fence.
        Raises what ``scan`` raises, also while rows are read."""


@runtime_checkable
class PurgingSink(Protocol):
    """Optional for a sink whose files keep rows that were replaced or deleted, and that nobody else removes soon."""

    def purge(self, target: Target) -> None:
        """Nothing is left of rows that are not in the sink any more. Rows and fence stay. May be called again."""


@runtime_checkable
class MovingSink(Protocol):
    """Optional for a monotonic sink: it can be compared with the log while it is refreshed."""

    def scan_in_motion(self, target: Target) -> Iterator[pa.RecordBatch]:
        """As ``scan``, but rows of steps on their way count as rows, each as it is when it is read. A row that no step
        touches meanwhile comes exactly once."""

    def read(self, target: Target, keys: pa.Table) -> Iterator[pa.RecordBatch]:
        """The rows of some keys (key columns and ``_hash``), as ``scan`` gives them. Raises what ``scan`` raises."""


def column_problems(target: Target) -> list[str]:
    """What no sink can hold: missing key columns, reserved or repeated names, unsupported types."""
    names = target.schema.names
    problems = [f"the key column {name!r} is not in the output" for name in target.key if name not in names]
    problems += [f"the column name {name!r} is reserved" for name in names if name in RESERVED]
    problems += [
        f"the output has two columns {name!r}" for name in sorted({n for n in names if names.count(n) > 1})
    ]
    if not target.key:
        problems.append("the projection has no key")
    return problems + unsupported_columns(target.schema)


def raise_problems(target: Target, problems: Sequence[str], hint: str = "") -> None:
    """Raise CannotBuild with all problems, if there are any."""
    if problems:
        listed = "".join(f"\n  - {problem}" for problem in problems)
        message = f"{target} cannot be built:{listed}"
        raise CannotBuild(message, problems, hint=hint or "mend these, then build again")


def rows_for(target: Target, upserts: pa.Table) -> pa.Table:
    """The upserts as the target's columns in order. Raises UsageError when a key has a NULL."""
    rows = upserts.select(target.schema.names).cast(target.schema)
    keys_for(target, rows)
    return rows


def keys_for(target: Target, rows: pa.Table) -> pa.Table:
    """The key columns of rows. Raises UsageError when one has a NULL: such a row could not be addressed."""
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
    """A text for each row that identifies its key inside a generation; see ``join_key``."""
    return list(key_column(target, rows).to_pylist())


def key_column(target: Target, rows: pa.Table) -> pa.StringArray:
    """``key_texts`` as an array."""
    columns = [keys.column_texts(rows.column(name).combine_chunks()).cast(pa.string()) for name in target.key]
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


def require_same_log(target: Target, owner: str | None) -> None:
    """Raises NotOwner unless the generation is the target's log's, or nobody's."""
    if owner is not None and owner != target.log_id:
        raise not_owner(f"{target} in its sink", owner, target.log_id)


def not_owner(what: str, owner: str | None, log_id: str) -> NotOwner:
    """The error for what another store of the same name has in a sink."""
    return NotOwner(
        what,
        owner,
        log_id,
        hint="give one of the two stores another [store] name, or a sink of its own; if the other one is given up, add "
        "--take-over to the command; see " + manual_page("operations/running.md", "Two stores of one name"),
    )


def require_filled(target: Target, fence: Fence | None) -> None:
    """Raises UsageError when nothing was committed yet: readers are only shown what has a fence."""
    if fence is None:
        raise UsageError(f"{target} was never filled", hint="rebuild the projection, then promote it")


def check_step(target: Target, found: Fence | None, expected: Fence | None, to: Fence) -> None:
    """Raises Fenced unless the sink is where the step begins, UsageError for the fence of another target."""
    if (to.projection, to.generation) != (target.projection, target.generation):
        raise UsageError(
            f"a fence of generation {to.generation} of {to.projection!r} cannot end a step of {target}",
            hint="take fence and target from the same generation",
        )
    if found != expected:
        raise refuse_fence(target, found, expected)


def refuse_fence(target: Target, found: Fence | None, expected: Fence | None) -> Fenced:
    """The error for a sink that is not where the step begins."""

    def said(fence: Fence | None) -> str:
        return "nothing" if fence is None else f"epoch {fence.epoch} of log {fence.log_id}"

    return Fenced(
        f"{target}: the sink holds {said(found)}, this step starts from {said(expected)}",
        hint="another process applies this projection, or sink and log were restored apart; "
        "in that case rebuild the projection",
    )
