"""What ``tailrace doctor`` looks at in publications."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import TYPE_CHECKING

from tailrace.doctor.check import Check, failed_check
from tailrace.eventstore.errors import TailraceError
from tailrace.terminal import count

if TYPE_CHECKING:
    from tailrace.eventstore.settings import DestinationSettings, Settings
    from tailrace.eventstore.store import Store


def check_publication(store: Store, name: str, settings: Settings) -> Iterator[Check]:
    """Whether its destination answers, its position is of this log, and what is parked."""
    subject = f"publish {name}"
    try:
        from tailrace.status import publication_status

        found = publication_status(store, name, settings)
        yield from _check_bridge(subject, settings.destinations[settings.publish[name].destination])
    except TailraceError as error:
        yield failed_check(subject, error)
        return
    if found.epoch is None:
        yield Check(subject, "fail", found.state, f"tailrace publish {name} --once says what to do")
    elif found.parked:
        first = found.parked[0]
        what = f"{count(len(found.parked), 'key')} of it wait, the first in {first.topic}: {first.reason}"
        yield Check(
            subject, "warn", what, f"do what its reason says, then start tailrace publish {name} again"
        )
    else:
        yield Check(subject, "ok", f"{found.state}, epoch {found.epoch:,}")


def _check_bridge(subject: str, destination: DestinationSettings) -> Iterator[Check]:
    """Whether a destination answers that is not asked for the position. Nothing is sent to it."""
    if destination.kind == "kafka":
        return
    from tailrace.eventstore.publishing.bridges.open import open_bridge

    if warning := destination.unprotected:
        yield Check(subject, "warn", *warning)
    with closing(open_bridge(destination)) as bridge:
        bridge.check()
