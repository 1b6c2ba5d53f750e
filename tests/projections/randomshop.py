"""Random histories of the shop: everything that a source can do to rows, to few keys, so that they meet."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from decimal import Decimal
from random import Random
from typing import Any

from eventstore.schema import Column, TopicSchema
from tests.projections.shoplog import Change, Row, ShopLog

_KEYS = {"customers": 6, "products": 4, "orders": 12}
_LONG = {"customers": "name", "products": "description", "orders": "status"}
"""The column of each table whose value is stored out of line and not sent when it did not change."""


@dataclass
class RandomShop:
    """Writes transactions that ``random`` chooses."""

    shop: ShopLog
    random: Random
    _versions: dict[str, int] = field(default_factory=lambda: defaultdict(int))

    def step(self, changes: int) -> list[str]:
        """One transaction with about so many changes of all tables; what it did, for a report."""
        done: list[str] = []
        written: dict[str, list[Change]] = defaultdict(list)
        tables = {table: dict(rows) for table, rows in self.shop.state.items()}
        for _ in range(changes):
            table = self.random.choice(["customers", "products", "orders", "orders", "orders"])
            rows = tables.setdefault(table, {})
            done.append(self._change(table, rows, written[table]))
        events = [self._event() for _ in range(self.random.randrange(3))]
        self.shop.commit({table: given for table, given in written.items() if given}, events=events)
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
        unsent = _LONG[table] if kind != "update" else None
        if unsent:
            row[unsent] = rows[key][unsent]
        marks = {"_unchanged": [self._id(table, unsent)]} if unsent else {}
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

    def _id(self, table: str, column: str) -> int:
        found = self.shop.schemas[table].column(column)
        assert found is not None
        return found.id

    def _row(self, table: str, key: int) -> Row:
        """Any values, also NULL and keys that are not there."""
        pick = self.random.choice
        row: dict[str, Any] = {"id": key}
        for column in self.shop.schemas[table].columns[1:]:
            row[column.name] = {
                "name": pick(["Ada", "Bert", "Cleo", None]),
                "city": pick(["Lund", "Brno", "Graz", None]),
                "description": pick(["long", "longer", None]),
                "price": pick([Decimal("1.10"), Decimal("2.00"), None]),
                "customer_id": pick([1, 2, 3, 4, 5, 6, 7, None]),
                "product_id": pick([1, 2, 3, 4, 5, None]),
                "quantity": pick([1, 2, 3]),
                "amount": pick([Decimal("0.50"), Decimal("3.25"), Decimal("7.00"), None]),
                "status": pick(["paid", "sent", "cancelled"]),
                "note": pick(["x", None]),
            }[column.name]
        return row

    def _event(self) -> Row:
        stream = str(self.random.randint(1, 4))
        self._versions[stream] += 1
        return {
            "stream": stream,
            "version": self._versions[stream],
            "type": self.random.choice(["placed", "paid"]),
        }

    def add_column(self) -> None:
        """ALTER TABLE orders ADD COLUMN note text DEFAULT 'none', and a row that has one."""
        orders = self.shop.schemas["orders"]
        wider = TopicSchema(2, (*orders.columns, Column(7, "note", 25, type_name="text", fill="none")))
        for row in self.shop.state["orders"].values():
            row["note"] = "none"
        self.shop.commit(
            {"orders": [("c", self.shop.order(99) | {"note": "new"})]}, new_schemas={"orders": wider}
        )

    def truncate(self) -> None:
        self.shop.truncate("orders")


def _without(row: Row, unsent: str | None) -> Row:
    return row if unsent is None else row | {unsent: None}
