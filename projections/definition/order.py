"""Which projections read each other's results: the order of refreshes, and circles. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tailrace.projections.definition.model import Projection


def refresh_order(projections: Mapping[str, Projection], names: Iterable[str]) -> list[str]:
    """The names, each after those that it reads directly or by way of others; otherwise in their order."""
    chosen = list(dict.fromkeys(names))
    found: dict[str, None] = {}
    begun: set[str] = set()

    def visit(name: str) -> None:
        if name in begun or name not in projections:
            return
        begun.add(name)
        for read in projections[name].reads:
            visit(read)
        found[name] = None

    for name in chosen:
        visit(name)
    known = [name for name in found if name in chosen]
    return [*known, *(name for name in chosen if name not in projections)]


def circle_of(projections: Mapping[str, Projection], name: str) -> list[str]:
    """The way from a projection back to itself through what each reads; [] when there is none."""
    ways = [[name]]
    seen = {name}
    while ways:
        way = ways.pop()
        last = projections.get(way[-1])
        for read in last.reads if last else ():
            if read == name:
                return [*way, name]
            if read not in seen:
                seen.add(read)
                ways.append([*way, read])
    return []
