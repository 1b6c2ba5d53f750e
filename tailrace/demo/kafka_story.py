"""The demo of Kafka, step by step: changes of Postgres go through the log to a broker, and from there into the log
again. What comes back must be what was there. Every figure is measured and every check made when it is printed."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Any, LiteralString

import psycopg
from psycopg.rows import dict_row

from tailrace.demo.answers import flush_lsn
from tailrace.demo.kafka_place import TABLES, KafkaPlace, kafka_place
from tailrace.demo.playground import Playground
from tailrace.demo.screen import Screen
from tailrace.demo.workload import Workload, seed, wait_for
from tailrace.embedded.kafka_jars import KAFKA_VERSION
from tailrace.embedded.process import ServerProcess
from tailrace.eventstore.errors import OperatorError
from tailrace.eventstore.model.topic import TopicId
from tailrace.eventstore.store import Store
from tailrace.terminal import Output, count

SOURCE, BACK = "shop", "back"
WAIT_SECONDS = 120.0
UNDER_LOAD = 200  # transactions to watch
WHILE_DEAD = 100  # transactions while nothing of Tailrace runs
SECONDS_BETWEEN = 0.02  # two cores are shared with two servers and both ways
PROBES = 5
POLL_SECONDS = 0.02
COUNT_SECONDS = 0.5  # between two looks that read all rows
_PLAY = (
    ("tailrace status", "how far each partition and the publication are"),
    ("tailrace log tail --follow", "changes of both sources as they are committed"),
    ("tailrace source list", "both sources, and their topics"),
    ("tailrace doctor", "what stands in the way"),
)

Row = Mapping[str, Any]
History = dict[Any, list[tuple[str, Row | None]]]
"""By key, what was done to it, and the row after that."""


def run_kafka_demo(output: Output, *, keep: bool) -> None:
    """Run the story. With ``keep`` it waits for Ctrl-C before it ends. Raises DifferenceFound when a check failed,
    OperatorError without the jars of Kafka."""
    screen = Screen(output)
    with ExitStack() as stack:
        screen.step(
            "A shop on a real Postgres, and a real Kafka beside it",
            "Both live in temporary folders; nothing is left behind.",
        )
        started = time.monotonic()
        place = stack.enter_context(kafka_place())
        rows = seed(place.source)
        screen.figure(
            f"Postgres 18 and Kafka {KAFKA_VERSION} started in {time.monotonic() - started:.0f} s,"
            f" {count(rows, 'row')} of customers, products and orders"
        )
        story = KafkaStory(screen, place)
        stack.callback(story.workload.stop)
        story.prepare()
        stack.enter_context(story.store)
        story.load()
        story.under_load()
        story.kill()
        story.compare(keep=keep)
        screen.line_of_result()
        if keep:
            Playground(place, _PLAY, {"kafka": place.kafka.address}).wait_for_interrupt(output)
    screen.verdict()


class KafkaStory:
    """The steps, in their order, on one place."""

    def __init__(self, screen: Screen, place: KafkaPlace) -> None:
        self.screen = screen
        self.place = place
        self.workload = Workload(place.source, pause=SECONDS_BETWEEN)
        self._running: dict[str, ServerProcess] = {}

    def prepare(self) -> None:
        screen = self.screen
        screen.step(
            "Prepare both sources",
            'The database "shop"; and "back", the topics that Kafka is going to have of it.',
        )
        for arguments in (("init", SOURCE, "--events"), ("init", BACK)):
            screen.command(f"tailrace {' '.join(arguments)}")
            self.place.run(*arguments)
        self.store = Store.open(self.place.settings().store)
        known = [name for name in (SOURCE, BACK) if self.store.source(name) is not None]
        screen.check(known == [SOURCE, BACK], f"in the log: {' and '.join(known)}")

    def load(self) -> None:
        screen = self.screen
        screen.step(
            "Postgres → log → Kafka → log",
            "Capture copies the tables, publish sends each row to Kafka in Debezium's format, capture reads it there.",
        )
        started = time.monotonic()
        for command in ("capture", "publish"):
            screen.command(f"tailrace {command}")
            self._running[command] = self.place.start(command)
        self._wait_until(self._has_all, "the first load", COUNT_SECONDS)
        rows = sum(len(self._history(BACK, table)) for table in TABLES)
        screen.figure(
            f"{count(rows, 'row')} came back {time.monotonic() - started:.1f} s after the processes were started"
        )

    def under_load(self) -> None:
        screen = self.screen
        screen.step("While the shop sells", "Both ways at once, each row once.")
        self.workload.start()
        started = time.monotonic()
        self._work(UNDER_LOAD)
        screen.figure(f"{UNDER_LOAD / (time.monotonic() - started):,.0f} transactions/s")
        delays = sorted(self._delay() for _ in range(PROBES))
        screen.figure(
            f"commit in Postgres to readable behind Kafka: median {delays[PROBES // 2] * 1000:.0f} ms,"
            f" worst of {PROBES} {delays[-1] * 1000:.0f} ms"
        )

    def kill(self) -> None:
        screen = self.screen
        screen.step(
            "Capture and publish are killed with -9 and started again",
            "Position and rows are one commit: in the catalog on the way in, in a transaction of Kafka on the way out.",
        )
        for process in self._running.values():
            process.kill()
        before = self.workload.transactions
        self._work(WHILE_DEAD)
        started = time.monotonic()
        self._running = {command: self.place.start(command) for command in self._running}
        missed = self.workload.transactions - before
        target = self._server_lsn()
        self._wait_until(lambda: self._through_lsn() >= target, "the resumed capture")
        screen.figure(
            f"{count(missed, 'transaction')} were committed meanwhile; the log had them"
            f" {time.monotonic() - started:.1f} s after the restart"
        )

    def compare(self, *, keep: bool) -> None:
        screen = self.screen
        screen.step(
            "The shop closes, and both are compared",
            "Nothing lost, nothing twice, no value changed: row by row, change by change.",
        )
        if self.workload.error is not None:
            raise OperatorError(
                f"the demo's workload failed: {self.workload.error}", hint="this is a bug: please report it"
            )
        with self.workload.closed(for_good=not keep):
            target = self._server_lsn()
            self._wait_until(lambda: self._through_lsn() >= target, "catching up")
            self._wait_until(self._is_back, "what is still in Kafka", COUNT_SECONDS)
            self._compare_tables()
        screen.command("tailrace log verify")
        screen.check(self.store.verify().findings == (), "the log is what was written")

    def _compare_tables(self) -> None:
        screen = self.screen
        for table in TABLES:
            first, second = self._history(SOURCE, table), self._history(BACK, table)
            changes = sum(map(len, first.values()))
            screen.check(
                first == second,
                f"{table}: {count(changes, 'change')} of {count(len(first), 'key')} came back once, in their order",
            )
            rows = self._rows(SOURCE, table)
            same = rows == self._rows(BACK, table) == self._database(table)
            screen.check(same, f"{table}: {count(len(rows), 'row')} are those of Postgres on both sides")

    # helpers

    def _topic(self, source: str, table: str) -> TopicId:
        return TopicId.table(source, "public", table)

    def _history(self, source: str, table: str) -> History:
        found: History = {}
        for batch in self.store.read(self._topic(source, table), columns=["_op", "key", "after"]):
            for row in batch.to_pylist():
                found.setdefault(row["key"]["id"], []).append((row["_op"], row["after"]))
        return found

    def _rows(self, source: str, table: str) -> dict[int, Row]:
        rows = [row for part in self.store.state(self._topic(source, table)) for row in part.to_pylist()]
        return {
            row["id"]: {name: cell for name, cell in row.items() if not name.startswith("_")} for row in rows
        }

    def _database(self, table: LiteralString) -> dict[int, Row]:
        with psycopg.connect(self.place.source, row_factory=dict_row) as connection:
            connection.execute("SET TIME ZONE 'UTC'")
            return {row["id"]: row for row in connection.execute(f"SELECT * FROM {table}")}  # noqa: S608

    def _has_all(self) -> bool:
        """Whether all tables of both sources are whole."""
        topics = {info.id: info for info in self.store.topics()}
        wanted = [self._topic(source, table) for source in (SOURCE, BACK) for table in TABLES]
        if not all(topic in topics and topics[topic].complete_since is not None for topic in wanted):
            return False
        return self._is_back()

    def _is_back(self) -> bool:
        ends = {
            source: [self._end(self._topic(source, table)) for table in TABLES] for source in (SOURCE, BACK)
        }
        return ends[SOURCE] == ends[BACK]

    def _end(self, topic: TopicId) -> int:
        """How many rows a topic has had."""
        return sum(len(batch) for batch in self.store.read(topic, columns=["_op"]))

    def _wait_until(self, condition: Callable[[], bool], what: str, pause: float = POLL_SECONDS) -> None:
        deadline = time.monotonic() + WAIT_SECONDS
        while not condition():
            for command, process in self._running.items():
                self.place.require_alive(process, command)
            if time.monotonic() > deadline:
                raise OperatorError(
                    f"{what} took more than {WAIT_SECONDS:.0f} s", hint="is the machine very busy?"
                )
            time.sleep(pause)

    def _work(self, transactions: int) -> None:
        if not wait_for(self.workload, transactions, WAIT_SECONDS):
            raise OperatorError(
                f"the demo's workload stands still: {self.workload.error or 'no error'}",
                hint="is the machine very busy?",
            )

    def _delay(self) -> float:
        """Seconds from a commit of our own until it has come back."""
        head = self.store.head()
        after = head.epoch if head else 0
        with psycopg.connect(self.place.source) as connection:
            cursor = connection.execute(
                "UPDATE customers SET city = city WHERE id = 1 RETURNING pg_current_xact_id()::text::bigint"
            )
            xid = cursor.fetchall()[0][0]
            connection.commit()
        committed = time.monotonic()
        topic = self._topic(BACK, "customers")

        def is_there() -> bool:
            found = self.store.read(topic, after_epoch=after, columns=["_txn"])
            return any(xid in batch["_txn"].to_pylist() for batch in found)

        self._wait_until(is_there, "a single change")
        return time.monotonic() - committed

    def _server_lsn(self) -> int:
        with psycopg.connect(self.place.source, autocommit=True) as connection:
            return flush_lsn(connection)

    def _through_lsn(self) -> int:
        state = self.store.source(SOURCE)
        return state.through_lsn if state else 0
