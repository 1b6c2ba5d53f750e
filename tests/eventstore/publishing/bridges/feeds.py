"""A publication of the small shop over a bridge, as a project of the command line or in this process."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from tailrace.eventstore.failpoints import VARIABLE
from tailrace.eventstore.log.log import Log
from tailrace.eventstore.publishing.bridges.open import open_bridge
from tailrace.eventstore.publishing.bridges.session import BridgeSession
from tailrace.eventstore.publishing.publisher import Publisher
from tailrace.eventstore.settings import PublicationSettings, Settings
from tailrace.eventstore.store import Store
from tests.eventstore.shop import batch, writer
from tests.fixtures.stores import StoreFactory
from tests.tailrace.conftest import Project

NAME = "feed"


@dataclass(frozen=True, slots=True)
class Feed:
    """``destination``: its table in the configuration."""

    destination: Mapping[str, Any]
    publication: Mapping[str, Any] = field(default_factory=dict)

    @property
    def settings(self) -> PublicationSettings:
        return PublicationSettings(destination="there", **{"topics": ("shop.*",), **self.publication})

    def publisher(self, log: Log, **more: Any) -> Publisher:
        stop = more.pop("stop", None) or threading.Event()
        given = Settings.model_validate({"destinations": {"there": self.destination}})
        destination = given.destinations["there"]
        assert destination.kind != "kafka"
        opened = partial(open_bridge, destination)
        note = more.get("note", lambda _: None)
        patience = more.pop("patience_seconds", 20.0)
        session = partial(
            BridgeSession, log, NAME, self.settings, opened, stop=stop, note=note, patience_seconds=patience
        )
        return Publisher(log, NAME, self.settings, session, stop=stop, **more)

    def project(self, folder: Path) -> Project:
        """The same for the command line, with the store in ``folder``."""
        told = self.settings.model_dump(exclude_none=True, exclude_defaults=True, mode="json")
        project = Project(folder)
        project.configure(
            "[store]\ncatalog = 'sqlite:///catalog.db'\nsegments = 'segments'\n"
            f"[destinations.there]\n{_lines(self.destination)}[publish.{NAME}]\n{_lines(told)}"
        )
        return project


def _lines(table: Mapping[str, Any]) -> str:
    return "".join(f"{key} = {json.dumps(value)}\n" for key, value in table.items())


def filled(new_store: StoreFactory, epochs: int = 6) -> Store:
    """Three keys, each changed in every epoch."""
    store = new_store()
    to = writer(store)
    for number in range(1, epochs + 1):
        to.append(batch(100 * number, [("c" if number == 1 else "u", key) for key in (1, 2, 3)]))
    return store


def killed_and_again(feed: Feed, folder: Path) -> None:
    project = feed.project(folder)
    killed = project.run("publish", NAME, "--once", environment={VARIABLE: "portion_sent:3"})
    assert killed.code == -9, killed.err
    project.ok("publish", NAME, "--once")


@dataclass(frozen=True, slots=True)
class Received:
    """What a receiver saw of one message."""

    id: str
    key: Any
    value: Any

    @property
    def commit(self) -> int:
        return int(json.loads(self.value["source"]["sequence"])[0])


def commits(found: Sequence[Received]) -> dict[int, list[int]]:
    """By key what was done to it, without messages that a receiver knows by their ids."""
    seen: set[str] = set()
    by_key: dict[int, list[int]] = {}
    for each in found:
        if each.id not in seen:
            seen.add(each.id)
            by_key.setdefault(each.key["id"], []).append(each.commit)
    return by_key


def each_in_order(epochs: int = 6) -> dict[int, list[int]]:
    return {key: [100 * number for number in range(1, epochs + 1)] for key in (1, 2, 3)}


def require_order(found: Sequence[Received]) -> None:
    """What comes again comes with all that follows it of its key: a receiver that keeps the last id of each key, too,
    never goes back for long."""
    last: dict[int, int] = {}
    known: dict[str, tuple[int, int]] = {}
    for each in found:
        key, commit = each.key["id"], each.commit
        assert known.setdefault(each.id, (key, commit)) == (key, commit)  # the same id says the same
        assert each.id in known or commit > last.get(key, 0)
        last[key] = commit
