"""What in a plan gives another result each time although its inputs are the same. Pure, like ``locality``.

The walk goes from the inputs up. A function that gives another value each time is a fault where it stands. The fault of
one that depends on the order of rows stays with the columns made of it, until something clears it (sorting a list), a
condition or group goes by it, or it reaches the result. What nobody foresaw is a fault, too: "not proved, so computed
in full". What depends on what, and what clears it, is one table: ``unstable_functions``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from tailrace.projections.analysis.expressions import has_collation, is_float, names_in, root, roots
from tailrace.projections.analysis.numeric_text import NumericTexts
from tailrace.projections.analysis.plan_tree import Node
from tailrace.projections.analysis.spread import Attribute, InputFacts, Lost, Proof, Relation, Whole
from tailrace.projections.analysis.unstable_functions import (
    EXACT,
    NOW_HINT,
    PLACED,
    RANDOM_HINT,
    SORTING,
    SUM_HINT,
    UNSTABLE,
    Kind,
    calls_of,
    name_of,
)

_PYTHON = frozenset({"PythonUDF", "PythonUDAF", "PythonUDTF", "ScalaUDF"})
_DECIDING = frozenset({"condition", "generator", "groupingExpressions", "keys", "partitionSpec"})
"""Fields of operators whose values decide on rows, also when they are columns as they are."""
_READ_AS_VALUES = frozenset({"LateralSubquery", "ListQuery", "ScalarSubquery"})
_SAME_LIST = frozenset({"AggregateExpression", "Alias", "Coalesce", "WindowExpression"})
"""What passes a list on. A list that is sorted after anything else was done with it is not proved."""
_USUAL_ORDER = (
    "If And IsNull NamedLambdaVariable IsNull NamedLambdaVariable Literal If IsNull NamedLambdaVariable Literal If"
    " IsNull NamedLambdaVariable Literal If LessThan NamedLambdaVariable NamedLambdaVariable Literal If GreaterThan"
    " NamedLambdaVariable NamedLambdaVariable Literal Literal"
)
"""How Spark spells the order that array_sort takes unless it is given one."""
_TIME_TYPES = frozenset({"date", "timestamp", "timestamp_ntz"})
_TIME_WORDS = re.compile(r"(?<![a-z])(?:now|today|tomorrow|yesterday)(?![a-z])", re.I)
"""Texts that Spark's optimizer replaces by the time (SpecialDatetimeValues); its 'epoch' is always the same."""
_TIME_CALLS = (
    "cast", "astype", "date", "timestamp", "to_date", "to_timestamp", "try_cast", "try_to_date", "try_to_timestamp",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Fault:
    """``calls`` are names of functions in the source that may have made it; ``column`` of ``input`` what it is about.
    ``listed``: it is of the order of a list's elements, and of nothing else, so that sorting clears it later."""

    kind: Kind
    what: str
    hint: str
    calls: tuple[str, ...] = ()
    input: str = ""
    column: str = ""
    listed: bool = False


@dataclass(frozen=True, slots=True)
class Declaration:
    """What the projection says of its result and inputs. ``numeric_texts``: columns of each input that are numeric in
    Postgres and text in the log; ``states``: the inputs that can be given a ``cast``; ``results``: the projections
    that others are the results of."""

    tolerance: frozenset[str] = frozenset()
    trust: bool = False
    inputs: Mapping[str, InputFacts] = field(default_factory=dict)
    numeric_texts: Mapping[str, frozenset[str]] = field(default_factory=dict)
    states: frozenset[str] = frozenset()
    results: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Faults:
    """Each fault once, in the order of the plan from its inputs up. ``numeric_texts``: columns of the result that are
    numeric in Postgres and text here."""

    found: tuple[Fault, ...]
    numeric_texts: frozenset[str]


def faults(
    plan: Node, proof: Proof, declared: Declaration, floats: Iterable[str], random: Iterable[str]
) -> Faults:
    """``floats`` are the result's columns of a floating-point type, ``random`` the classes of expressions that Spark
    says are not deterministic."""
    keys = {name: facts.unique for name, facts in declared.inputs.items()}
    texts = NumericTexts(declared.numeric_texts, keys, proof)
    search = _Search(proof, declared, texts, frozenset(random))
    for node in proof.relations:  # inputs first
        search.look_at(node)
    search.conclude(plan, frozenset(floats))
    found = dict.fromkeys(replace(each, listed=False) for each in search.found)
    return Faults(tuple(found), texts.columns(proof.relations[plan]))


@dataclass(slots=True)
class _Search:
    proof: Proof
    declared: Declaration
    texts: NumericTexts
    random: frozenset[str]
    found: list[Fault] = field(default_factory=list)
    carried: dict[Attribute, list[Fault]] = field(default_factory=dict)

    def look_at(self, node: Node) -> None:
        below = [self.proof.relations[child] for child in node.children if child in self.proof.relations]
        if node.kind.startswith(("MapIn", "FlatMap")):
            # Of rows that are spread over keys the function alone makes it not local.
            if all(isinstance(part.rows, Whole) for part in below):
                every = [inner for expression in node.all_expressions() for inner in expression.walk()]
                self.found += [fault for inner in every for fault in self._of_python(inner)]
            return
        relation = _combined(below)
        self.found += [self._of_numeric_text(*use) for use in self.texts.uses(node, below, relation)]
        for place, expression in node.expressions_by_field():
            self._look_into(expression, relation, node, place)
        self._of_operator(node, relation)
        for new, old in self.proof.renames(node):
            self._carry(new, self.carried.get(old, []))
        if node.kind in ("Distinct", "Except", "Intersect"):  # they compare whole rows
            self.found += [fault for side in below for fault in self._of_columns(side)]

    def _look_into(self, expression: Node, relation: Relation, node: Node, place: str) -> None:
        """Faults of an expression stay with the column that it makes; where it decides on rows, they count at once."""
        groups = _roots_of(node, "groupingExpressions")
        later: list[Fault] = []
        for inner, above in _with_parents(expression):
            self.found += [*self._at_once(inner), *self._of_python(inner)]
            for fault in (*self._of_function(inner, above, relation, groups), *self._carried(inner)):
                later += _behind(fault, inner, above)
        if place in _DECIDING or "exprId" not in expression.fields:
            if node.kind != "Sort":
                self.found += later
        elif expression.kind != "AttributeReference":
            self._carry(expression.id, later)

    def _carry(self, column: int, faults: Sequence[Fault]) -> None:
        if faults:
            self.carried[column] = list(dict.fromkeys([*self.carried.get(column, []), *faults]))

    def _carried(self, inner: Node) -> list[Fault]:
        """What stays with the columns that an expression is: its own, or those of a subquery."""
        if inner.kind == "AttributeReference":
            return self.carried.get(inner.id, [])
        plan = inner.expression("plan") if inner.kind in _READ_AS_VALUES else None
        return self._of_columns(self.proof.relations.get(plan)) if plan is not None else []

    def _of_columns(self, relation: Relation | None) -> list[Fault]:
        columns = relation.output if relation is not None else ()
        return [fault for column in columns for fault in self.carried.get(column.id, [])]

    def _at_once(self, inner: Node) -> Iterator[Fault]:
        known, name = UNSTABLE.get(inner.kind), name_of(inner.kind)
        if known and known.kind in ("clock", "session"):
            yield Fault(known.kind, f"{name}() {known.words}", known.hint, known.calls)
        elif inner.kind in self.random and inner.kind not in _PYTHON:
            yield Fault(
                "random", f"{name}() gives another value in each refresh", RANDOM_HINT, calls_of(inner.kind)
            )
        elif (text := _time_text(inner)) is not None:
            what = f"'{text}' read as a {inner.type or 'date'} is another time in each refresh"
            yield Fault("clock", what, NOW_HINT, _TIME_CALLS)
        elif inner.kind == "Collate" or has_collation(inner.type):
            yield Fault(
                "order", "a text has a collation, by which different texts are equal: not proved, so computed in full",
                "compare lower(…) instead", ("collate",),
            )  # fmt: skip

    def _of_python(self, inner: Node) -> Iterator[Fault]:
        if inner.kind not in _PYTHON:
            return
        name = inner.name or str(inner.fields.get("udfName") or "a function")
        undeclared = inner.kind == "PythonUDTF"  # of which it is the default not to be deterministic
        if inner.fields.get("udfDeterministic") is False and not undeclared:
            what, hint = f"{name} is declared not to be deterministic", "compute it of the row's values alone"
            yield Fault("random", what, hint, (name,))
        elif not self.declared.trust:
            what = f"nobody can see whether the Python function {name} gives the same each time"
            yield Fault("python", what, "use Spark's functions, or say trust=True when it does", (name,))

    def _of_numeric_text(self, origin: tuple[str, str], words: str, calls: tuple[str, ...]) -> Fault:
        name, column = origin
        hint = f'F.col("{name}.{column}").cast("decimal(20,4)")'
        if name in self.declared.states:
            hint = f'{name}=State(…, cast={{"{column}": "decimal(20,4)"}})'
        elif name in self.declared.results:
            hint += f", or already where projection {self.declared.results[name]} reads it"
        what = f"{name}.{column} is numeric without a precision, text in the log, and {words}"
        return Fault("text", what, f"say its type: {hint}", calls, name, column)

    def _of_function(
        self, inner: Node, above: tuple[Node, ...], relation: Relation, groups: list[Attribute]
    ) -> Iterator[Fault]:
        """A function whose value depends on the order of rows."""
        window = next((each for each in above if each.kind == "WindowExpression"), None)
        if window is not None:
            yield from _of_window(inner, window, relation)
            if inner.kind in PLACED:
                return
            groups = _roots_of(window.children[1], "partitionSpec")
        known = UNSTABLE.get(inner.kind)
        made = inner.children[0].kind if inner.kind == "AggregateExpression" else ""
        if made and made not in EXACT | _PYTHON and made not in UNSTABLE:
            what = f"{name_of(made)}({_read(inner)}) may depend on the order of rows: not proved, so computed in full"
            yield Fault(
                "order", what, "use exact aggregates: count, sum, min, max, percentile", (name_of(made),)
            )
        elif known and known.kind in ("float", "order") and not self._is_cleared(inner, relation, groups):
            name = "min_by" if inner.kind == "MaxMinByK" and inner.fields.get("reverse") else known.calls[0]
            what, listed = f"{name}({_read(inner)}) {known.words}", known.cleared == "sorted"
            yield Fault(known.kind, what, known.hint, known.calls, listed=listed)

    def _is_cleared(self, inner: Node, relation: Relation, groups: list[Attribute]) -> bool:
        match UNSTABLE[inner.kind].cleared:
            case "constant in its group":
                return self._is_constant(inner.children[0], relation, groups)
            case "its own order":  # WITHIN GROUP (ORDER BY …), mode(…, true)
                orders = ("orderExpressions", "reverseOpt")
                return bool(inner.fields.get("reverseOpt")) or any(map(inner.expressions, orders))
            case "a unique order":
                return relation.is_unique([*groups, *roots(inner.children[1])])
            case "exact numbers":  # numeric text is a fault of its own
                floats = any(map(is_float, inner.children))
                return not floats or not self.texts.numbers.isdisjoint(inner.walk())
            case _:
                return False

    def _is_constant(self, argument: Node, relation: Relation, groups: list[Attribute]) -> bool:
        """Is the argument the same in all rows of a group, because the group holds the key of the row it is of?"""
        held = root(argument)
        if held is None:
            return False
        origin = relation.origins.get(held)
        keyed = relation.readings_with_key(groups, self.texts.keys)
        return held in groups or (origin is not None and origin.reading in keyed)

    def _of_operator(self, node: Node, relation: Relation) -> None:
        if node.kind == "Sample":
            self.found.append(Fault(
                "random", "sample takes other rows in each refresh", "choose rows by a condition on their values",
                ("sample", "sampleBy", "randomSplit"),
            ))  # fmt: skip
        elif node.kind in ("GlobalLimit", "Offset", "Tail"):
            self._of_limit(node, relation)
        elif node.kind == "Deduplicate":
            self._of_deduplicate(node, relation)

    def _of_limit(self, node: Node, relation: Relation) -> None:
        below = node.children[0]
        while below.kind in ("LocalLimit", "GlobalLimit", "Offset", "Project", "SubqueryAlias"):
            below = below.children[0]
        is_order = below.kind == "Sort" and below.fields.get("global") is True  # SORT BY is of each part
        order = below.expressions("order") if is_order else ()
        self.found += [fault for each in order for inner in each.walk() for fault in self._carried(inner)]
        known = self.proof.relations.get(below, relation)
        if not known.is_unique([held for each in order for held in roots(each)]):
            self.found.append(Fault(
                "order", "limit takes whichever rows come first, and rows come in any order",
                "order by columns that end with a unique one before it", ("limit", "offset", "tail"),
            ))  # fmt: skip

    def _of_deduplicate(self, node: Node, relation: Relation) -> None:
        keys = _roots_of(node, "keys")
        others = [column.id for column in relation.output if column.id not in keys]
        if others and not relation.is_unique(keys):
            names = ", ".join(name for each in node.expressions("keys") for name in names_in(each))
            self.found.append(Fault(
                "order", f"dropDuplicates({names}) keeps whichever row comes first, and rows come in any order",
                "say which: row_number() over a window with a unique order, or max_by",
                ("dropDuplicates", "drop_duplicates"),
            ))  # fmt: skip

    def conclude(self, plan: Node, floats: frozenset[str]) -> None:
        """What reaches the result."""
        for column in self.proof.relations[plan].output:
            for fault in self.carried.get(column.id, []):
                if fault.kind != "float":
                    self.found.append(fault)
                elif column.name not in self.declared.tolerance:
                    self.found.append(_of_result(fault, column.name, column.name in floats))


def _of_result(fault: Fault, column: str, is_float: bool) -> Fault:
    more = f'sum decimals (cast the argument), or say how much may differ: tolerance={{"{column}": 1e-6}}'
    return replace(fault, hint=more if is_float else SUM_HINT, column=column)


def _of_window(inner: Node, window: Node, relation: Relation) -> Iterator[Fault]:
    """Row numbers and their like need an order in which no two rows of a partition are equal."""
    function, spec = window.children
    aggregates = function.kind == "AggregateExpression"
    if inner is not (function.children[0] if aggregates else function):
        return
    partition, order = spec.expressions("partitionSpec"), spec.expressions("orderSpec")
    frames = [each.named("frameType") for each in spec.children if each.kind == "SpecifiedWindowFrame"]
    by_rows = bool(order) and "RowFrame" in frames  # which rows are in it depends on their order
    by_place = inner.kind in PLACED or (aggregates and by_rows)
    if by_place and not relation.is_unique([held for each in (*partition, *order) for held in roots(each)]):
        name = name_of(inner.kind)
        ordered = ", ".join(column for each in order for column in names_in(each)) or "nothing"
        yield Fault(
            "order", f"{name}() goes by the order of {ordered}, in which rows may be equal and then come in any order",
            "end its orderBy with a column that is unique in the partition, such as the table's key", (name,),
            listed=inner.kind in ("CollectList", "CollectSet") and not by_rows,
        )  # fmt: skip


def _behind(fault: Fault, inner: Node, above: tuple[Node, ...]) -> list[Fault]:
    """What is left of a fault of a part of an expression in the whole: nothing where a list is sorted."""
    for outer in above if fault.listed else ():
        if outer.kind in SORTING and outer.children[0] is inner and _sorts_as_usual(outer):
            return []
        if outer.kind not in _SAME_LIST:
            return [replace(fault, listed=False)]
        inner = outer
    return [fault]


def _sorts_as_usual(outer: Node) -> bool:
    order = [each.children[0] for each in outer.children if each.kind == "LambdaFunction"]
    return all(" ".join(inner.kind for inner in each.walk()) == _USUAL_ORDER for each in order)


def _time_text(inner: Node) -> str | None:
    """The text of constants alone that is read as a time and names one. Spark takes no such name from a column."""
    is_date = inner.kind == "ParseToDate"
    reads = is_date or (inner.kind in ("Cast", "ParseToTimestamp") and inner.type in _TIME_TYPES)
    below = list(inner.children[0].walk()) if reads and len(inner.children) == 1 else []
    if any(each.kind == "AttributeReference" for each in below):
        return None
    literals = (each for each in below if each.kind == "Literal" and each.type.startswith("string"))
    text = "".join(str(each.fields.get("value") or "") for each in literals).strip()
    return text if _TIME_WORDS.search(text) else None


def _with_parents(expression: Node, above: tuple[Node, ...] = ()) -> Iterator[tuple[Node, tuple[Node, ...]]]:
    """Every node of an expression with those above it, the nearest first."""
    yield expression, above
    for child in expression.children:
        yield from _with_parents(child, (expression, *above))


def _roots_of(node: Node, field: str) -> list[Attribute]:
    return [held for each in node.expressions(field) if (held := root(each)) is not None]


def _read(expression: Node) -> str:
    return ", ".join(names_in(expression)) or "…"


def _combined(relations: Iterable[Relation]) -> Relation:
    """What an operator's expressions may look at: its inputs together."""
    parts = list(relations)
    if len(parts) == 1:
        return parts[0]
    origins = {attribute: origin for part in parts for attribute, origin in part.origins.items()}
    return Relation(tuple(column for part in parts for column in part.output), Lost(), origins)
