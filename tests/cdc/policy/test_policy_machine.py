"""Column policies against a model: whatever DDL comes in whatever order, plain text gets neither into a store nor into
a recording."""

# ruff: noqa: S608 (statements of a test, about values of its own)

from __future__ import annotations

import itertools
import random
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from tailrace.cdc.recording.file import Recording
from tests.fixtures.databases import Databases
from tests.fixtures.scale import Scale
from tests.support.capturing import RunningCapture, Site, execute
from tests.support.machines import run_machine
from tests.support.plaintext import places_of

pytestmark = pytest.mark.timeout(900)

SECRET = "Zq7xVn2w"
NAMES = ("note", "phone", "email", "memo")
POLICIES = {"public.people.phone": "drop", "public.people.email": "hash", "public.low.memo": "drop"}
COLUMNS = ", ".join(f"{name} text" for name in NAMES)
PARTS = {"people": 100, "spare": 200, "low": 0}  # first id that each may hold as a partition
TABLES = [
    f"CREATE TABLE people (id int PRIMARY KEY, {COLUMNS})",
    f"CREATE TABLE spare (id int PRIMARY KEY, {COLUMNS})",
    f"CREATE TABLE everybody (id int PRIMARY KEY, {COLUMNS}) PARTITION BY RANGE (id)",
    "CREATE TABLE low PARTITION OF everybody FOR VALUES FROM (0) TO (100)",
    f"CREATE TABLE archive (id int PRIMARY KEY, {COLUMNS}) PARTITION BY RANGE (id)",
]
ROOTS = ("everybody", "archive")


@dataclass
class ModelColumn:
    """``protected``: once a policy was seen to hold for it."""

    name: str
    protected: bool = False


@dataclass
class ModelTable:
    name: str
    first: int
    columns: list[ModelColumn] = field(default_factory=list)
    root: ModelTable | None = None

    def column(self, name: str) -> ModelColumn:
        return next(column for column in self.columns if column.name == name)


class PolicyMachine(RuleBasedStateMachine):
    """DDL and rows, while capture runs, is stopped, and is caught up with. A ``protected`` column is one that a policy
    must hide from then on, also where its name has no policy any more."""

    def __init__(self, databases: Databases, folder: Path) -> None:
        super().__init__()
        self.left = ExitStack()
        dsn = self.left.enter_context(databases.lend())
        execute(dsn, *TABLES)
        self.site = Site.at(folder, dsn, columns=POLICIES, hash_key="only the environment knows it")
        self.recordings = folder.with_name(f"{folder.name}-recordings")
        self.recordings.mkdir()
        self.capture: RunningCapture | None = None
        self.ids = itertools.count(1)
        self.tables = {
            name: ModelTable(name, PARTS.get(name, 0), [ModelColumn(each) for each in NAMES])
            for name in (*PARTS, *ROOTS)
        }
        self.tables["low"].root = self.tables["everybody"]

    @initialize(trigger=st.booleans())
    def begin(self, trigger: bool) -> None:
        self.site.init(ddl=trigger)
        self.start()
        self.settle()

    @rule(seed=st.integers(0, 1 << 32))
    def step(self, seed: int) -> None:
        """One rule for all: of several, an example would get but a few, and rows must come between all kinds of DDL."""
        draw = random.Random(seed)
        name = draw.choice([*PARTS, *ROOTS])
        match draw.choices(range(7), weights=(9, 3, 2, 2, 3, 1, 2))[0]:
            case 0:
                self.insert(name, draw)
            case 1:
                self.exchange_names(name, *draw.sample(NAMES, 2))
            case 2:
                self.drop_and_add(name, draw.choice(NAMES))
            case 3:
                self.exchange_tables(*draw.sample(list(PARTS), 2))
            case 4:
                self.attach_or_detach(draw.choice(list(PARTS)), draw.choice(ROOTS))
            case 5:
                self.stop_or_start()
            case _:
                self.settle()

    def insert(self, name: str, draw: random.Random) -> None:
        table = self.tables[name]
        parts = [table] if name in PARTS else [each for each in self.tables.values() if each.root is table]
        if not parts:
            return
        part = draw.choice(parts)
        number = part.first + next(self.ids) % 90
        cells = []
        for column in part.columns:
            above = part.root.column(column.name) if part.root else None
            column.protected |= f"public.{part.name}.{column.name}" in POLICIES
            hidden = column.protected or (above is not None and above.protected)
            if above is not None:
                above.protected = hidden
            cells.append(f"'{SECRET} {name}.{column.name}'" if hidden else "'free'")
        names = ", ".join(column.name for column in part.columns)
        execute(
            self.site.dsn,
            f"DELETE FROM {name} WHERE id = {number}; "
            f"INSERT INTO {name} (id, {names}) VALUES ({number}, {', '.join(cells)})",
        )

    def exchange_names(self, name: str, one: str, other: str) -> None:
        if self.tables[name].root is not None:
            return  # its columns are altered with its root's
        self._alter(
            name,
            f"RENAME COLUMN {one} TO x", f"RENAME COLUMN {other} TO {one}", f"RENAME COLUMN x TO {other}",
        )  # fmt: skip
        for table in self._tree(name):
            first, second = table.column(one), table.column(other)
            first.name, second.name = other, one

    def drop_and_add(self, name: str, column: str) -> None:
        if self.tables[name].root is not None:
            return
        self._alter(name, f"DROP COLUMN {column}", f"ADD COLUMN {column} text")
        for table in self._tree(name):
            known = table.column(column)  # what has the name of a protected one is protected, too
            table.columns = [*(each for each in table.columns if each is not known), known]

    def exchange_tables(self, one: str, other: str) -> None:
        first, second = self.tables[one], self.tables[other]
        if first.root or second.root:
            return
        execute(
            self.site.dsn,
            f"ALTER TABLE {one} RENAME TO x", f"ALTER TABLE {other} RENAME TO {one}",
            f"ALTER TABLE x RENAME TO {other}",
        )  # fmt: skip
        first.name, second.name = other, one
        self.tables |= {one: second, other: first}

    def attach_or_detach(self, name: str, root: str) -> None:
        table = self.tables[name]
        if table.root is not None:
            execute(self.site.dsn, f"ALTER TABLE {table.root.name} DETACH PARTITION {name}")
            table.root = None
            return
        execute(
            self.site.dsn,
            f"ALTER TABLE {root} ATTACH PARTITION {name} FOR VALUES FROM ({table.first}) TO ({table.first + 100})",
        )
        table.root = self.tables[root]

    def settle(self) -> None:
        if self.capture is not None:
            self.capture.catch_up()
            self.capture.catch_up()

    def stop_or_start(self) -> None:
        if self.capture is None:
            self.site.init()  # takes up what was detached
            self.start()
            return
        self._stop()

    def start(self) -> None:
        self.capture = RunningCapture(self.site, record=self.recordings / str(next(self.ids)))
        self.capture.__enter__()

    def _stop(self) -> None:
        if self.capture is not None:
            self.capture.__exit__(None, None, None)
            self.capture = None

    def teardown(self) -> None:
        with self.left:
            if self.capture is None:
                self.start()
            self.settle()
            self._stop()
            with self.site.open() as store:
                assert places_of(store, self.site.root, SECRET) == []
            for file in self.recordings.iterdir():
                for record in Recording(file).records():
                    assert SECRET.encode() not in record.data

    def _tree(self, name: str) -> list[ModelTable]:
        table = self.tables[name]
        return [table, *(each for each in self.tables.values() if each.root is table)]

    def _alter(self, name: str, *changes: str) -> None:
        execute(self.site.dsn, *(f"ALTER TABLE {name} {change}" for change in changes))


@pytest.mark.slow
def test_no_history_of_ddl_brings_plain_text_into_a_store_or_a_recording(
    databases: Databases, tmp_path: Path, scale: Scale
) -> None:
    """The sequences in test_policies_and_ddl.py stand for it."""
    number = itertools.count(1)
    run_machine(
        lambda: PolicyMachine(databases, tmp_path / str(next(number))),
        examples=scale.pick(smoke=3, full=100),
        steps=scale.pick(smoke=16, full=30),
    )
