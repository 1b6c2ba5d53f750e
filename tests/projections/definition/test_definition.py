"""Definitions: what is wrong with one is said with file and line; the fingerprint follows the code and nothing else."""

from __future__ import annotations

import re
import sys
import textwrap
from pathlib import Path

import pytest

from tailrace.eventstore.errors import UsageError
from tailrace.projections import PostgresTable, State, load_projections, projection
from tailrace.projections.definition.fingerprint import fingerprint
from tailrace.projections.definition.load import gather_mistakes
from tests.support import REPOSITORY, forking

HEAD = """
from tailrace.projections import PostgresTable, State, projection
import pricing
from pricing import rounded as rounded_price

RATE = 7
UNUSED = 1

def helper(x):
    return x * RATE
"""
BODY = '''
@projection(key="id", sink=PostgresTable("mart", "t"), orders=State("shop.public.orders"))
def totals(orders):
    """What it is."""
    return orders.select(helper("id"), rounded_price("amount"))
'''
PRICING = """
from tables import DIGITS

def rounded(x):
    return round(x, DIGITS)

def other(x):
    return x
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project of three modules."""
    (tmp_path / "mine.py").write_text(HEAD + BODY)
    (tmp_path / "pricing.py").write_text(PRICING)
    (tmp_path / "tables.py").write_text("DIGITS = 2\n")
    return tmp_path


def load(folder: Path, module: str = "mine") -> str:
    """The fingerprint of ``totals``, in a process of its own as each deploy has."""
    code = textwrap.dedent(f"""
        from pathlib import Path
        from tailrace.projections import load_projections
        from tailrace.projections.definition.fingerprint import fingerprint
        print(fingerprint(load_projections(["{module}"], root=Path({str(folder)!r}))["totals"]))
    """)
    done = forking.run([sys.executable, "-c", code], cwd=REPOSITORY, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


SAME = {
    "a comment": ("mine", "RATE = 7", "RATE = 7  # per cent"),
    "a docstring": ("mine", '"""What it is."""', '"""Other words."""'),
    "layout": ("mine", "x * RATE", "(x\n        * RATE)"),
    "another projection of the module": ("mine", "UNUSED = 1", BODY.replace("totals", "others")),
    "code it does not reach": ("mine", "UNUSED = 1", "UNUSED = 2"),
    "a function of another module it does not use": ("pricing", "return x\n", "return -x\n"),
}
DIFFERENT = {
    "its own body": ("mine", '"amount")', '"price")'),
    "a function it calls": ("mine", "x * RATE", "x + RATE"),
    "a constant behind that function": ("mine", "RATE = 7", "RATE = 8"),
    "a function of another module": ("pricing", "round(x, DIGITS)", "round(x, DIGITS + 1)"),
    "a constant of a third module": ("tables", "2", "3"),
    "its key": ("mine", 'key="id"', 'key="order_id"'),
    "its sink": ("mine", '"mart", "t"', '"mart", "u"'),
    "its input": ("mine", "shop.public.orders", "shop.public.sales"),
    "its version": ("mine", "orders=State", "version=2, orders=State"),
}


def test_the_fingerprint_changes_with_what_the_function_reaches_and_with_nothing_else(project: Path) -> None:
    before = load(project)
    assert load(project) == before
    for changes, same in ((SAME, True), (DIFFERENT, False)):
        for what, (module, old, new) in changes.items():
            path = project / f"{module}.py"
            text = path.read_text()
            assert old in text
            path.write_text(text.replace(old, new, 1))
            assert (load(project) == before) is same, what
            path.write_text(text)


def test_a_projection_can_be_called_and_has_a_fingerprint_without_a_file() -> None:
    namespace: dict[str, object] = {"__name__": "interactive", "projection": projection, "State": State}
    source = "def double(orders):\n    return orders * {}\n"

    def made(factor: int) -> object:
        exec(source.format(factor), namespace)
        define = projection(key="id", sink=PostgresTable("m", "t"), orders=State("shop.public.orders"))
        return define(namespace["double"])  # type: ignore[arg-type]

    two, three = made(2), made(3)
    assert two(21) == 42  # type: ignore[operator]
    assert fingerprint(two) != fingerprint(three)  # type: ignore[arg-type]
    assert fingerprint(made(2)) == fingerprint(two)  # type: ignore[arg-type]


def wrong(folder: Path, name: str, text: str) -> UsageError:
    (folder / f"{name}.py").write_text(textwrap.dedent(text))
    with pytest.raises(UsageError) as raised:
        load_projections([name], root=folder)
    assert raised.value.hint
    return raised.value


DEFINITIONS = {
    "parameters": (
        "orders=State('s.p.t')",
        "def wrong(order)",
        r"its parameters \(order\) are not its inputs",
    ),
    "no_inputs": ("", "def wrong()", "it reads nothing"),
    "no_topic": ("orders=State('orders')", "def wrong(orders)", "input 'orders': .* does not name a topic"),
    "no_input": ("orders='s.p.t'", "def wrong(orders)", "is no input"),
    "affects": ("orders=State('s.p.t', affects={'x': 'y'})", "def wrong(orders)", "does not give the key"),
    "name": ("orders=State('s.p.t')", "def Wrong(orders)", "its name becomes part of table"),
    "through_nothing": (
        "a=State('s.p.t', affects=Through('orders', {'x': 'y'}))",
        "def wrong(a)",
        "input 'a' goes through 'orders', which is no input",
    ),
    "through_no_columns": (
        "a=State('s.p.t', affects='id'), b=State('s.p.u', affects=Through('a', {}))",
        "def wrong(a, b)",
        "does not say which columns belong together",
    ),
    "through_unknown": (
        "a=State('s.p.t'), b=State('s.p.u', affects=Through('a', {'x': 'y'}))",
        "def wrong(a, b)",
        "input 'b' goes through 'a', which does not say what it affects",
    ),
    "in_a_circle": (
        "a=State('s.p.t', affects=Through('b', {'x': 'y'})), b=State('s.p.u', affects=Through('a', {'x': 'y'}))",
        "def wrong(a, b)",
        "in a circle: a -> b -> a",
    ),
}


@pytest.mark.parametrize("case", DEFINITIONS)
def test_a_definition_that_does_not_fit_together_names_file_and_line(tmp_path: Path, case: str) -> None:
    inputs, signature, words = DEFINITIONS[case]

    error = wrong(
        tmp_path,
        f"definition_{case}",
        f"""
        from tailrace.projections import PostgresTable, State, Through, projection

        @projection(key="id", sink=PostgresTable("mart", "t"), {inputs})
        {signature}:
            return None
        """,
    )

    assert re.search(words, error.message), error.message
    assert f"definition_{case}.py:4" in error.message


VALUES = {
    "ttl": (
        'key="id", sink=RedisCache("cache", ttl_seconds="60")',
        "ttl_seconds of RedisCache is '60' (str)", "number",
    ),
    "format": (
        'key="id", sink=RedisCache("cache", format="pickle")',
        "format of RedisCache is 'pickle' (str)", "hash",
    ),
    "fields": ('key="id", sink=SearchIndex("s", ["note"])', "fields of SearchIndex is ['note'] (list)", "mapping"),
    "folders": (
        'key="id", sink=ParquetFolder("s", "status")',
        "partition_by of ParquetFolder is 'status' (str)", "tuple",
    ),
    "kept": (
        'key="id", sink=ParquetFolder("s", keep_seconds=-1)',
        "keep_seconds of ParquetFolder is -1 (int)", "0 or",
    ),
    "indexes": (
        'key="id", sink=PostgresTable("s", "t", indexes=("a",))',
        "indexes of PostgresTable is ('a',)", "tuples",
    ),
    "class": ('key="id", sink=RedisCache', "its sink is not one", "PostgresTable"),
    "no key": ('key=None, sink=LAKE', "it has no key", "name the columns"),
    "number as key": ('key=5, sink=LAKE', "its key names 5 (int)", "column"),
    "tolerance": ('key="id", sink=LAKE, tolerance=0.01', "its tolerance is 0.01 (float)", "for each column"),
    "trust": ('key="id", sink=LAKE, trust="yes"', "its trust is 'yes' (str)", "trust=True"),
    "topic": ('key="id", sink=LAKE, orders=State(5)', "input 'orders': topic of State is 5 (int)", "a text"),
    "affects": ('key="id", sink=LAKE, orders=State("a.b.c", affects=5)', "affects of State is 5 (int)", "Through"),
    "cast": (
        'key="id", sink=LAKE, orders=State("a.b.c", cast={"price": 5})',
        "cast of State is {'price': 5}", "types",
    ),
    "policy": (
        'key="id", sink=LAKE, orders=State("a.b.c", on_unreadable="nul")',
        "on_unreadable of State is 'nul'", "null",
    ),
    "columns": (
        'key="id", sink=LAKE, orders=State("a.b.c", columns="id")',
        "columns of State is 'id' (str)", "tuple",
    ),
    "result": ('key="id", sink=LAKE, orders=Result(["a"])', "projection of Result is ['a'] (list)", "a text"),
}  # fmt: skip


def test_values_of_a_wrong_type_are_named_where_they_are_written_and_stop_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    lines = [
        "from tailrace import ParquetFolder, PostgresTable, RedisCache, Result, SearchIndex, State, projection",
        'LAKE = ParquetFolder("lake")',
    ]
    for number, (arguments, _what, _hint) in enumerate([*VALUES.values(), ('key="id", sink=LAKE', "", "")]):
        orders = "" if "orders=" in arguments else ', orders=State("a.b.c")'
        lines += [f"@projection({arguments}{orders})", f"def case_{number}(orders): ..."]
    (tmp_path / "valued_views.py").write_text("\n".join(lines))
    with gather_mistakes() as mistakes:
        loaded = load_projections(["valued_views"], root=tmp_path)

    assert list(loaded) == [f"case_{len(VALUES)}"]
    assert len(mistakes) == len(VALUES)
    for number, (mistake, (_arguments, what, hint)) in enumerate(zip(mistakes, VALUES.values(), strict=True)):
        assert mistake.name == f"case_{number}"
        assert what in mistake.finding.what and hint in mistake.finding.hint, mistake.finding
        assert re.search(rf"valued_views\.py:{3 + 2 * number}(:\d+)?$", mistake.finding.place)


def test_a_module_that_does_not_import_is_named_with_the_place_of_the_mistake(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as missing:
        load_projections(["no_such_module"], tmp_path)
    assert "there is no module 'no_such_module'" in missing.value.message
    inner = wrong(tmp_path, "imports_missing", "import not_there\n")
    assert "imports_missing.py:1" in inner.message and "No module named 'not_there'" in inner.message
    syntax = wrong(tmp_path, "bad_syntax", "x = 1\ndef f(:\n")
    assert "bad_syntax.py:2): SyntaxError" in syntax.message
    raising = wrong(tmp_path, "raising", "def f():\n    raise KeyError('x')\n\nf()\n")
    assert "raising.py:2): KeyError: 'x'" in raising.message


def test_two_projections_of_one_name_are_refused(tmp_path: Path) -> None:
    text = """
        from tailrace.projections import PostgresTable, State, projection

        @projection(key="id", sink=PostgresTable("mart", "t"), orders=State("s.p.t"))
        def twice(orders): ...
        """
    within = wrong(tmp_path, "twice_within", text + text)
    assert "twice_within.py:4 and" in within.message.replace(":5", ":4")
    (tmp_path / "twice_a.py").write_text(textwrap.dedent(text))
    (tmp_path / "twice_b.py").write_text(textwrap.dedent(text))
    with pytest.raises(UsageError, match=r"two projections are named 'twice': .*twice_a.py.*twice_b.py"):
        load_projections(["twice_a", "twice_b"], tmp_path)
    with gather_mistakes() as mistakes:
        assert load_projections(["twice_a", "twice_b"], tmp_path) == {}, "nobody knows which one is meant"
    assert [mistake.name for mistake in mistakes] == ["twice"]
    (tmp_path / "twice_c.py").write_text("from twice_a import twice\n")
    assert list(load_projections(["twice_a", "twice_c"], tmp_path)) == ["twice"]


def test_a_module_that_wants_spark_at_import_is_told_where_to_call_it(tmp_path: Path) -> None:
    (tmp_path / "eager_views.py").write_text(
        "from pyspark.sql import functions as F\nTOTAL = F.sum('amount')\n"
    )
    load = "import sys, pathlib; from tailrace.projections.definition.load import load_projections as load; "
    load += "load(['eager_views'], root=pathlib.Path(sys.argv[1]))"
    # In a process of its own: here other tests may have started Spark.
    done = forking.run([sys.executable, "-c", load, str(tmp_path)], timeout=120)
    assert "eager_views.py:2): " in done.stderr and "hint: no Spark runs at import" in done.stderr


def test_all_mistakes_of_all_modules_can_be_gathered_and_what_is_right_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "mistaken_views.py").write_text(
        textwrap.dedent("""
            from tailrace.projections import ParquetFolder, State, Through, projection

            @projection(
                key=(), sink="lake",
                orders=State("shop.public."),
                lines=State("shop.public.lines", affects=Through("order", {"order_id": "id"})))
            def broken(orders): ...

            @projection(key="id", sink=ParquetFolder("lake"), orders=State("shop.public.orders"))
            def right(orders): ...
        """)
    )
    (tmp_path / "unfinished_views.py").write_text("def")
    with gather_mistakes() as mistakes:
        found = load_projections(["unfinished_views", "mistaken_views"], root=tmp_path)

    assert list(found) == ["right"]
    unfinished, *others = mistakes
    assert unfinished.projection is None and "does not import" in unfinished.finding.what
    assert {mistake.projection.name for mistake in others if mistake.projection} == {"broken"}
    assert [(each.finding.place.partition(".py:")[2], each.finding.what) for each in others] == [
        ("4", "it has no key"),
        ("4", "its sink is not one"),
        ("4", "its parameters (orders) are not its inputs (orders, lines)"),
        ("6:5", "input 'orders': 'shop.public.' is not a topic name"),
        ("7:5", "input 'lines' goes through 'order', which is no input"),
    ]
