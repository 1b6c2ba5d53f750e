"""Who has which partition: pure, the same for every member that works it out.

Shares differ by one at most, and as few partitions as possible change hands (sticky, as in Kafka's KIP-54).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from tailrace.eventstore.model.topic import TopicId


@dataclass(frozen=True, slots=True, order=True)
class Slot:
    """One partition of one topic, as a group shares it out."""

    topic: TopicId
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}/{self.partition}"


def assign(owners: Mapping[Slot, str | None], members: Collection[str]) -> dict[Slot, str]:
    """The owner that every slot shall have; empty without members. Owners that are no members lose theirs."""
    if not members:
        return {}
    held: dict[str, list[Slot]] = {member: [] for member in sorted(members)}
    free: list[Slot] = []
    for slot in sorted(owners):
        held.get(owners[slot] or "", free).append(slot)
    least, more = divmod(len(owners), len(held))
    # The larger shares go to those who hold more already: they give up less.
    ranked = sorted(held, key=lambda member: (-len(held[member]), member))
    quota = {member: least + (place < more) for place, member in enumerate(ranked)}
    for member, slots in held.items():
        free += slots[quota[member] :]
        del slots[quota[member] :]
    free.sort()
    for member, slots in held.items():
        while len(slots) < quota[member]:
            slots.append(free.pop(0))
    return {slot: member for member, slots in held.items() for slot in slots}
