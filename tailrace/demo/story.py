"""The demo's story, step by step. Every figure is measured and every check made when it is printed."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import psycopg

from tailrace.demo.answers import (
    Moment,
    flush_lsn,
    generation_totals,
    live_totals,
    shipped_order,
    source_moment,
    sum_of,
)
from tailrace.demo.playground import Playground
from tailrace.demo.screen import Screen
from tailrace.demo.workload import Workload, seed, wait_for
from tailrace.demo.workspace import Workspace, workspace
from tailrace.eventstore.errors import OperatorError, TailraceError
from tailrace.eventstore.store import Store
from tailrace.projections.context import ProjectionContext
from tailrace.projections.definition.load import load_projections
from tailrace.projections.lifecycle.build import rebuild
from tailrace.projections.lifecycle.catch_up import refresh
from tailrace.projections.lifecycle.verify import verify
from tailrace.projections.refresh.refresh import RefreshOutcome
from tailrace.terminal import Output, count

if TYPE_CHECKING:
    from tailrace.embedded.process import ServerProcess
    from tailrace.eventstore.settings import Settings

SOURCE = "shop"
WAIT_SECONDS = 120.0
UNDER_LOAD = 1_000  # transactions to watch
WHILE_DEAD = 150  # transactions while no capture runs
PROBES = 20
POLL_SECONDS = 0.005
_PLAY = (
    ("tailrace status", "how far everything is; try it twice, the shop sells on"),
    ("tailrace log tail --follow", "changes as they are committed"),
    ("tailrace run", "keep the projections up to date"),
    ("tailrace rebuild customer_totals", "a new generation, promoted"),
    ("tailrace projection list", "all generations"),
    ("tailrace verify", "the sinks against the log"),
)

# A column can be renamed and a filter lost: the code runs, its tests for shape pass, its figures are wrong.
_GOOD_LINE = 'counted = orders.where(orders.status != "cancelled")'
_BAD_LINE = "counted = orders"
BAD_MODULE = "shop.projections_of_friday"


def run_demo(output: Output, *, keep: bool) -> None:
    """Run the story. With ``keep`` it waits for Ctrl-C before it ends. Raises DifferenceFound when a check failed."""
    screen = Screen(output)
    with ExitStack() as stack:
        screen.step(
            "A shop on a real Postgres",
            "Postgres, Redis and all files live in temporary folders; nothing is left behind.",
        )
        place = stack.enter_context(workspace())
        rows = seed(place.source)
        screen.figure(
            f"Postgres 18 and Redis started, {count(rows, 'row')} of customers, products and orders"
        )
        story = Story(screen, place)
        stack.callback(story.workload.stop)
        story.prepare_and_load()
        stack.enter_context(story.store)
        story.under_load()
        story.kill_capture()
        moment = story.remember()
        story.build()
        story.refresh_under_writes()
        story.read()
        story.verify()
        story.one_row()
        story.as_of(moment)
        story.bad_deploy()
        story.settle(keep=keep)
        screen.line_of_result()
        if keep:
            playground(place).wait_for_interrupt(output)
    screen.verdict()


def playground(place: Workspace) -> Playground:
    server = place.postgres
    psql = f"PGPASSFILE={place.passfile} {server.bin('psql')} -h 127.0.0.1 -p {server.port} -U postgres"
    more = [f"{psql} shop   # or mart", f"edit {place.folder}/shop/projections.py   # then rebuild"]
    addresses = {"source": place.source, "mart": place.mart, "redis": place.redis.url}
    return Playground(place, _PLAY, addresses, more)


class Story:
    """The steps, in their order, on one workspace with one Spark session."""

    def __init__(self, screen: Screen, place: Workspace) -> None:
        self.screen = screen
        self.place = place
        self.workload = Workload(place.source)
        self._capture: ServerProcess | None = None

    # the log

    def prepare_and_load(self) -> None:
        screen = self.screen
        screen.step(
            "Prepare the source", "Check everything, make a publication and the tables of domain events."
        )
        screen.command("tailrace init --events")
        (prepared,) = self.place.run("init", "--events")
        screen.check(len(prepared["new_topics"]) == 3, f"topics: {', '.join(prepared['new_topics'])}")
        screen.step(
            "First load",
            "Capture copies the tables from the slot's own snapshot, so that no change is missed or doubled.",
        )
        screen.command("tailrace capture")
        started = time.monotonic()
        self._capture = self.place.start("capture")
        self.store = Store.open(self.place.settings().store)
        self._wait_until(lambda: self._is_loaded(), "the first load")
        head = self.store.head()
        assert head is not None
        seconds = time.monotonic() - started
        screen.figure(
            f"{count(head.rows, 'row')} in epoch {head.epoch}, {seconds:.1f} s from the start of the process"
        )

    def under_load(self) -> None:
        screen = self.screen
        screen.step(
            "Capture under load",
            "The shop sells; each change of an order and its domain event are one transaction.",
        )
        self.workload.start()
        before = self.store.head()
        started = time.monotonic()
        self._work(UNDER_LOAD // 2)
        delays = sorted(self._delay() for _ in range(PROBES))
        self._work(UNDER_LOAD // 2)
        seconds = time.monotonic() - started
        after = self.store.head()
        assert before is not None and after is not None
        done = self.workload.transactions
        screen.figure(f"{done / seconds:,.0f} transactions/s in {count(after.epoch - before.epoch, 'epoch')}")
        screen.figure(
            f"commit to readable in the log: median {delays[PROBES // 2] * 1000:.0f} ms,"
            f" worst of {PROBES} {delays[-1] * 1000:.0f} ms"
        )

    def kill_capture(self) -> None:
        screen = self.screen
        screen.step(
            "Capture is killed with -9 and started again",
            "Position and rows are one commit of the catalog: the new process goes on where the log ends.",
        )
        assert self._capture is not None
        self._capture.kill()
        before = self.store.source(SOURCE)
        dead = self.workload.transactions
        self._work(WHILE_DEAD)
        missed = self.workload.transactions - dead
        target = self._server_lsn()
        started = time.monotonic()
        self._capture = self.place.start("capture")
        self._wait_until(lambda: self._through_lsn() >= target, "the resumed capture")
        after = self.store.source(SOURCE)
        assert before is not None and after is not None
        screen.figure(
            f"{count(missed, 'transaction')} were committed meanwhile; caught up"
            f" {time.monotonic() - started:.1f} s after the restart"
        )
        screen.check(
            after.term == before.term + 1, f"one writer: term {before.term} is over, term {after.term} writes"
        )

    def remember(self) -> Moment:
        """The totals by the database's own arithmetic, at a moment when no transaction runs."""
        with self.workload.pause():
            return source_moment(self.place.source)

    # projections

    def build(self) -> None:
        screen = self.screen
        screen.step(
            "A view, a cache and a search index",
            "Three PySpark functions over the log's state; each result goes to its own kind of sink.",
        )
        screen.command("tailrace run")
        self.settings: Settings = self.place.settings()
        definitions = load_projections(self.settings.projections.modules, root=self.place.folder)
        self.context = ProjectionContext(self.store, self.settings, definitions)
        started = time.monotonic()
        _ = self.context.spark.sparkContext
        screen.figure(f"Spark session in {time.monotonic() - started:.1f} s; all that follows uses it")
        for name in definitions:
            began = time.monotonic()
            built = rebuild(self.context, name)
            seconds = time.monotonic() - began
            sink = type(definitions[name].sink).__name__
            screen.figure(
                f"{name} → {sink}: {count(built.rows, 'row')} at epoch {built.epoch:,}, {seconds:.1f} s"
            )
        screen.check(
            all(self.store.derived.live(name) == 1 for name in definitions),
            "all three are live, generation 1",
        )

    def refresh_under_writes(self) -> None:
        screen = self.screen
        screen.step(
            "Refresh while the shop sells on",
            "The result is compared with the one before; only differences are written.",
        )
        wait_for(self.workload, WHILE_DEAD, WAIT_SECONDS)
        self._catch_up()
        for outcome in self._refresh():
            rows = f"{count(outcome.upserts, 'upsert')}, {count(outcome.deletes, 'delete')}"
            screen.figure(f"{outcome.projection}: {rows} to epoch {outcome.epoch:,}, {outcome.seconds:.1f} s")

    def read(self) -> None:
        from tailrace.reader import open_reader

        screen = self.screen
        screen.step("Read them", "As an application does: through small readers, without Spark.")
        for name in self.context.projections:
            with open_reader(name, config=self.place.config) as reader:
                began = time.monotonic()
                if name == "product_search":
                    hits = reader.search("oak chair", limit=3)
                    milliseconds = (time.monotonic() - began) * 1000
                    found = "; ".join(f"{hit.row['name']} at {hit.row['price']}" for hit in hits)
                    screen.check(bool(hits), f"search 'oak chair': {found} ({milliseconds:.0f} ms)")
                else:
                    row = reader.get(1)
                    milliseconds = (time.monotonic() - began) * 1000
                    screen.check(row is not None, f"{name} 1: {_short(row or {})} ({milliseconds:.0f} ms)")

    def verify(self) -> None:
        screen = self.screen
        screen.step(
            "Prove it",
            "The log against the source at one exact position, the sinks against the log; writes go on.",
        )
        screen.command("tailrace verify --source")
        for found in self.place.run("verify", "--source"):
            screen.check(
                found["equal"],
                f"{found['topic']} equals its source at {found['lsn']}: {found['source_rows']:,} rows",
            )
        screen.command("tailrace verify")
        for name in self.context.projections:
            compared = verify(self.context, name)
            text = f"{name} equals the log at epoch {compared.epoch:,}: {count(compared.rows, 'row')}"
            screen.check(compared.equal, text)

    def one_row(self) -> None:
        screen = self.screen
        order = shipped_order(self.place.source)
        screen.step(
            "One row's history, and why",
            "Each change with the domain event that the same transaction recorded.",
        )
        screen.command(f"tailrace log show shop.public.orders {order}")
        history = self.place.run("log", "show", "shop.public.orders", str(order))
        for change in history:
            reasons = "; ".join(
                f"{event['after']['type']} {event['after']['data']}" for event in change["events"]
            )
            screen.figure(f"{change['op']} {change['lsn']} {change['after']['status']:<9} {reasons}")
        screen.check(
            all(change["events"] for change in history) and len(history) >= 3,
            f"order {order}: {count(len(history), 'change')}, each with its event",
        )

    def as_of(self, moment: Moment) -> None:
        screen = self.screen
        screen.step(
            "The totals as of an earlier moment",
            "A generation built from history lies beside the live one; the database's own answer was noted then.",
        )
        position = moment.at.isoformat()
        screen.command(f"tailrace rebuild customer_totals --as-of {position}")
        began = time.monotonic()
        built = rebuild(self.context, "customer_totals", as_of=moment.at)
        found = generation_totals(self.context, built.generation)
        total = sum_of(found)
        screen.figure(f"{count(built.rows, 'row')} as of {position} in {time.monotonic() - began:.1f} s")
        screen.check(
            found == moment.totals, f"sum then {total:,} = what the database said then, customer by customer"
        )
        now = sum_of(live_totals(self.place.mart))
        screen.check(now != total, f"the live view has gone on: {now:,}")

    def bad_deploy(self) -> None:
        screen = self.screen
        screen.step(
            "A bad deploy is rolled back",
            "Somebody lost the filter on cancelled orders; the new code runs and is wrong.",
        )
        before = sum_of(live_totals(self.place.mart))
        bad = rebuild(self._with_bad_code(), "customer_totals")
        wrong = sum_of(live_totals(self.place.mart))
        screen.check(
            wrong > before,
            f"generation {bad.generation} went live: the total jumps from {before:,} to {wrong:,}",
        )
        screen.command("tailrace projection rollback customer_totals --stale-ok")
        began = time.monotonic()
        (done,) = self.place.run("projection", "rollback", "customer_totals", "--stale-ok")
        back = sum_of(live_totals(self.place.mart))
        screen.figure(
            f"back at generation {done['generation']} in {time.monotonic() - began:.1f} s, the start of the command"
            f" included; {count(done['behind'], 'epoch')} behind, and said so"
        )
        screen.check(back == before, f"the total is {back:,} again")

    def settle(self, *, keep: bool) -> None:
        """The last check: with the shop closed, every total in the mart equals the source's."""
        screen = self.screen
        screen.step(
            "The shop closes", "With nothing in flight, the view must equal the source's own arithmetic."
        )
        workload = self.workload
        if workload.error is not None:
            raise OperatorError(
                f"the demo's workload failed: {workload.error}", hint="this is a bug: please report it"
            )
        with workload.closed(for_good=not keep):
            self._catch_up()
            outcomes = self._refresh()
            expected = source_moment(self.place.source).totals
            found = live_totals(self.place.mart)
        slowest = max((outcome.seconds for outcome in outcomes), default=0.0)
        kinds = ", ".join(f"{number:,} {kind}" for kind, number in workload.committed.most_common())
        screen.figure(f"{count(workload.transactions, 'transaction')}: {kinds}")
        screen.check(
            found == expected, f"all {len(found):,} totals equal the source; last refresh {slowest:.1f} s"
        )

    # helpers

    def _is_loaded(self) -> bool:
        state = self.store.source(SOURCE)
        return state is not None and state.loaded

    def _through_lsn(self) -> int:
        state = self.store.source(SOURCE)
        return state.through_lsn if state else 0

    def _wait_until(self, condition: Any, what: str) -> None:
        deadline = time.monotonic() + WAIT_SECONDS
        while not condition():
            assert self._capture is not None
            self.place.require_alive(self._capture, "capture")
            if time.monotonic() > deadline:
                raise OperatorError(
                    f"{what} took more than {WAIT_SECONDS:.0f} s", hint="is the machine very busy?"
                )
            time.sleep(POLL_SECONDS)

    def _work(self, transactions: int) -> None:
        if not wait_for(self.workload, transactions, WAIT_SECONDS):
            raise OperatorError(
                f"the demo's workload stands still: {self.workload.error or 'no error'}",
                hint="is the machine very busy?",
            )

    def _server_lsn(self) -> int:
        with psycopg.connect(self.place.source, autocommit=True) as connection:
            return flush_lsn(connection)

    def _delay(self) -> float:
        """Seconds from a commit of our own until the log holds it."""
        with psycopg.connect(self.place.source, autocommit=True) as connection:
            connection.execute("UPDATE customers SET city = city WHERE id = 1")
            committed = time.monotonic()
            target = flush_lsn(connection)
        self._wait_until(lambda: self._through_lsn() >= target, "a single change")
        return time.monotonic() - committed

    def _catch_up(self) -> None:
        target = self._server_lsn()
        self._wait_until(lambda: self._through_lsn() >= target, "catching up")

    def _refresh(self) -> list[RefreshOutcome]:
        outcomes = refresh(self.context, list(self.context.projections))
        errors: list[TailraceError] = [outcome.error for outcome in outcomes if outcome.error is not None]
        if errors:
            raise errors[0]
        return [
            outcome
            for outcome in outcomes
            if outcome.generation == self.store.derived.live(outcome.projection)
        ]

    def _with_bad_code(self) -> ProjectionContext:
        """The same Spark session with the definitions of a module whose filter got lost."""
        good = (self.place.folder / "shop" / "projections.py").read_text(encoding="utf-8")
        if _GOOD_LINE not in good:
            raise OperatorError("the demo's projections are not those it was written for", hint="report this")
        name = BAD_MODULE.rpartition(".")[2]
        bad = self.place.folder / "shop" / f"{name}.py"
        bad.write_text(good.replace(_GOOD_LINE, _BAD_LINE), encoding="utf-8")
        definitions = load_projections([BAD_MODULE], root=self.place.folder)
        return ProjectionContext(self.store, self.settings, definitions)


def _short(row: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in row.items())
