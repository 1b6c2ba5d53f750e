"""A shop whose changes are written to the log by hand, and what its projections must then be, computed in Python."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa

from tailrace.eventstore.log.sources import register_source, register_topic
from tailrace.eventstore.log.writer import SourceWriter
from tailrace.eventstore.model.epoch import EpochBatch, TopicRows
from tailrace.eventstore.model.keys import hash_texts
from tailrace.eventstore.model.schema import EVENT_SCHEMA, Column, TopicSchema, change_schema
from tailrace.eventstore.model.topic import TopicId
from tailrace.eventstore.settings import Settings, SinkSettings, StoreSettings
from tailrace.eventstore.store import Store
from tests.fixtures.spark import SPARK

Row = dict[str, Any]
Change = tuple[str, Row] | tuple[str, Row, Row]
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
TABLES = {
    "customers": TopicSchema(
        1,
        (
            Column(1, "id", 20, type_name="bigint", key=True),
            Column(2, "name", 25, type_name="text"),
            Column(3, "city", 25, type_name="text"),
        ),
    ),
    "products": TopicSchema(
        1,
        (
            Column(1, "id", 20, type_name="bigint", key=True),
            Column(2, "name", 25, type_name="text"),
            Column(3, "description", 25, type_name="text"),
            Column(4, "price", 1700, (10 << 16 | 2) + 4, "numeric(10,2)"),
        ),
    ),
    "orders": TopicSchema(
        1,
        (
            Column(1, "id", 20, type_name="bigint", key=True),
            Column(2, "customer_id", 20, type_name="bigint"),
            Column(3, "product_id", 20, type_name="bigint"),
            Column(4, "quantity", 23, type_name="integer"),
            Column(5, "amount", 1700, (12 << 16 | 2) + 4, "numeric(12,2)"),
            Column(6, "status", 25, type_name="text"),
        ),
    ),
}
EVENTS = TopicId.events("shop", "order")


def topic(table: str) -> TopicId:
    return TopicId.table("shop", "public", table)


def standing_still() -> float:
    """A clock by which no step takes long, so that how busy the machine is never decides what is followed."""
    return 0.0


def settings_in(folder: Path, *, dsn: str, redis_url: str, name: str = "acme") -> Settings:
    """A store in ``folder``; the sinks cache, lake, mart and search."""
    return Settings(
        store=StoreSettings(
            name=name, catalog=f"sqlite:///{folder}/catalog.db", segments=folder / "segments", partitions=2
        ),
        sinks={
            "mart": SinkSettings.model_validate({"kind": "postgres", "dsn": dsn}),
            "cache": SinkSettings.model_validate({"kind": "redis", "url": redis_url}),
            "search": SinkSettings(kind="search", path=folder / "search"),
            "lake": SinkSettings(kind="parquet", path=folder / "lake"),
        },
        spark=SPARK,
    )


@dataclass
class ShopLog:
    """``commit`` appends one transaction as one epoch and keeps ``state`` as the tables would be."""

    store: Store
    writer: SourceWriter
    state: dict[str, dict[int, Row]] = field(default_factory=lambda: defaultdict(dict))
    lsn: int = 1000
    schemas: dict[str, TopicSchema] = field(default_factory=lambda: dict(TABLES))

    @classmethod
    def start(cls, store: Store, tables: Mapping[str, TopicSchema] = TABLES) -> ShopLog:
        """A loaded, empty shop."""
        register_source(store.catalog, "shop", slot="shop_slot", publication="shop_pub", system_id="7001")
        for table, schema in tables.items():
            register_topic(store, topic(table), schema)
        register_topic(store, EVENTS, EVENT_SCHEMA, reason="")
        shop = cls(store, store.take_over("shop"), schemas=dict(tables))
        shop.commit({"customers": [("c", {"id": 1, "name": "Ada", "city": "Turku"})]}, complete=True)
        return shop

    def commit(
        self,
        changes: Mapping[str, Sequence[Change]],
        *,
        events: list[Row] | None = None,
        complete: bool = False,
        raw: Mapping[int, str] | None = None,
        new_schemas: Mapping[str, TopicSchema] | None = None,
    ) -> int:
        """One transaction: per table (operation, row), or (operation, row, columns of the envelope beside them).
        ``raw`` are source texts by column id of cells that do not fit, given to every row; ``new_schemas`` the versions
        that start with it. The epoch's number."""
        self.lsn += 10
        started = dict(new_schemas or {})
        self.schemas |= started
        rows = [
            TopicRows(topic(table), self.schemas[table].version, self._rows(self.schemas[table], given, raw))
            for table, given in changes.items()
        ]
        if events:
            rows.append(TopicRows(EVENTS, 1, self._event_rows(events)))
        for table, given in changes.items():
            for op, row, *_ in given:
                if op == "d":
                    self.state[table].pop(row["id"])
                else:
                    self.state[table][row["id"]] = row
        moment = NOON + timedelta(seconds=self.lsn)
        completes = [topic(table) for table in self.schemas] if complete else []
        batch = EpochBatch(
            "shop", self.lsn, self.lsn + 1, self.lsn + 1, moment, 1, rows,
            new_schemas=[(topic(table), schema) for table, schema in started.items()],
            completes=completes,
        )  # fmt: skip
        epoch = self.writer.append(batch)
        assert epoch is not None
        return epoch.epoch

    def commit_together(self, *transactions: Mapping[str, Sequence[Change]]) -> int:
        """Several transactions as one epoch, of rows that stay."""
        written: dict[str, list[pa.Table]] = defaultdict(list)
        for changes in transactions:
            self.lsn += 10
            for table, given in changes.items():
                written[table].append(self._rows(self.schemas[table], given, None))
                self.state[table] |= {row["id"]: row for _, row, *_ in given}
        rows = [
            TopicRows(topic(table), self.schemas[table].version, pa.concat_tables(pieces))
            for table, pieces in written.items()
        ]
        moment = NOON + timedelta(seconds=self.lsn)
        batch = EpochBatch("shop", self.lsn, self.lsn + 1, self.lsn + 1, moment, len(transactions), rows)
        epoch = self.writer.append(batch)
        assert epoch is not None
        return epoch.epoch

    def truncate(self, table: str) -> int:
        """TRUNCATE of one table."""
        self.lsn += 10
        self.state[table].clear()
        changes = [TopicRows(topic(table), self.schemas[table].version, self._truncated(table))]
        return self._append(rows=changes)

    def read_again(self, table: str, schema: TopicSchema) -> int:
        """What capture does when a type changed: the topic is incomplete from there on, until all rows of the table as
        it is now are in the log behind a truncate."""
        self.lsn += 10
        self.schemas[table] = schema
        self._append(new_schemas=[(topic(table), schema)], suspends=[(topic(table), "a type changed")])
        self.lsn += 10
        read: list[Change] = [("r", row) for row in self.state[table].values()]
        rows = pa.concat_tables([self._truncated(table), self._rows(schema, read, None)])
        return self._append(rows=[TopicRows(topic(table), schema.version, rows)], completes=[topic(table)])

    def _append(self, **more: Any) -> int:
        moment = NOON + timedelta(seconds=self.lsn)
        epoch = self.writer.append(
            EpochBatch("shop", self.lsn, self.lsn + 1, self.lsn + 1, moment, 1, **more)
        )
        assert epoch is not None
        return epoch.epoch

    def _truncated(self, table: str) -> pa.Table:
        schema = change_schema(self.schemas[table])
        row = dict.fromkeys(schema.names) | self._envelope("t", "", 0) | {"_hash": 0}
        return pa.Table.from_pylist([row], schema=schema)

    def _rows(self, schema: TopicSchema, given: Sequence[Change], raw: Mapping[int, str] | None) -> pa.Table:
        cells = [(column, text.encode()) for column, text in (raw or {}).items()]
        return pa.Table.from_pylist(
            [
                self._envelope(op, str(row["id"]), ordinal)
                | {
                    "key": {"id": row["id"]},
                    "after": None if op == "d" else row,
                    "_raw": cells or None,
                }
                | (more[0] if more else {})
                for ordinal, (op, row, *more) in enumerate(given)
            ],
            schema=change_schema(schema),
        )

    def _event_rows(self, events: list[Row]) -> pa.Table:
        return pa.Table.from_pylist(
            [
                self._envelope("c", event["stream"], ordinal)
                | {"key": {"stream": event["stream"]}, "after": event}
                for ordinal, event in enumerate(events)
            ],
            schema=change_schema(EVENT_SCHEMA),
        )

    def _envelope(self, op: str, key: str, ordinal: int) -> Row:
        return {
            "_hash": hash_texts([key]),
            "_op": op,
            "_lsn": self.lsn,
            "_txn": self.lsn,
            "_ordinal": ordinal,
            "_commit_ts": NOON + timedelta(seconds=self.lsn),
            "_before": "none",
        }

    def fill(self, customers: int = 12, products: int = 6, orders: int = 40) -> int:
        """Several transactions with rows of every table."""
        self.commit({
            "customers": [
                ("c", {"id": n, "name": f"Customer {n}", "city": ("Lund", "Brno")[n % 2]})
                for n in range(2, customers + 2)
            ],
            "products": [
                ("c", {"id": n, "name": f"Oak chair {n}", "description": "folds away", "price": Decimal(n)})
                for n in range(1, products + 1)
            ],
        })  # fmt: skip
        return self.commit(
            {"orders": [("c", self.order(n, customers, products)) for n in range(1, orders + 1)]}
        )

    def order(self, n: int, customers: int = 12, products: int = 6, **more: Any) -> Row:
        row = {
            "id": n,
            "customer_id": 1 + n % customers,
            "product_id": 1 + n % products,
            "quantity": 1 + n % 3,
            "amount": Decimal(n) / 4,
            "status": "paid",
        }
        return row | more

    def work(self) -> int:
        """Some of everything: an insert, updates that change each result, deletes that empty a group."""
        order, customer = self.state["orders"], self.state["customers"]
        newest = max(order)
        self.commit({
            "orders": [
                ("c", self.order(newest + 1)),
                ("u", order[newest] | {"status": "cancelled"}),
                ("d", {"id": min(order)}),
            ],
            "customers": [("u", customer[1] | {"name": "Ada L."})],
        })  # fmt: skip
        victim = max(customer)
        theirs = [("d", {"id": n}) for n, row in order.items() if row["customer_id"] == victim]
        product = self.state["products"][1]
        return self.commit({
            "orders": [*theirs, ("c", self.order(newest + 2))],
            "customers": [("d", {"id": victim})],
            "products": [("u", product | {"description": "does not fold any more"})],
        })  # fmt: skip

    def expected(self, projection: str) -> list[Row]:
        """The rows of a projection of ``projections_of_the_shop`` over the present state, sorted by key."""
        return {"customer_totals": self._totals, "order_cache": self._cache, "product_search": self._search}[
            projection
        ]()

    def _totals(self) -> list[Row]:
        totals = []
        for customer in self.state["customers"].values():
            orders = [
                order
                for order in self.state["orders"].values()
                if order["customer_id"] == customer["id"] and order["status"] != "cancelled"
            ]
            total = sum((order["amount"] for order in orders), Decimal(0))
            totals.append({"customer_id": customer["id"], "name": customer["name"], "city": customer["city"],
                           "orders": len(orders), "total": total.quantize(Decimal("0.01"))})  # fmt: skip
        return sorted(totals, key=lambda row: int(row["customer_id"]))

    def _cache(self) -> list[Row]:
        customers, products = self.state["customers"], self.state["products"]
        rows = [
            {
                "order_id": order["id"],
                "status": order["status"],
                "quantity": order["quantity"],
                "amount": order["amount"],
                "customer": customers[order["customer_id"]]["name"],
                "product": products[order["product_id"]]["name"],
            }
            for order in self.state["orders"].values()
            if order["customer_id"] in customers
        ]
        return sorted(rows, key=lambda row: int(row["order_id"]))

    def _search(self) -> list[Row]:
        rows = [
            {"product_id": row["id"], **{name: row[name] for name in ("name", "description", "price")}}
            for row in self.state["products"].values()
        ]
        return sorted(rows, key=lambda row: int(row["product_id"]))
