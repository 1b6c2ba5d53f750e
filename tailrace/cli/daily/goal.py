"""When ``tailrace capture --once`` is done: the log holds all that a server had committed when the command began."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tailrace.eventstore.errors import TransientError
from tailrace.eventstore.metadata.quarantine import quarantined

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tailrace.eventstore.model.topic import TopicId
    from tailrace.eventstore.settings import SourceSettings
    from tailrace.eventstore.store import Store

_LOOK_SECONDS = 1.0  # between questions to the server


@dataclass(slots=True)
class Goal:
    """All commits of a source below ``lsn``, and all its topics loaded whose tables can be read."""

    store: Store
    source: str
    settings: SourceSettings
    lsn: int
    left: Sequence[str] = ()
    """Said of the topics that are not loaded, once the goal is reached."""
    _looked_at: float = field(default=float("-inf"), init=False)

    @classmethod
    def now(cls, store: Store, source: str, settings: SourceSettings) -> Goal:
        """Where the server's WAL ends now. Raises TransientError when it is out of reach."""
        from tailrace.cli.daily.status import server_flush_lsn

        lsn = server_flush_lsn(settings.dsn.get_secret_value())
        if lsn is None:
            raise TransientError(
                f"the server of source {source} is out of reach",
                hint="tailrace doctor says why; then try again",
            )
        return cls(store, source, settings, lsn)

    def reached(self) -> bool:
        """Topics that are set aside are waited for only when somebody asks; those without a table never."""
        state = self.store.source(self.source)
        if state is None or not state.loaded or state.through_lsn < self.lsn:
            return False
        waiting = self._incomplete()
        if waiting and time.monotonic() - self._looked_at < _LOOK_SECONDS:
            return False
        self._looked_at = time.monotonic()
        self.left = self._unloadable(waiting, state.publication) if waiting else ()
        return len(self.left) == len(waiting)

    def _incomplete(self) -> list[TopicId]:
        aside = {each.topic for each in quarantined(self.store.catalog, self.source)}
        aside -= {request.topic for request in self.store.requests.open(self.source, "retry")}
        topics = self.store.topics(self.source)
        return [topic.id for topic in topics if topic.complete_since is None and topic.id not in aside]

    def _unloadable(self, topics: Sequence[TopicId], name: str) -> list[str]:
        """Those that no session would load, as the server's tables and its publication are."""
        from tailrace.cdc.postgres.connect import Address, connect
        from tailrace.cdc.postgres.publication import read_publication
        from tailrace.cdc.postgres.tables import read_tables
        from tailrace.cdc.setup.table_changes import loadable_tables
        from tailrace.cdc.topics import Topics

        address = Address.of(self.settings)
        try:
            with connect(address, "tailrace capture") as connection:
                publication = read_publication(connection, name, address)
                tables = read_tables(connection, address)
        except TransientError:  # the capture tries again, too
            return []
        loadable = set(loadable_tables(Topics.read(self.store, self.source), publication, tables).values())
        return [
            f"{topic.text} cannot be loaded: its table is not there, or not published (tailrace init)"
            for topic in topics
            if topic not in loadable
        ]
