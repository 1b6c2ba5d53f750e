"""Random histories of the shop: everything that a source can do to rows, to few keys, so that they meet; and what it
can do to columns."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from decimal import Decimal
from random import Random
from typing import Any

import pyarrow as pa

from tailrace.eventstore.model.schema import Column, TopicSchema
from tests.projections.shoplog import TABLES, Change, Row, ShopLog

_KEYS = {"customers": 6, "products": 4, "orders": 12}
_LONG = {"customers": 2, "products": 3, "orders": 6}
"""The column of each table, by its identity, whose value is stored out of line and not sent when it did not change."""
_VALUES: dict[str, tuple[Any, ...]] = {
    "name": ("Ada", "Bert", "Cleo", None),
    "city": ("Lund", "Brno", "Graz", None),
    "description": ("long", "longer", None),
    "price": (Decimal("1.10"), Decimal("2.00"), None),
    "customer_id": (1, 2, 3, 4, 5, 6, 7, None),
    "product_id": (1, 2, 3, 4, 5, None),
    "quantity": (1, 2, 3),
    "amount": (Decimal("0.50"), Decimal("3.25"), Decimal("7.00"), None),
    "status": ("paid", "sent", "cancelled"),
    "note": ("x", None),
    "memo": ("m", None),
    "weight": (1, 70, None),
    "rank": (1, 2, None),
}
_VALUES |= {"details": _VALUES["description"], "remark": _VALUES["note"], "pieces": _VALUES["quantity"]}


def _with_more(table: str, *more: Column) -> TopicSchema:
    return replace(TABLES[table], columns=(*TABLES[table].columns, *more))


ALTERABLE = {
    "customers": _with_more("customers", Column(4, "memo", 1043, 24, "character varying(20)")),
    "products": _with_more("products", Column(5, "weight", 23, type_name="integer")),
    "orders": TABLES["orders"],
}
"""The shop with columns that no projection reads."""
_BIGINT: dict[str, Any] = {"type_oid": 20, "type_name": "bigint"}
_TEXT: dict[str, Any] = {"type_oid": 25, "typmod": -1, "type_name": "text"}
_WIDER: dict[str, Any] = {"typmod": (14 << 16 | 2) + 4, "type_name": "numeric(14,2)"}


@dataclass(frozen=True)
class Alteration:
    """An ALTER TABLE. ``read_again``: capture reads the table again, as after any that rewrites it."""

    table: str
    change: Callable[[tuple[Column, ...]], tuple[Column, ...]]
    read_again: bool = False

    def of(self, schema: TopicSchema) -> TopicSchema:
        return replace(schema, version=schema.version + 1, columns=self.change(schema.columns))


def _add(table: str, column: Column) -> Alteration:
    return Alteration(table, lambda columns: (*columns, column))


def _drop(table: str, id: int) -> Alteration:
    return Alteration(table, lambda columns: tuple(column for column in columns if column.id != id))


def _alter(table: str, id: int, read_again: bool = False, **to: Any) -> Alteration:
    return Alteration(
        table,
        lambda columns: tuple(replace(column, **to) if column.id == id else column for column in columns),
        read_again,
    )


ALTERATIONS: Mapping[str, Alteration] = {
    "add note": _add("orders", Column(7, "note", 1043, 24, "character varying(20)", fill="none")),
    "rename note": _alter("orders", 7, name="remark"),
    "note to text": _alter("orders", 7, **_TEXT),
    "drop note": _drop("orders", 7),
    "add another note": _add("orders", Column(8, "note", 25, type_name="text", fill="again")),
    "drop memo": _drop("customers", 4),
    "add rank": _add("customers", Column(5, "rank", 23, type_name="integer", fill="7")),
    "rank to bigint": _alter("customers", 5, **_BIGINT),
    "weight to bigint": _alter("products", 5, **_BIGINT),
    "rename description": _alter("products", 3, name="details"),
    "drop description": _drop("products", 3),
    "quantity to bigint, read again": _alter("orders", 4, read_again=True, **_BIGINT),
    "wider amount": _alter("orders", 5, **_WIDER),
    "rename quantity": _alter("orders", 4, name="pieces"),
    "rename quantity back": _alter("orders", 4, name="quantity"),
}
"""Columns that nobody reads, but for the last four: those of ``quantity`` and ``amount`` reach results."""
TRUNCATE = "truncate"


@dataclass
class RandomShop:
    """Writes transactions that ``random`` chooses."""

    shop: ShopLog
    random: Random
    _versions: dict[str, int] = field(default_factory=lambda: defaultdict(int))

    def step(self, changes: int, *alterations: str) -> list[str]:
        """One transaction with about so many changes of all tables, behind these alterations; what it did, for a
        report. A truncate, or a table that is read again, is a step of its own."""
        done: list[str] = list(alterations)
        if alterations == (TRUNCATE,):
            self.shop.truncate("orders")
            return done
        altered = self._altered(alterations)
        again = [ALTERATIONS[name].table for name in alterations if ALTERATIONS[name].read_again]
        if again:
            for table in again:
                self.shop.read_again(table, altered[table])
            return done
        self.shop.schemas |= altered
        written: dict[str, list[Change]] = defaultdict(list)
        tables = {table: dict(rows) for table, rows in self.shop.state.items()}
        for _ in range(changes):
            table = self.random.choice(["customers", "products", "orders", "orders", "orders"])
            done.append(self._change(table, tables.setdefault(table, {}), written[table]))
        events = [self._event() for _ in range(self.random.randrange(3))]
        rows = {table: given for table, given in written.items() if given}
        self.shop.commit(rows, events=events, new_schemas=altered)
        self.shop.state.update(tables)  # with the values that were not sent
        return done

    def _change(self, table: str, rows: dict[int, Row], written: list[Change]) -> str:
        """Change one row of a table, or make one. Appends what capture would write."""
        key = self.random.randint(1, _KEYS[table])
        if key not in rows:
            rows[key] = self._row(table, key)
            written.append(("c", rows[key]))
            return f"+{table}.{key}"
        kind = self.random.choice(["update", "update", "hole", "delete", "delete and insert", "move"])
        if kind in ("delete", "delete and insert"):
            del rows[key]
            written.append(("d", {"id": key}))
            if kind != "delete":
                rows[key] = self._row(table, key)
                written.append(("c", rows[key]))
            return f"{kind} {table}.{key}"
        row = self._row(table, key)
        unsent = self._long(table) if kind != "update" else None
        if unsent:
            row[unsent] = rows[key][unsent]
        marks = {"_unchanged": [_LONG[table]]} if unsent else {}
        free = [other for other in range(1, _KEYS[table] + 1) if other not in rows]
        if kind == "move" and free:
            new = self.random.choice(free)
            del rows[key]
            rows[new] = row | {"id": new}
            written.append(("d", {"id": key}))
            written.append(("c", _without(rows[new], unsent), marks | {"_moved_from": {"id": key}}))
            return f"{table}.{key} -> {new}"
        rows[key] = row
        written.append(("u", _without(row, unsent), marks))
        return f"{kind} {table}.{key}"

    def _long(self, table: str) -> str | None:
        """The present name of its column of long values, None when that was dropped."""
        columns = self.shop.schemas[table].columns
        return next((column.name for column in columns if column.id == _LONG[table]), None)

    def _row(self, table: str, key: int) -> Row:
        """Any values, also NULL and keys that are not there."""
        row: dict[str, Any] = {"id": key}
        for column in self.shop.schemas[table].columns[1:]:
            row[column.name] = self.random.choice(_VALUES[column.name])
        return row

    def _event(self) -> Row:
        stream = str(self.random.randint(1, 4))
        self._versions[stream] += 1
        return {
            "stream": stream,
            "version": self._versions[stream],
            "type": self.random.choice(["placed", "paid"]),
        }

    def _altered(self, alterations: tuple[str, ...]) -> dict[str, TopicSchema]:
        """The next version of each table that is altered; its rows get the columns of it."""
        altered: dict[str, TopicSchema] = {}
        for alteration in map(ALTERATIONS.__getitem__, alterations):
            table = alteration.table
            now = altered.get(table, self.shop.schemas[table])
            altered[table] = replace(alteration.of(now), version=self.shop.schemas[table].version + 1)
        for table, schema in altered.items():
            before = self.shop.schemas[table]
            rows = self.shop.state[table]
            self.shop.state[table] = {key: _reshaped(row, before, schema) for key, row in rows.items()}
        return altered


def _reshaped(row: Row, before: TopicSchema, schema: TopicSchema) -> Row:
    """As the server has a row after an ALTER TABLE."""
    cells = {column.id: row.get(column.name) for column in before.columns}
    return {column.name: cells.get(column.id, _fill(column)) for column in schema.columns}


def _fill(column: Column) -> Any:
    return None if column.fill is None else pa.scalar(column.fill).cast(column.arrow).as_py()


def _without(row: Row, unsent: str | None) -> Row:
    return row if unsent is None else row | {unsent: None}
