"""What holds for a generation in any sink: its names and key, whose it is, where a step begins."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
import pytest

from tailrace.eventstore.errors import Fenced, NotOwner, UsageError
from tailrace.projections.sinks.contract import (
    CannotBuild,
    Target,
    check_step,
    column_problems,
    join_key,
    key_texts,
    keys_for,
    raise_problems,
    require_filled,
    require_same_log,
    rows_for,
)
from tests.projections.sinks.sink_data import SCHEMA, fence, target

OF = target()


def test_a_target_has_buckets_and_says_what_it_is() -> None:
    whole = Target("acme", "log-1", "totals", 7, ("a",), SCHEMA, partitions=3)
    assert (whole.buckets, whole.split, whole.preview, replace(whole, split=4).buckets) == (3, 1, False, 12)
    assert str(whole) == "generation 7 of projection 'totals'"


def test_all_problems_of_columns_are_said_at_once() -> None:
    assert column_problems(OF) == []
    raise_problems(OF, [])
    names = ["id", "total", "_hash", "total", "_deleted", "odd"]
    odd = pa.schema([pa.field(name, pa.list_(pa.null()) if name == "odd" else pa.int64()) for name in names])
    *of_names, of_type = column_problems(target(schema=odd, key=("id", "day", "name")))
    assert of_names == [
        "the key column 'day' is not in the output",
        "the key column 'name' is not in the output",
        "the column name '_hash' is reserved",
        "the column name '_deleted' is reserved",
        "the output has two columns 'total'",
    ]
    assert "odd" in of_type
    assert column_problems(target(key=())) == ["the projection has no key"]
    with pytest.raises(CannotBuild, match="cannot be built:\n  - one\n  - two") as refused:
        raise_problems(OF, ["one", "two"])
    assert refused.value.problems == ("one", "two") and refused.value.hint == "mend these, then build again"


def test_rows_have_the_columns_of_their_target_and_no_null_in_the_key() -> None:
    given = pa.table({"name": ["a", None], "_hash": [1, 2], "total": [None, None], "customer_id": [1, 2]})
    assert rows_for(OF, given).schema == SCHEMA
    assert keys_for(OF, given).to_pydict() == {"customer_id": [1, 2]}
    unkeyed = given.set_column(3, "customer_id", pa.array([None, None], pa.int64()))
    for refused in (rows_for, keys_for):
        with pytest.raises(UsageError, match="2 rows have NULL in key column 'customer_id'"):
            refused(OF, unkeyed)


def test_the_text_of_a_key_is_that_of_no_other() -> None:
    rows = pa.table({"name": ["a", "a:", "a\\", "a\\:"], "customer_id": [1, 1, 1, 1]})
    assert key_texts(target(key=("name",)), rows) == ["a", "a:", "a\\", "a\\:"]
    both = key_texts(target(key=("name", "customer_id")), rows)
    assert both == ["a:1", "a\\::1", "a\\\\:1", "a\\\\\\::1"]
    assert both == [join_key([name, "1"]) for name in rows["name"].to_pylist()]
    assert join_key(["a:"]) == "a:" and join_key(["a", "b", "c"]) == "a:b:c"


def test_a_generation_is_its_log_s_or_nobody_s() -> None:
    require_same_log(OF, None)
    require_same_log(OF, "log-1")
    with pytest.raises(NotOwner, match="generation 1 of projection 'customer_totals' in its sink") as refused:
        require_same_log(OF, "log-2")
    assert "--take-over" in refused.value.hint


def test_a_step_begins_where_the_sink_is_and_ends_in_its_own_generation() -> None:
    check_step(OF, None, None, fence(OF, 10))
    check_step(OF, fence(OF, 10), fence(OF, 10), fence(OF, 20))
    require_filled(OF, fence(OF, 10))
    with pytest.raises(UsageError, match="was never filled"):
        require_filled(OF, None)
    with pytest.raises(Fenced, match="holds nothing, this step starts from epoch 10 of log log-1"):
        check_step(OF, None, fence(OF, 10), fence(OF, 20))
    with pytest.raises(Fenced, match="holds epoch 11 of log log-1, this step starts from nothing"):
        check_step(OF, fence(OF, 11), None, fence(OF, 20))
    for other in (target(2), replace(OF, projection="other")):
        with pytest.raises(UsageError, match="cannot end a step of"):
            check_step(OF, None, None, fence(other, 10))
