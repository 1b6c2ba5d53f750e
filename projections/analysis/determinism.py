"""What in a plan gives another result each time although its inputs are the same. Pure, like ``locality``.

Clocks and random numbers do; so does whatever depends on the order in which rows come: Spark gives none unless asked,
and rows that are equal in what they are ordered by come in any order. Sums of floats differ in their last digits.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from tailrace.projections.analysis.callnames import CALLED, GROUPING_CALLS
from tailrace.projections.analysis.collations import extreme_of_equals, shown_by_chance
from tailrace.projections.analysis.expressions import names_in, root, roots
from tailrace.projections.analysis.floatsums import MOMENTS, SUMS, sum_of_floats
from tailrace.projections.analysis.numerictext import NumericTexts, Origin
from tailrace.projections.analysis.plan_tree import Node
from tailrace.projections.analysis.proof import InputFacts, Proof
from tailrace.projections.analysis.settled import Fate, fate
from tailrace.projections.analysis.spokentime import spoken, time_of
from tailrace.projections.analysis.spread import Attribute, Lost, Relation, Whole
from tailrace.projections.analysis.textgroups import TextGroups

Kind = Literal["clock", "session", "random", "order", "python", "float", "text"]

_CLOCK = frozenset({"CurrentDate", "CurrentTime", "CurrentTimestamp", "LocalTimestamp", "Now"})
_OF_SESSION = frozenset({"CurrentCatalog", "CurrentDatabase", "CurrentUser"})
_SPOKEN_BY = (
    "cast", "astype", "date", "timestamp", "to_date", "to_timestamp", "try_cast", "try_to_date", "try_to_timestamp",
)  # fmt: skip
_RANDOM = frozenset({
    "MonotonicallyIncreasingID", "Rand", "RandStr", "Randn", "Shuffle", "SparkPartitionID", "Uniform", "Uuid",
    "InputFileBlockLength", "InputFileBlockStart", "InputFileName", "CallMethodViaReflection",
})  # fmt: skip
_PYTHON = frozenset({"PythonUDF", "PythonUDAF", "PythonUDTF", "ScalaUDF"})
_ONE_OF_MANY = {"First": "first", "Last": "last", "AnyValue": "any_value"}
_LISTS = {"CollectList": "collect_list", "CollectSet": "collect_set", "ListAgg": "listagg"}
_PERCENTILE = "compute it exactly: percentile(…)"
_COUNT = "count exactly: count(DISTINCT …)"
_MERGED = {
    "ApproximatePercentile": ("percentile_approx", _PERCENTILE), "HistogramNumeric": ("histogram_numeric", _PERCENTILE),
    "HllSketchAgg": ("hll_sketch_agg", _COUNT), "HllUnionAgg": ("hll_union_agg", _COUNT),
    "KllSketchAggBigint": ("kll_sketch_agg_bigint", _PERCENTILE),
    "KllSketchAggDouble": ("kll_sketch_agg_double", _PERCENTILE),
    "KllSketchAggFloat": ("kll_sketch_agg_float", _PERCENTILE),
}  # fmt: skip
"""Summaries that say something else when parts are merged in another order."""
_BY_VALUE = {"MaxBy": "max_by", "MaxMinByK": "max_by", "MinBy": "min_by"}
_BY_PLACE = {
    "RowNumber": "row_number",
    "NTile": "ntile",
    "Lag": "lag",
    "Lead": "lead",
    "NthValue": "nth_value",
}
_DECIDING = frozenset({"condition", "generator", "groupingExpressions", "keys", "partitionSpec"})
"""Fields of operators whose values decide on rows, also when they are columns as they are."""
_APART = frozenset({"groupingExpressions", "keys", "partitionSpec"})
"""Those whose values tell rows apart."""
_READ_AS_VALUES = frozenset({"LateralSubquery", "ListQuery", "ScalarSubquery"})
_SUM_DECIMALS = "sum decimals: cast the argument before it is summed"


@dataclass(frozen=True, slots=True)
class Fault:
    """``calls`` are names of functions in the source that may have made it; ``column`` of ``input`` what it is about.
    ``listed``: it is of the order of a list's elements, and of nothing else, so that it can be mended later."""

    kind: Kind
    what: str
    hint: str
    calls: tuple[str, ...] = ()
    input: str = ""
    column: str = ""
    listed: bool = False


@dataclass(frozen=True, slots=True)
class Declared:
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


def faults(plan: Node, proof: Proof, declared: Declared, floats: Iterable[str]) -> Faults:
    """``floats`` are the result's columns of a floating-point type."""
    texts = NumericTexts(declared.numeric_texts, proof.relations)
    keys = {name: facts.unique for name, facts in declared.inputs.items()}
    search = _Search(proof, declared, texts, TextGroups(texts, keys))
    for node in proof.relations:  # inputs first
        search.look_at(node)
    search.conclude(plan, frozenset(floats))
    found = dict.fromkeys(replace(each, listed=False) for each in search.found)
    return Faults(tuple(found), texts.columns(proof.relations[plan]))


@dataclass(slots=True)
class _Search:
    proof: Proof
    declared: Declared
    texts: NumericTexts
    groups: TextGroups
    found: list[Fault] = field(default_factory=list)
    tainted: dict[Attribute, list[Fault]] = field(default_factory=dict)

    def look_at(self, node: Node) -> None:
        below = [self.proof.relations[child] for child in node.children if child in self.proof.relations]
        relation = _combined(below)
        if node.kind.startswith(("MapIn", "FlatMap")):
            # Of rows that are spread over keys the function alone makes it not local.
            if all(isinstance(part.rows, Whole) for part in below):
                self._of_functions(node)
            return
        grouping = [
            held for each in node.expressions("groupingExpressions") if (held := root(each)) is not None
        ]
        for place, expression in node.expressions_by_field():
            self._look_into(expression, relation, grouping, node, place)
        for origin, words in self.groups.uses(node, below):
            self._of_numeric_text(origin, f"is compared as text ({words})", GROUPING_CALLS[words])
        for column, words in shown_by_chance(node, below):
            self.found.append(_one_of_equals(column, GROUPING_CALLS[words]))
        self._of_operator(node, relation)
        self._carry_on(node, below)
        self.texts.of_operator(node, below, self.proof.relations[node])
        if (again := self.proof.again.get(node)) is not None:
            self.texts.read_again(again.columns, again.readings)

    def _carry_on(self, node: Node, below: Sequence[Relation]) -> None:
        """What stays with columns, where an operator gives these other ids, or decides by them."""
        if (again := self.proof.again.get(node)) is not None:
            for new, old in again.columns.items():
                self._taint(new, self.tainted.get(old, []))
        elif node.kind == "Union":
            for column, *others in zip(*(part.output for part in below), strict=False):
                for other in others:
                    self._taint(column.id, self.tainted.get(other.id, []))
        elif node.kind == "Expand":  # rollup and its like: each row once for each list of columns
            for projected in node.lists("projections"):
                for made, held in zip(node.expressions("output"), projected, strict=False):
                    if held.kind == "AttributeReference":
                        self._taint(made.id, self.tainted.get(held.id, []))
        elif node.kind in ("Except", "Intersect"):
            for side in below:
                self._decide(self._of_columns(side))
        elif node.kind == "Distinct" and not self._told_apart(
            [each.id for each in below[0].output], below[0]
        ):
            self._decide(self._of_columns(below[0]))

    def _taint(self, column: int, faults: Sequence[Fault]) -> None:
        if faults:
            self.tainted[column] = list(dict.fromkeys([*self.tainted.get(column, []), *faults]))

    def _look_into(
        self, expression: Node, relation: Relation, grouping: list[Attribute], node: Node, place: str
    ) -> None:
        """Faults of an expression; those that only matter when they reach the result stay with its column."""
        later: list[Fault] = []
        for origin, words in self.texts.uses(expression, relation):
            self._of_numeric_text(origin, words)
        for inner, above in _with_parents(expression):
            self._at_once(inner, relation)
            of_inner = [*self._of_order(inner, above, relation, grouping), *self._carried(inner)]
            if extreme_of_equals(inner):
                of_inner.append(_one_of_equals(f"{_name_of(inner)}({_read(inner)})", (_name_of(inner),)))
            later += _left_of(of_inner, inner, above)
            if self.texts.numbers.isdisjoint(inner.walk()):  # else it is told as what it is: text
                later += _of_floats(inner)
        if place in _DECIDING or "exprId" not in expression.fields:
            attributes = [held for each in node.expressions(place) for held in roots(each)]
            if node.kind != "Sort" and not (place in _APART and self._told_apart(attributes, relation)):
                self._decide(later)
        elif later and expression.kind != "AttributeReference":
            self.tainted[expression.id] = list(dict.fromkeys(later))

    def _carried(self, inner: Node) -> list[Fault]:
        """What stays with the columns that an expression is: its own, or those of a subquery."""
        if inner.kind == "AttributeReference":
            return self.tainted.get(inner.id, [])
        plan = inner.expression("plan") if inner.kind in _READ_AS_VALUES else None
        return self._of_columns(self.proof.relations.get(plan)) if plan is not None else []

    def _of_columns(self, relation: Relation | None) -> list[Fault]:
        columns = relation.output if relation is not None else ()
        return [fault for column in columns for fault in self.tainted.get(column.id, [])]

    def _told_apart(self, attributes: Iterable[Attribute], relation: Relation) -> bool:
        """Do those of the attributes that are the same each time tell rows apart? Then the others decide nothing."""
        return relation.is_unique(
            each for each in attributes if not self.tainted.get(each if isinstance(each, int) else each[0])
        )

    def _decide(self, faults: Iterable[Fault]) -> None:
        """Values of such faults decide on rows."""
        self.found += [replace(fault, hint=fault.hint or _SUM_DECIMALS) for fault in faults]

    def _at_once(self, inner: Node, relation: Relation) -> None:
        calls = CALLED.get(inner.kind, ())
        if inner.kind in _CLOCK:
            self.found.append(Fault(
                "clock", f"{(calls or (inner.kind,))[0]}() is another time in each refresh",
                "give the function a parameter named now: it is the commit time of the position", calls,
            ))  # fmt: skip
        elif (text := spoken(inner)) is not None:
            self.found.append(Fault(
                "clock", f"'{text}' read as a {time_of(inner)} is another time in each refresh",
                "give the function a parameter named now: it is the commit time of the position", _SPOKEN_BY,
            ))  # fmt: skip
        elif inner.kind in _OF_SESSION:
            self.found.append(Fault(
                "session", f"{(calls or (inner.kind,))[0]}() is another value where somebody else runs the refresh",
                "write the value itself", calls,
            ))  # fmt: skip
        elif inner.kind == "AesEncrypt" and _draws_its_start(inner):
            self.found.append(Fault(
                "random", f"aes_encrypt({_read(inner)}) begins with random bytes in each refresh",
                "give it an iv that is computed of the row's values", ("aes_encrypt",),
            ))  # fmt: skip
        elif inner.kind in _RANDOM:
            self.found.append(Fault(
                "random", f"{(calls or (inner.kind,))[0]}() gives another value in each refresh",
                "compute it of the row's values, for example with sha2 or xxhash64", calls,
            ))  # fmt: skip
        elif inner.kind in _PYTHON:
            self._of_python(inner)

    def _of_functions(self, node: Node) -> None:
        for expression in node.all_expressions():
            for inner in expression.walk():
                if inner.kind in _PYTHON:
                    self._of_python(inner)

    def _of_python(self, inner: Node) -> None:
        name = inner.name or str(inner.fields.get("udfName") or "a function")
        undeclared = inner.kind == "PythonUDTF"  # of which it is the default not to be deterministic
        if inner.fields.get("udfDeterministic") is False and not undeclared:
            self.found.append(Fault(
                "random", f"{name} is declared not to be deterministic",
                "compute it of the row's values alone", (name,),
            ))  # fmt: skip
        elif not self.declared.trust:
            self.found.append(Fault(
                "python", f"nobody can see whether the Python function {name} gives the same each time",
                "use Spark's functions, or say trust=True when it does", (name,),
            ))  # fmt: skip

    def _of_numeric_text(self, origin: Origin, words: str, calls: tuple[str, ...] = ()) -> None:
        name, column = origin
        hint = f'F.col("{name}.{column}").cast("decimal(20,4)")'
        if name in self.declared.states:
            hint = f'{name}=State(…, cast={{"{column}": "decimal(20,4)"}})'
        elif name in self.declared.results:
            hint += f", or already where projection {self.declared.results[name]} reads it"
        self.found.append(Fault(
            "text", f"{name}.{column} is numeric without a precision, text in the log, and {words}",
            f"say its type: {hint}", calls, name, column,
        ))  # fmt: skip

    def _of_order(
        self, inner: Node, above: tuple[Node, ...], relation: Relation, grouping: list[Attribute]
    ) -> Iterator[Fault]:
        window = next((each for each in above if each.kind == "WindowExpression"), None)
        if window is not None:
            yield from self._of_window(inner, window, relation)
            if inner.kind in _ONE_OF_MANY or inner.kind in _LISTS:
                return
            partition = window.children[1].expressions("partitionSpec")
            grouping = [held for each in partition if (held := root(each)) is not None]
        calls = CALLED.get(inner.kind, ())
        if inner.kind in _ONE_OF_MANY and not self._dependent(inner.children[0], relation, grouping):
            name = _ONE_OF_MANY[inner.kind]
            yield Fault(
                "order", f"{name}({_read(inner)}) takes whichever row comes, and rows come in any order",
                "say which: max_by(value, order) with a unique order, or min or max", calls or (name,),
            )  # fmt: skip
        elif inner.kind in _LISTS and not _has_order(inner):
            name = _LISTS[inner.kind]
            yield Fault(
                "order", f"{name}({_read(inner)}) has its elements in any order",
                "sort them: sort_array(collect_list(…))", calls or (name,), listed=inner.kind != "ListAgg",
            )  # fmt: skip
        elif (
            inner.kind == "Mode"
            and not inner.fields.get("reverseOpt")
            and not inner.expressions("reverseOpt")
        ):
            yield Fault(
                "order", f"mode({_read(inner)}) takes whichever of several values that are equally frequent",
                "say which: mode(…, True), or mode() WITHIN GROUP (ORDER BY …)", ("mode",),
            )  # fmt: skip
        elif inner.kind in _MERGED:
            name, hint = _MERGED[inner.kind]
            yield Fault(
                "order", f"{name}({_read(inner)}) is estimated, another way for each order in which rows come",
                hint, (name, "approx_percentile"),
            )  # fmt: skip
        elif inner.kind in _BY_VALUE and not relation.is_unique([*grouping, *roots(inner.children[1])]):
            name = "min_by" if inner.fields.get("reverse") else _BY_VALUE[inner.kind]
            yield Fault(
                "order", f"{name}({_read(inner)}) takes whichever row comes when several have that value",
                "order by a struct that ends with the key: max_by(value, struct(order, id))", (name,),
            )  # fmt: skip

    def _of_window(self, inner: Node, window: Node, relation: Relation) -> Iterator[Fault]:
        """Row numbers and their like need an order in which no two rows of a partition are equal."""
        function = window.children[0]
        aggregates = function.kind == "AggregateExpression"
        if aggregates:
            function = function.children[0]
        if inner is not function:
            return
        spec = window.children[1]
        partition, order = spec.expressions("partitionSpec"), spec.expressions("orderSpec")
        by_place = function.kind in {*_BY_PLACE, *_ONE_OF_MANY, *_LISTS} or (
            aggregates and _counts_rows(spec, order)
        )
        if not by_place or relation.is_unique(
            [held for each in (*partition, *order) for held in roots(each)]
        ):
            return
        name = (CALLED.get(function.kind) or (_name_of(function),))[0]
        ordered = ", ".join(column for each in order for column in names_in(each)) or "nothing"
        yield Fault(
            "order", f"{name}() goes by the order of {ordered}, in which rows may be equal and then come in any order",
            "end its orderBy with a column that is unique in the partition, such as the table's key", (name,),
            listed=function.kind in ("CollectList", "CollectSet") and not _counts_rows(spec, order),
        )  # fmt: skip

    def _dependent(self, argument: Node, relation: Relation, grouping: list[Attribute]) -> bool:
        """Is the argument the same in all rows of a group, because the group holds the key of the row it is of?"""
        held = root(argument)
        if held is None:
            return False
        origin = relation.origins.get(held)
        if held in grouping:
            return True
        facts = self.declared.inputs.get(origin.input) if origin else None
        if origin is None or facts is None or not facts.unique:
            return False
        grouped = {
            found.column
            for each in grouping
            if (found := relation.origins.get(each)) and found.reading == origin.reading
        }
        return any(set(key) <= grouped for key in facts.unique)

    def _of_operator(self, node: Node, relation: Relation) -> None:
        if node.kind == "Sample":
            self.found.append(Fault(
                "random", "sample takes other rows in each refresh", "choose rows by a condition on their values",
                ("sample", "sampleBy", "randomSplit"),
            ))  # fmt: skip
        elif node.kind in ("GlobalLimit", "Offset", "Tail"):
            below = node.children[0]
            while below.kind in ("LocalLimit", "GlobalLimit", "Offset", "Project", "SubqueryAlias"):
                below = below.children[0]
            is_order = below.kind == "Sort" and below.fields.get("global") is True  # SORT BY is of each part
            order = below.expressions("order") if is_order else ()
            self._decide(fault for each in order for inner in each.walk() for fault in self._carried(inner))
            known = self.proof.relations.get(below, relation)
            if not known.is_unique([held for each in order for held in roots(each)]):
                self.found.append(Fault(
                    "order", "limit takes whichever rows come first, and rows come in any order",
                    "order by columns that end with a unique one before it", ("limit", "offset", "tail"),
                ))  # fmt: skip
        elif node.kind == "Deduplicate":
            self._of_deduplicate(node, relation)

    def _of_deduplicate(self, node: Node, relation: Relation) -> None:
        keys = [held for each in node.expressions("keys") if (held := root(each)) is not None]
        others = [column.id for column in relation.output if column.id not in keys]
        if not others or relation.is_unique(keys):
            return
        names = ", ".join(name for each in node.expressions("keys") for name in names_in(each))
        self.found.append(Fault(
            "order", f"dropDuplicates({names}) keeps whichever row comes first, and rows come in any order",
            "say which: row_number() over a window with a unique order, or max_by",
            ("dropDuplicates", "drop_duplicates"),
        ))  # fmt: skip

    def conclude(self, plan: Node, floats: frozenset[str]) -> None:
        """What reaches the result."""
        for column in self.proof.relations[plan].output:
            for fault in self.tainted.get(column.id, []):
                if fault.kind != "float":
                    self.found.append(fault)
                elif column.name not in self.declared.tolerance:
                    self.found.append(_of_result(fault, column.name, column.name in floats))


def _of_result(fault: Fault, column: str, is_float: bool) -> Fault:
    hint = (
        f'sum decimals (cast the argument), or say how much may differ: tolerance={{"{column}": 1e-6}}'
        if is_float
        else _SUM_DECIMALS
    )
    return Fault("float", fault.what, hint, fault.calls, column=column)


def _draws_its_start(inner: Node) -> bool:
    """aes_encrypt of a mode that begins with random bytes unless it is given others."""
    mode, start = inner.children[2], inner.children[4]
    if mode.kind == "Literal" and str(mode.fields.get("value")).upper() == "ECB":
        return False
    while start.kind == "Cast":
        start = start.children[0]
    return start.kind == "Literal" and not start.fields.get("value")


def _of_floats(inner: Node) -> Iterator[Fault]:
    name = sum_of_floats(inner)
    if name is not None:
        yield Fault(
            "float", f"{name}({_read(inner)}) adds floating-point numbers, whose sum depends on the order of rows",
            "", CALLED.get(inner.kind, (name,)),
        )  # fmt: skip


def _one_of_equals(what: str, calls: tuple[str, ...]) -> Fault:
    return Fault(
        "order", f"{what} is whichever comes first of texts that its collation holds to be equal",
        "make them one text: lower(…), or collate(…, 'UTF8_BINARY')", calls,
    )  # fmt: skip


def _with_parents(expression: Node, above: tuple[Node, ...] = ()) -> Iterator[tuple[Node, tuple[Node, ...]]]:
    """Every node of an expression with those above it, the nearest first."""
    yield expression, above
    for child in expression.children:
        yield from _with_parents(child, (expression, *above))


def _left_of(faults: Iterable[Fault], inner: Node, above: tuple[Node, ...]) -> Iterator[Fault]:
    """The faults of a part of an expression that its whole has: the order of a list may be mended on the way, or become
    something else."""
    ends = fate(inner, above)
    for fault in faults:
        if not fault.listed or ends is Fate.LISTED:
            yield fault
        elif ends is Fate.OTHER:
            yield replace(fault, listed=False)


def _has_order(function: Node) -> bool:
    """listagg(…) within group (order by …)"""
    return bool(function.expressions("orderExpressions"))


def _counts_rows(spec: Node, order: tuple[Node, ...]) -> bool:
    """A frame of so many rows, not of values: which rows are in it depends on their order."""
    frame = next((each for each in spec.children if each.kind == "SpecifiedWindowFrame"), None)
    if frame is None or not order or frame.named("frameType") != "RowFrame":
        return False
    return any(bound.kind not in ("UnboundedPreceding", "UnboundedFollowing") for bound in frame.children)


def _read(expression: Node) -> str:
    return ", ".join(names_in(expression)) or "…"


def _name_of(function: Node) -> str:
    known = {**_BY_PLACE, **_ONE_OF_MANY, **_LISTS, **SUMS, **MOMENTS}
    return known.get(function.kind, function.kind.lower())


def _combined(relations: Iterable[Relation]) -> Relation:
    """Of an operator's inputs together: what its expressions may look at."""
    parts = list(relations)
    if len(parts) == 1:
        return parts[0]
    origins = {attribute: origin for part in parts for attribute, origin in part.origins.items()}
    return Relation(tuple(column for part in parts for column in part.output), Lost(), origins)
