"""Redaction against a model: of any history, readers see it with the cells erased, and the state is that history's."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from tailrace.eventstore.errors import UsageError
from tailrace.eventstore.log.sources import register_source, register_topic
from tailrace.eventstore.maintenance.redaction.redact import RedactionRequest, redact
from tailrace.eventstore.maintenance.repartition import repartition
from tailrace.eventstore.model.epoch import EpochBatch, TopicRows
from tailrace.eventstore.model.schema import change_schema
from tailrace.eventstore.model.topic import TopicId
from tailrace.eventstore.settings import UpkeepSettings
from tailrace.eventstore.state.input import plan_state
from tailrace.eventstore.store import Store
from tests.eventstore.bucket_state import compute_state
from tests.eventstore.histories import FIRST, SECOND, History, Row, state_input
from tests.eventstore.state.test_compaction import KEYS, NOWHERE, STEPS
from tests.fixtures.scale import Scale
from tests.fixtures.stores import StoreFactory, one_catalog

COLUMNS = {"body": 2, "extra": 3, "size": 4}
REDACTION = st.tuples(
    st.just("redact"), KEYS, st.none() | st.lists(st.sampled_from(["body", "extra"]), min_size=1, unique=True)
)
PARTITIONS = st.sampled_from([None, None, 1, 3, 6])


@dataclass
class Followed(History):
    """A history that knows of every row whose it is: which insert its cells go back to, whatever its key became."""

    whose: dict[int, int] = field(default_factory=dict)  # by key
    owners: list[int] = field(default_factory=list)  # of all rows
    had: dict[int, set[int]] = field(default_factory=lambda: defaultdict(set))  # keys by owner
    gone: int = 0
    born: itertools.count[int] = field(default_factory=itertools.count)

    def _emit(self, op: str, key: int | None, after: Row | None, **more: Any) -> None:
        super()._emit(op, key, after, **more)
        owner = -1
        if key is None:
            self.whose.clear()
        elif op == "d":
            owner = self.gone = self.whose.pop(key)
        elif op == "c":
            owner = self.whose[key] = self.gone if more.get("_moved_from") else next(self.born)
        else:
            owner = self.whose[key]
        self.owners.append(owner)
        if key is not None:
            self.had[owner].add(key)

    def rows(self) -> list[Row]:
        return [row for _, rows in self.epochs for row in rows]

    def erase(self, key: int, columns: Sequence[str] | None) -> bool:
        """What ``redact`` is to do. False: nobody ever had this key."""
        erased = False
        for row, owner in zip(self.rows(), self.owners, strict=True):
            if owner < 0 or key not in self.had[owner]:
                continue
            erased = True
            if row["after"] is None:
                continue
            marks = dict(row["_raw"] or ())
            for name in columns or [name for name in row["after"] if name != "id"]:
                if COLUMNS[name] not in (row["_unchanged"] or ()):
                    row["after"] = row["after"] | {name: None}
                    marks[COLUMNS[name]] = None
            row["_raw"] = sorted(marks.items()) or None
        return erased


class Logged:
    """The same history in a topic of a store, appended as it grows."""

    def __init__(self, store: Store, number: int) -> None:
        self.store = store
        self.topic = TopicId.table("shop", "public", f"notes{number}")
        register_source(store.catalog, "shop", slot="s", publication="p", system_id="1")
        register_topic(store, self.topic, FIRST)
        self._writer = store.take_over("shop")
        self._appended = 0
        self._begun = False

    def catch_up(self, history: History) -> None:
        history.cut()
        fresh = history.epochs[self._appended :]
        self._appended = len(history.epochs) - 1  # the last one is still empty
        for schema, rows in fresh:
            if not rows:
                continue
            lsn = self._writer.state.commit_lsn + 1
            known = {each.version for each in self.store.schemas(self.topic)}
            self._writer.append(
                EpochBatch(
                    "shop", lsn, lsn + 1, lsn + 1, None, 1,
                    [TopicRows(self.topic, schema.version, pa.Table.from_pylist(rows, change_schema(schema)))],
                    new_schemas=[] if schema.version in known else [(self.topic, SECOND)],
                    completes=[] if self._begun else [self.topic],
                )
            )  # fmt: skip
            self._begun = True


def comparable(rows: Sequence[Row]) -> list[tuple[Any, ...]]:
    """In the order of keys and of each key's rows; a truncate is in every partition."""
    names = ("_op", "_lsn", "_ordinal", "key", "after", "before", "_unchanged", "_moved_from", "_raw")
    found = {tuple(repr(row[name]) for name in names) for row in rows}
    return sorted(found)


@one_catalog
def test_readers_see_the_history_with_the_cells_erased_and_its_state(
    new_store: StoreFactory, scale: Scale
) -> None:
    """Cells that were never sent, keys that move and are used again, truncates, columns that are added; rows in blobs,
    in files, and in state runs beside them; several redactions, and changes after each; more or fewer partitions."""
    store = new_store(upkeep=UpkeepSettings(keep_seconds=0))
    numbers = itertools.count()

    @settings(
        max_examples=scale.pick(smoke=6, full=400),
        phases=(Phase.explicit, Phase.generate),  # an example takes too long for thousands of smaller ones
    )
    @given(st.lists(st.tuples(STEPS, REDACTION, st.booleans(), PARTITIONS), min_size=1, max_size=3), STEPS)
    def check(parts: list[tuple[Any, ...]], last: list[tuple[Any, ...]]) -> None:
        history, logged = Followed(), Logged(store, next(numbers))
        for steps, (_, key, columns), upkeep, partitions in parts:
            if partitions is not None:
                repartition(store, logged.topic, partitions)
            for name, *arguments in steps:
                getattr(history, name)(*arguments)
            logged.catch_up(history)
            if upkeep:
                store.merge()
                store.compact([logged.topic])
            if history.erase(key, columns):
                redact(store, RedactionRequest(logged.topic, [str(key)], columns))
            else:
                with pytest.raises(UsageError, match="no row with key"):
                    redact(store, RedactionRequest(logged.topic, [str(key)], columns))
        for name, *arguments in last:
            getattr(history, name)(*arguments)
        logged.catch_up(history)
        found = [row for batch in store.read(logged.topic) for row in batch.to_pylist()]
        assert comparable(found) == comparable(history.rows())
        if not found:
            return
        wanted = plan_state(store, logged.topic, store.cut())
        expected = state_input(history.epochs, wanted.partitions)
        for bucket in range(expected.buckets):
            theirs, ours = (
                compute_state(NOWHERE, expected, bucket).drop_columns(["_epoch", "_lsn", "_offset"]),
                compute_state(store.storage, wanted, bucket).drop_columns(["_epoch", "_lsn", "_offset"]),
            )
            assert ours.to_pylist() == theirs.to_pylist()

    check()
    assert store.verify().findings == ()
