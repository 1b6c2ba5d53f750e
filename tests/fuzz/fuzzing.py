"""Coverage-guided fuzzing: inputs that reach something new are kept and changed again.

Coverage is that of the Python code, line after line, and of the words of refusals: the kernels cannot be traced, but
each of their refusals has its own. Without dependencies, on every Python that the project supports.
"""

from __future__ import annotations

import hashlib
import random
import struct
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

CORPUS = Path(__file__).with_name("corpus")
_CHANGES_MAX = 4

Reached = tuple[str, int, int]


@dataclass(frozen=True)
class Target:
    """What is fuzzed. ``check`` takes any bytes, raises AssertionError when something is wrong with what became of
    them, and gives the words of what was refused. ``interesting`` are bytes that mean something; inputs longer than
    ``bytes_max`` reach nothing that others do not."""

    name: str
    check: Callable[[bytes], Iterable[str]]
    seeds: Callable[[], Mapping[str, bytes]]
    traced: Sequence[ModuleType]
    interesting: bytes
    bytes_max: int = 1024

    def corpus(self) -> dict[str, bytes]:
        """The kept inputs by name, and the seeds."""
        kept = {path.name: path.read_bytes() for path in sorted((CORPUS / self.name).glob("*.bin"))}
        return {**self.seeds(), **kept}

    def keep(self, data: bytes) -> Path:
        path = CORPUS / self.name / f"{hashlib.sha256(data).hexdigest()[:12]}.bin"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        return path


def pack(frames: Iterable[bytes]) -> bytes:
    return b"".join(struct.pack(">H", len(frame)) + frame for frame in frames)


def unpack(data: bytes) -> list[bytes]:
    """The frames in any bytes; the last may be shorter than its length says."""
    frames, at = [], 0
    while at + 2 <= len(data):
        size = int.from_bytes(data[at : at + 2], "big")
        frames.append(data[at + 2 : at + 2 + size])
        at += 2 + size
    return frames


@contextmanager
def traced(reached: set[Reached], files: set[str | None]) -> Iterator[None]:
    """Add steps from line to line in these files to ``reached``."""
    last: dict[str, int] = {}

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        name = frame.f_code.co_filename
        if name not in files:
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


def changed(data: bytes, others: list[bytes], target: Target, chance: random.Random) -> bytes:
    """The input with a few changes; its frames stay frames unless a change says otherwise."""
    frames = [bytearray(frame) for frame in unpack(data)] or [bytearray(target.interesting[:1])]
    for _ in range(chance.randint(1, _CHANGES_MAX)):
        at = chance.randrange(len(frames))
        frame = frames[at]
        place = chance.randrange(len(frame)) if frame else 0
        match chance.randrange(7):
            case 0 if frame:
                frame[place] = chance.choice(target.interesting)
            case 1 if frame:
                frame[place] ^= 1 << chance.randrange(8)
            case 2:
                frame[place:place] = bytes(chance.choices(target.interesting, k=chance.randint(1, 4)))
            case 3:
                del frame[place : place + chance.randint(1, 4)]
            case 4:
                frames.insert(chance.randint(0, len(frames)), bytearray(frame))
            case 5 if len(frames) > 1:
                del frames[at]
            case _:
                frames[at:at] = [bytearray(other) for other in unpack(chance.choice(others))]
    return pack([bytes(frame[:0xFFFF]) for frame in frames])[: target.bytes_max]


class Fuzzer:
    """Deterministic for a seed and a corpus. ``kept`` are inputs that reached something new."""

    def __init__(self, target: Target, seed: int) -> None:
        self._target = target
        self._chance = random.Random(seed)
        self._files = {module.__file__ for module in target.traced}
        self.reached: set[Reached] = set()
        self.words: set[str] = set()
        self.kept: list[bytes] = []
        self.inputs: list[bytes] = []
        for data in target.corpus().values():
            self._try(data)
            self.inputs.append(data)

    def step(self) -> None:
        """One input. Raises what is wrong, with the input as ``data``."""
        data = changed(self._chance.choice(self.inputs), self.inputs, self._target, self._chance)
        if self._try(data):
            self.inputs.append(data)
            self.kept.append(data)

    def _try(self, data: bytes) -> bool:
        reached: set[Reached] = set()
        try:
            with traced(reached, self._files):
                words = set(self._target.check(data))
        except Exception as error:
            raise Disagreement(self._target.name, data) from error
        new = not (reached <= self.reached and words <= self.words)
        self.reached |= reached
        self.words |= words
        return new


class Disagreement(Exception):
    """Two decoders differ on ``data``, or one of them failed in a way it must not."""

    def __init__(self, target: str, data: bytes) -> None:
        super().__init__(f"{target}: what becomes of {data.hex()} is wrong")
        self.data = data
