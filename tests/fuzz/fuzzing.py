"""Coverage-guided fuzzing of both decoders: inputs that reach something new are kept and changed again.

Coverage is that of the Python code, line after line, and of the words of refusals: the kernels cannot be traced, but
each of their refusals has its own. Without dependencies, on every Python that the project supports.
"""

from __future__ import annotations

import hashlib
import random
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from tailrace.cdc.columnar import decode, relations, scan
from tailrace.cdc.wire import buffer, pgoutput
from tests.fuzz import decoders, reference

CORPUS = Path(__file__).with_name("corpus")
_TRACED = {module.__file__ for module in (decode, relations, scan, buffer, pgoutput, reference)}
_INTERESTING = (0, 1, 2, 7, 8, 11, 0x7F, 0x80, 0xFF, *b"BCIUDTMRYOAKNtnub")
_BYTES_MAX = 1024  # longer inputs reach nothing that these do not
_CHANGES_MAX = 4

Reached = tuple[str, int, int]


@contextmanager
def traced(reached: set[Reached]) -> Iterator[None]:
    """Add steps from line to line in the traced modules to ``reached``."""
    last: dict[str, int] = {}

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        name = frame.f_code.co_filename
        if name not in _TRACED:
            return None
        if event == "line":
            reached.add((name, last.get(name, 0), frame.f_lineno))
            last[name] = frame.f_lineno
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield
    finally:
        sys.settrace(before)


def changed(data: bytes, others: list[bytes], chance: random.Random) -> bytes:
    """The input with a few changes; its frames stay frames unless a change says otherwise."""
    frames = [bytearray(frame) for frame in decoders.unpack(data)] or [bytearray(b"B")]
    for _ in range(chance.randint(1, _CHANGES_MAX)):
        at = chance.randrange(len(frames))
        frame = frames[at]
        place = chance.randrange(len(frame)) if frame else 0
        match chance.randrange(7):
            case 0 if frame:
                frame[place] = chance.choice(_INTERESTING)
            case 1 if frame:
                frame[place] ^= 1 << chance.randrange(8)
            case 2:
                frame[place:place] = bytes(chance.choices(_INTERESTING, k=chance.randint(1, 4)))
            case 3:
                del frame[place : place + chance.randint(1, 4)]
            case 4:
                frames.insert(chance.randint(0, len(frames)), bytearray(frame))
            case 5 if len(frames) > 1:
                del frames[at]
            case _:
                frames[at:at] = [bytearray(other) for other in decoders.unpack(chance.choice(others))]
    return decoders.pack([bytes(frame[:0xFFFF]) for frame in frames])[:_BYTES_MAX]


class Fuzzer:
    """Deterministic for a seed and a corpus. ``kept`` are inputs that reached something new."""

    def __init__(self, corpus: Iterable[bytes], seed: int) -> None:
        self._chance = random.Random(seed)
        self.reached: set[Reached] = set()
        self.kept: list[bytes] = []
        self.inputs: list[bytes] = []
        for data in corpus:
            self._try(data)
            self.inputs.append(data)

    def step(self) -> None:
        """One input. Raises what is wrong with a decoder, with the input as ``args[-1]``."""
        data = changed(self._chance.choice(self.inputs), self.inputs, self._chance)
        if self._try(data):
            self.inputs.append(data)
            self.kept.append(data)

    def _try(self, data: bytes) -> bool:
        reached: set[Reached] = set()
        try:
            with traced(reached):
                decoders.check(data)
        except Exception as error:
            raise Disagreement(data) from error
        new = not reached <= self.reached
        self.reached |= reached
        return new


class Disagreement(Exception):
    """The decoders differ on ``data``, or one of them failed in a way it must not."""

    def __init__(self, data: bytes) -> None:
        super().__init__(f"the decoders disagree on {data.hex()}")
        self.data = data


def corpus() -> dict[str, bytes]:
    """The kept inputs by name, and the seeds."""
    kept = {path.name: path.read_bytes() for path in sorted(CORPUS.glob("*.bin"))}
    return {**decoders.seeds(), **kept}


def keep(data: bytes) -> Path:
    path = CORPUS / f"{hashlib.sha256(data).hexdigest()[:12]}.bin"
    CORPUS.mkdir(exist_ok=True)
    path.write_bytes(data)
    return path
