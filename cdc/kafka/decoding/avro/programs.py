"""A schema and the wanted paths, as the arrays that lead the kernel."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from tailrace.cdc.kafka.decoding.avro.schema import Kind, Node
from tailrace.cdc.kernels.avro_scalars import Program
from tailrace.cdc.kernels.rows import Ints32

Path = tuple[str, ...]


def program_of(root: Node, slots: Mapping[Path, int]) -> Program:
    """``slots``: where the value at each wanted path is noted. A record is looked into where a wanted path goes through
    it; otherwise it is wanted as a whole, or not at all."""
    through = {path[:size] for path in slots for size in range(len(path))}
    nodes: list[tuple[Node, Path | None, str]] = [(root, (), "")]
    first, total, looked, slot, symbols = [], [], [], [], list[str]()
    for node, path, _ in nodes:  # grows: members of a type follow each other
        is_looked = node.kind is Kind.RECORD and path in through
        first.append(len(symbols) if node.kind is Kind.ENUM else len(nodes))
        total.append(len(node.symbols) or len(node.members))
        looked.append(is_looked)
        slot.append(-1 if path is None else slots.get(path, -1))
        symbols += node.symbols
        nodes += [
            (member, (*path, name) if is_looked and path is not None else None, name)
            for name, member in node.members
        ]
    names = [f'"{name}":'.encode() for _, _, name in nodes]
    texts = [each.encode() for each in symbols]
    sizes = np.array([len(each) for each in (*names, *texts)], np.int32)
    places = (np.cumsum(sizes) - sizes).astype(np.int32)
    return Program(
        kind=np.array([node.kind for node, _, _ in nodes], np.uint8),
        union=np.array([node.union for node, _, _ in nodes], np.uint8),
        slot=_numbers(slot),
        looked=np.array(looked, np.uint8),
        first=_numbers(first),
        total=_numbers(total),
        name_at=places[: len(names)],
        name_size=sizes[: len(names)],
        symbol_at=places[len(names) :],
        symbol_size=sizes[len(names) :],
        names=np.frombuffer(b"".join((*names, *texts)), np.uint8),
    )


def _numbers(numbers: list[int]) -> Ints32:
    return np.array(numbers, np.int32)
