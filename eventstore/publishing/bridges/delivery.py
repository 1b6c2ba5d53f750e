"""In which order messages go out. No socket, no clock.

Rows of one key stay in their order: no message is handed out before the one of its key before it was taken. What
concerns every key (a truncate) goes alone, when all before it are taken. Between keys there is no order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby

from tailrace.eventstore.publishing.bridges.bridge import Answer, Later, Refused, Taken
from tailrace.eventstore.publishing.bridges.messages import Outgoing

BATCH_MAX = 100  # messages that one call of a bridge gets
_Lane = deque[Outgoing]


def deliver(
    messages: Iterable[Outgoing],
    send: Callable[[Sequence[Outgoing]], Sequence[Answer]],
    pause: Callable[[Later, bool], None],
) -> None:
    """Until each was taken. ``send`` gives an answer for each. ``pause`` is called before messages are sent again, with
    the longest of their answers, and whether any message was taken since the last pause. Ends with the first batch in
    which one was refused."""
    for lanes in _in_turn(messages):
        if not _deliver(lanes, send, pause):
            return


def _in_turn(messages: Iterable[Outgoing]) -> Iterator[list[_Lane]]:
    """Messages of different keys that may go side by side, by key."""
    for alone, group in groupby(messages, key=lambda each: each.to_all):
        if alone:
            yield from ([deque([each])] for each in group)
        else:
            lanes: dict[tuple[str, int], _Lane] = {}
            for each in group:
                lanes.setdefault((each.message.topic, each.hash), deque()).append(each)
            yield list(lanes.values())


def _deliver(
    lanes: Sequence[_Lane],
    send: Callable[[Sequence[Outgoing]], Sequence[Answer]],
    pause: Callable[[Later, bool], None],
) -> bool:
    ready, waiting = deque(lanes), deque[_Lane]()
    longest, progress = Later(""), False
    while ready or waiting:
        if not ready:
            pause(longest, progress)
            ready, waiting = waiting, ready
            longest, progress = Later(""), False
        chosen = [ready.popleft() for _ in range(min(BATCH_MAX, len(ready)))]
        answers = send([lane[0] for lane in chosen])
        for lane, answer in zip(chosen, answers, strict=True):
            if isinstance(answer, Taken):
                lane.popleft()
                if lane:
                    ready.append(lane)
            elif isinstance(answer, Later):
                waiting.append(lane)
                longest = max(longest, answer, key=lambda each: (each.after_seconds, bool(each.reason)))
        if any(isinstance(answer, Refused) for answer in answers):
            return False
        taken = any(isinstance(answer, Taken) for answer in answers)
        progress |= taken
        if not taken:  # not all of the others are tried in vain, too
            waiting.extend(ready)
            ready.clear()
    return True
