"""A stream in binary mode that gives one transaction as text mode would have sent it.

Text mode cannot carry a row whose text exceeds 1 GiB; the same row may pass in binary. Capture does not stay in this
mode: the server refuses types that contain types without a send function, and what arrives has to be printed here. So a
session in binary takes the one transaction that text mode stopped at, turns every binary cell into its text, and ends.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Sequence

from tailrace.cdc.postgres.errors import RowTooLarge, too_large_hint
from tailrace.cdc.postgres.value_text import Renderer, Unrenderable
from tailrace.cdc.stream.spool import Frames
from tailrace.cdc.wire.binary import BYTEA, BinaryCell, binary_cells, replace_cells
from tailrace.cdc.wire.copy_data import Messages
from tailrace.cdc.wire.pgoutput import Relation, decode
from tailrace.eventstore.errors import TransientError

_HEADER = 25  # of an XLogData frame
_XLOGDATA, _BEGIN, _COMMIT, _RELATION = b"wBCR"
_UINT64 = struct.Struct(">Q")
_BYTES_MAX = (2 << 30) - (
    64 << 20
)  # blocks of frames have 32-bit places, and other rows stand before this one


class TextStream:
    """Frames of the first transaction that commits above ``skip_through``, in text. Its commit sets ``taken``, and
    nothing follows. Empty ones, which servers before 15 send, may be in front. Raises RowTooLarge for a row that has no
    text form small enough."""

    def __init__(self, stream: Frames, renderer: Renderer, slot: str, skip_through: int) -> None:
        self._stream = stream
        self._renderer = renderer
        self._slot = slot
        self._skip_through = skip_through
        self._is_wanted = self._is_empty = False
        self._relations: dict[int, Relation] = {}
        self.taken = threading.Event()

    @property
    def timeout(self) -> float | None:
        return self._stream.timeout

    @property
    def heard_at(self) -> float:
        return self._stream.heard_at

    def fileno(self) -> int:
        return self._stream.fileno()

    def receive(self) -> Messages:
        """As the stream's own. Raises RowTooLarge."""
        frames: list[bytes] = []
        changes: list[tuple[int, list[BinaryCell]]] = []
        for frame in () if self.taken.is_set() else self._stream.receive().each():
            frames.append(frame)
            cells = self._take(frame)
            if cells:
                changes.append((len(frames) - 1, cells))
            if self.taken.is_set():
                break
        texts = iter(self._texts([(frames[at], cell) for at, cells in changes for cell in cells]))
        for at, cells in changes:
            frames[at] = replace_cells(frames[at], cells, [next(texts) for _ in cells])
        return Messages.of(frames)

    def _take(self, frame: bytes) -> list[BinaryCell]:
        """The cells of a frame that must be turned into text."""
        tag = frame[_HEADER] if frame[0] == _XLOGDATA and len(frame) > _HEADER else 0
        if tag == _BEGIN:
            self._is_wanted = _UINT64.unpack_from(frame, _HEADER + 1)[0] > self._skip_through
            self._is_empty = True
        elif tag == _RELATION:
            relation = decode(frame[_HEADER:])
            assert isinstance(relation, Relation)
            self._relations[relation.relid] = relation
        elif tag == _COMMIT:
            if self._is_wanted and not self._is_empty:
                self.taken.set()
        elif tag and self._is_wanted:
            self._is_empty = False
            cells = binary_cells(frame)
            self._require_room(frame, cells)
            return cells
        return []

    def _texts(self, cells: Sequence[tuple[bytes, BinaryCell]]) -> list[bytes]:
        if not cells:
            return []
        try:
            return self._renderer.texts(
                [(self._type(cell), memoryview(frame)[cell.start : cell.end]) for frame, cell in cells]
            )
        except Unrenderable as error:
            cell = cells[error.place][1]
            relation = self._relations[cell.relid]
            raise RowTooLarge(
                f"a transaction with a row that is too large to be sent as text cannot be read in binary: the text of "
                f"column {relation.columns[cell.column].name} of {relation.schema}.{relation.table} is not to be had: "
                f"{error.reason}",
                hint=too_large_hint(self._slot),
            ) from None

    def _type(self, cell: BinaryCell) -> int:
        return self._relations[cell.relid].columns[cell.column].type_oid

    def _require_room(self, frame: bytes, cells: Sequence[BinaryCell]) -> None:
        """Hex digits are twice as many as bytes."""
        size = len(frame) + sum(cell.end - cell.start for cell in cells if self._type(cell) == BYTEA)
        if size > _BYTES_MAX:
            relation = self._relations[cells[0].relid]
            raise RowTooLarge(
                f"a row of {relation.schema}.{relation.table} has {size} bytes as text;"
                f" at most {_BYTES_MAX} can be kept",
                hint=too_large_hint(self._slot),
            )

    def send(self, frame: bytes) -> None:
        self._stream.send(frame)

    def silence_error(self) -> TransientError:
        return self._stream.silence_error()

    def finish(self) -> None:
        self._stream.finish()
