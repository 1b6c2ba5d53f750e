"""What capture and repair are given: one source, its log and its server, and how others follow and stop the work."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field, replace
from typing import Self

from tailrace.cdc.policy.policies import Policies
from tailrace.cdc.postgres.connect import Address, Lines
from tailrace.cdc.status import Progress
from tailrace.eventstore.errors import TransientError
from tailrace.eventstore.settings import SourceSettings
from tailrace.eventstore.store import Store


class Stopped(TransientError):
    """The load was given up because the capture stops; nothing of it is visible."""

    def __init__(self) -> None:
        super().__init__("the load was stopped", hint="the next capture begins it again")


@dataclass(frozen=True, slots=True)
class Task:
    """Work on the source ``name`` of a store, until it is done or ``stop`` is set."""

    store: Store
    name: str
    settings: SourceSettings
    address: Address
    progress: Progress
    stop: threading.Event = field(default_factory=threading.Event)

    @classmethod
    def of(
        cls,
        store: Store,
        name: str,
        settings: SourceSettings,
        *,
        progress: Progress | None = None,
        stop: threading.Event | None = None,
    ) -> Self:
        """Raises UsageError for a dsn that cannot be read."""
        address = Address.of(settings)
        return cls(store, name, settings, address, progress or Progress(name), stop or threading.Event())

    @property
    def policies(self) -> Policies:
        return Policies.of(self.settings)

    def with_lines(self, lines: Lines) -> Self:
        """The same work; its ordinary connections can be broken by ``lines``."""
        return replace(self, address=self.address.with_lines(lines))

    def require_going(self) -> None:
        """Raises Stopped."""
        if self.stop.is_set():
            raise Stopped
