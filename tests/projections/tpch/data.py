"""The tables of TPC-H as the standard declares them, and rows for them: drawn from the standard's words, those that its
queries ask for more often, so that a few rows are enough for every query to have an answer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from decimal import Decimal
from random import Random

import psycopg
from psycopg import sql

Row = tuple[object, ...]
TABLES = {
    "region": "r_regionkey int PRIMARY KEY, r_name char(25), r_comment varchar(152)",
    "nation": "n_nationkey int PRIMARY KEY, n_name char(25), n_regionkey int, n_comment varchar(152)",
    "part": (
        "p_partkey int PRIMARY KEY, p_name varchar(55), p_mfgr char(25), p_brand char(10), p_type varchar(25),"
        " p_size int, p_container char(10), p_retailprice numeric(15,2), p_comment varchar(23)"
    ),
    "supplier": (
        "s_suppkey int PRIMARY KEY, s_name char(25), s_address varchar(40), s_nationkey int, s_phone char(15),"
        " s_acctbal numeric(15,2), s_comment varchar(101)"
    ),
    "partsupp": (
        "ps_partkey int, ps_suppkey int, ps_availqty int, ps_supplycost numeric(15,2), ps_comment varchar(199),"
        " PRIMARY KEY (ps_partkey, ps_suppkey)"
    ),
    "customer": (
        "c_custkey int PRIMARY KEY, c_name varchar(25), c_address varchar(40), c_nationkey int, c_phone char(15),"
        " c_acctbal numeric(15,2), c_mktsegment char(10), c_comment varchar(117)"
    ),
    "orders": (
        "o_orderkey int PRIMARY KEY, o_custkey int, o_orderstatus char(1), o_totalprice numeric(15,2),"
        " o_orderdate date, o_orderpriority char(15), o_clerk char(15), o_shippriority int, o_comment varchar(79)"
    ),
    "lineitem": (
        "l_orderkey int, l_partkey int, l_suppkey int, l_linenumber int, l_quantity numeric(15,2),"
        " l_extendedprice numeric(15,2), l_discount numeric(15,2), l_tax numeric(15,2), l_returnflag char(1),"
        " l_linestatus char(1), l_shipdate date, l_commitdate date, l_receiptdate date, l_shipinstruct char(25),"
        " l_shipmode char(10), l_comment varchar(44), PRIMARY KEY (l_orderkey, l_linenumber)"
    ),
}
REGIONS = ("AFRICA", "AMERICA", "ASIA", "EUROPE", "MIDDLE EAST")
NATIONS = (
    ("ALGERIA", 0), ("ARGENTINA", 1), ("BRAZIL", 1), ("CANADA", 1), ("EGYPT", 4), ("ETHIOPIA", 0), ("FRANCE", 3),
    ("GERMANY", 3), ("INDIA", 2), ("INDONESIA", 2), ("IRAN", 4), ("IRAQ", 4), ("JAPAN", 2), ("JORDAN", 4),
    ("KENYA", 0), ("MOROCCO", 0), ("MOZAMBIQUE", 0), ("PERU", 1), ("CHINA", 2), ("ROMANIA", 3),
    ("SAUDI ARABIA", 4), ("VIETNAM", 2), ("RUSSIA", 3), ("UNITED KINGDOM", 3), ("UNITED STATES", 1),
)  # fmt: skip
_ASKED_NATIONS = (2, 3, 6, 7, 8, 20)
_COLORS = ("almond", "azure", "forest", "green", "khaki", "linen", "plum", "rose")
_TYPES = (
    "ECONOMY ANODIZED STEEL", "MEDIUM POLISHED TIN", "PROMO BURNISHED COPPER", "SMALL PLATED BRASS",
    "STANDARD BRUSHED BRASS", "LARGE ANODIZED NICKEL", "PROMO PLATED STEEL",
)  # fmt: skip
_BRANDS = ("Brand#12", "Brand#23", "Brand#34", "Brand#45", "Brand#51")
_CONTAINERS = ("SM CASE", "SM BOX", "MED BOX", "MED BAG", "LG CASE", "LG PKG", "JUMBO JAR", "WRAP CAN")
_SIZES = (3, 5, 9, 14, 15, 15, 19, 23, 36, 45, 49)
_SEGMENTS = ("AUTOMOBILE", "BUILDING", "FURNITURE", "HOUSEHOLD", "MACHINERY")
_PRIORITIES = ("1-URGENT", "2-HIGH", "3-MEDIUM", "4-NOT SPECIFIED", "5-LOW")
_MODES = ("AIR", "AIR REG", "FOB", "MAIL", "RAIL", "SHIP", "TRUCK")
_INSTRUCTIONS = ("COLLECT COD", "DELIVER IN PERSON", "NONE", "TAKE BACK RETURN")
_WORDS = ("carefully", "special", "packages", "requests", "sleep", "furiously", "even", "deposits")
_FIRST_DAY, _DAYS = date(1992, 1, 1), 2405
_TODAY = date(1995, 6, 17)


@dataclass(frozen=True, slots=True)
class Size:
    """How many rows of the tables that grow. Scale factor 1 of the standard is 10,000 suppliers, 200,000 parts, 150,000
    customers and 1,500,000 orders."""

    suppliers: int
    parts: int
    customers: int
    orders: int

    @classmethod
    def of_factor(cls, factor: float) -> Size:
        return cls(*(max(1, int(each * factor)) for each in (10_000, 200_000, 150_000, 1_500_000)))


@dataclass(slots=True)
class Generator:
    """Rows that ``random`` chooses."""

    size: Size
    random: Random

    def tables(self) -> Iterator[tuple[str, list[Row]]]:
        """All rows of each table."""
        yield "region", [(at, name, self._words(4)) for at, name in enumerate(REGIONS)]
        yield "nation", [(at, name, region, self._words(4)) for at, (name, region) in enumerate(NATIONS)]
        yield "part", [self.part(key) for key in range(1, self.size.parts + 1)]
        yield "supplier", [self.supplier(key) for key in range(1, self.size.suppliers + 1)]
        yield (
            "partsupp",
            [
                (part, supplier, self.random.randint(1, 9999), self._money(1, 1000), self._words(9))
                for part in range(1, self.size.parts + 1)
                for supplier in self.suppliers_of(part)
            ],
        )
        yield "customer", [self.customer(key) for key in range(1, self.size.customers + 1)]
        orders, lines = [], []
        for key in range(1, self.size.orders + 1):
            order, its_lines = self.order(key)
            orders.append(order)
            lines += its_lines
        yield "orders", orders
        yield "lineitem", lines

    def suppliers_of(self, part: int) -> list[int]:
        """The four suppliers that have a part."""
        count = self.size.suppliers
        return sorted({(part + at * (count // 4 + (part - 1) // count)) % count + 1 for at in range(4)})

    def part(self, key: int) -> Row:
        brand = self.random.choice(_BRANDS)
        name = " ".join(self.random.sample(_COLORS, 4))
        return (
            key, name, f"Manufacturer#{brand[6]}", brand, self.random.choice(_TYPES), self.random.choice(_SIZES),
            self.random.choice(_CONTAINERS), self._money(900, 2000), self._words(2),
        )  # fmt: skip

    def supplier(self, key: int) -> Row:
        nation = self._nation()
        comment = "Customer slow Complaints" if key % 10 == 0 else self._words(7)
        return (
            key, f"Supplier#{key:09}", self._words(3), nation, self._phone(nation), self._money(-999, 9999), comment,
        )  # fmt: skip

    def customer(self, key: int) -> Row:
        nation = self._nation()
        return (
            key, f"Customer#{key:09}", self._words(3), nation, self._phone(nation), self._money(-999, 9999),
            self.random.choice(_SEGMENTS), self._words(8),
        )  # fmt: skip

    def order(self, key: int) -> tuple[Row, list[Row]]:
        """An order with its lines. A third of the customers has none; every 40th order is large."""
        customer = self.random.randrange(1, self.size.customers + 1)
        customer -= customer % 3 == 0
        day = _FIRST_DAY + timedelta(self.random.randrange(_DAYS))
        large = key % 40 == 0
        count = 7 if large else self.random.randint(1, 7)
        lines = [self._line(key, number, day, large) for number in range(1, count + 1)]
        states = {str(line[9]) for line in lines}
        total = sum((Decimal(str(line[5])) for line in lines), Decimal(0))
        state = states.pop() if len(states) == 1 else "P"
        clerk, comment = f"Clerk#{self.random.randint(1, 1000):09}", self._words(6)
        priority = self.random.choice(_PRIORITIES)
        return (key, max(customer, 1), state, total, day, priority, clerk, 0, comment), lines

    def _line(self, order: int, number: int, day: date, large: bool) -> Row:
        part = self.random.randint(1, self.size.parts)
        quantity = Decimal(
            self.random.randint(44, 50) if large else self.random.choice((1, 2, 3, 12, 22, 30, 50))
        )
        shipped = day + timedelta(self.random.randint(1, 121))
        promised = day + timedelta(self.random.randint(30, 90))
        received = shipped + timedelta(self.random.randint(1, 30))
        flag = self.random.choice("RA") if received <= _TODAY else "N"
        return (
            order, part, self.random.choice(self.suppliers_of(part)), number, quantity,
            quantity * self._money(900, 2000), Decimal(self.random.randint(0, 10)) / 100,
            Decimal(self.random.randint(0, 8)) / 100, flag, "F" if shipped <= _TODAY else "O", shipped, promised,
            received, self.random.choice(_INSTRUCTIONS), self.random.choice(_MODES), self._words(3),
        )  # fmt: skip

    def _nation(self) -> int:
        return self.random.choice(_ASKED_NATIONS) if self.random.random() < 0.7 else self.random.randrange(25)

    def _phone(self, nation: int) -> str:
        parts = (
            self.random.randint(100, 999),
            self.random.randint(100, 999),
            self.random.randint(1000, 9999),
        )
        return "-".join(map(str, (nation + 10, *parts)))

    def _money(self, low: int, high: int) -> Decimal:
        return Decimal(self.random.randint(low * 100, high * 100)) / 100

    def _words(self, count: int) -> str:
        return " ".join(self.random.choices(_WORDS, k=count))[: count * 5].rstrip()


def load(dsn: str, generator: Generator) -> None:
    """Create the tables and fill them."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        for table, rows in generator.tables():
            connection.execute(
                sql.SQL("CREATE TABLE {} ({})").format(sql.Identifier(table), sql.SQL(TABLES[table]))
            )
            _insert(connection, table, rows)


def _insert(connection: psycopg.Connection, table: str, rows: Sequence[Row]) -> None:
    with connection.cursor().copy(sql.SQL("COPY {} FROM STDIN").format(sql.Identifier(table))) as copy:
        for row in rows:
            copy.write_row(row)


def change(dsn: str, generator: Generator) -> None:
    """One round: orders come and go, lines are returned and get another quantity, and each other table changes."""
    random, size = generator.random, generator.size
    few = max(2, size.orders // 50)
    gone = tuple(random.sample(range(1, size.orders + 1), few))
    with psycopg.connect(dsn) as connection:
        connection.execute("DELETE FROM lineitem WHERE l_orderkey = ANY(%s)", (list(gone),))
        connection.execute("DELETE FROM orders WHERE o_orderkey = ANY(%s)", (list(gone),))
        made = [generator.order(key) for key in gone[: few // 2]]
        _insert(connection, "orders", [order for order, _ in made])
        _insert(connection, "lineitem", [line for _, lines in made for line in lines])
        changed = random.sample(range(1, size.orders + 1), few)
        connection.execute(
            "UPDATE lineitem SET l_quantity = 51 - l_quantity, l_discount = 0.06, l_returnflag = 'R',"
            " l_receiptdate = l_receiptdate + 20 WHERE l_orderkey = ANY(%s)",
            (changed,),
        )
        connection.execute(
            "UPDATE orders SET o_orderpriority = '1-URGENT' WHERE o_orderkey = ANY(%s)", (changed,)
        )
        for statement, most in (
            ("UPDATE customer SET c_mktsegment = 'BUILDING', c_acctbal = c_acctbal + 500 WHERE c_custkey = %s",
             size.customers),
            ("UPDATE supplier SET s_nationkey = 20, s_comment = 'Customer Complaints' WHERE s_suppkey = %s",
             size.suppliers),
            ("UPDATE part SET p_size = 15, p_container = 'MED BOX', p_brand = 'Brand#23' WHERE p_partkey = %s",
             size.parts),
            ("UPDATE partsupp SET ps_supplycost = ps_supplycost / 2, ps_availqty = 9999 WHERE ps_partkey = %s",
             size.parts),
            ("DELETE FROM customer WHERE c_custkey = %s", size.customers),
        ):  # fmt: skip
            connection.execute(statement.encode(), (random.randint(1, most),))
