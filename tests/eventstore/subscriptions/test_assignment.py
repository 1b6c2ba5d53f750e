"""Sharing partitions out: balanced, sticky, the same for everybody."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tailrace.eventstore.model.topic import TopicId
from tailrace.eventstore.subscriptions.assignment import Slot, assign

TOPIC = TopicId.parse("shop.public.t")
MEMBERS = st.sets(st.sampled_from("abcdefg"), min_size=1)
OWNERS = st.dictionaries(
    st.integers(0, 40).map(lambda number: Slot(TOPIC, number)),
    st.one_of(st.none(), st.sampled_from("abcdefgh")),
)


@given(OWNERS, MEMBERS)
def test_every_partition_has_one_member_and_shares_differ_by_one_at_most(
    owners: dict[Slot, str | None], members: set[str]
) -> None:
    shared = assign(owners, members)
    assert shared.keys() == owners.keys()
    counts = {member: list(shared.values()).count(member) for member in members}
    assert sum(counts.values()) == len(owners)
    assert max(counts.values()) - min(counts.values()) <= 1


@given(OWNERS, MEMBERS)
def test_no_more_partitions_change_hands_than_must(owners: dict[Slot, str | None], members: set[str]) -> None:
    shared = assign(owners, members)
    moved = sum(1 for slot, owner in shared.items() if owners[slot] != owner)
    held = sorted((list(owners.values()).count(member) for member in members), reverse=True)
    least, more = divmod(len(owners), len(members))
    kept = sum(min(count, least + (place < more)) for place, count in enumerate(held))
    assert moved == len(owners) - kept


@given(OWNERS, MEMBERS)
def test_sharing_out_again_changes_nothing(owners: dict[Slot, str | None], members: set[str]) -> None:
    shared = assign(owners, members)
    assert assign(shared, members) == shared


def test_without_members_nobody_has_anything() -> None:
    assert assign({Slot(TOPIC, 0): "gone"}, []) == {}
