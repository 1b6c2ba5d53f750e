"""What in a plan gives another result each time although its inputs are the same. Pure, like ``locality``.

The walk goes from the inputs up. A function that gives another value each time is a fault where it stands. The fault of
one that depends on the order of rows stays with the columns made of it, until something clears it (sorting a list), a
condition or group goes by it, or it reaches the result. What nobody foresaw is a fault, too: "not proved, so computed
in full". What depends on what, and what clears it, is one table: ``unstable_functions``.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from tailrace.projections.analysis.expressions import has_collation, is_float, names_in, root, roots
from tailrace.projections.analysis.meaning.decimal_digits import lost_digits
from tailrace.projections.analysis.meaning.postgres_types import TextType
from tailrace.projections.analysis.meaning.type_uses import TypeUses, Use
from tailrace.projections.analysis.plan_tree import Node
from tailrace.projections.analysis.spread import Attribute, InputFacts, PlanRelation, Proof, UnknownRows
from tailrace.projections.analysis.unstable_functions import (
    BY_PLACE,
    EXACT,
    PLACED,
    RANDOM,
    SORTING,
    TIME_TEXT,
    UNKNOWN_AGGREGATE,
    UNSTABLE,
    Cleared,
    Kind,
    Unstable,
    calls_of,
)

_PYTHON = frozenset({"PythonUDF", "PythonUDAF", "PythonUDTF", "ScalaUDF"})
_DECIDING = frozenset({"condition", "generator", "groupingExpressions", "keys", "partitionSpec"})
"""Fields of operators whose values decide on rows, also when they are columns as they are."""
_OF_WHOLE_ROWS = ("Distinct", "Except", "FlatMap", "Intersect", "MapIn")
"""Operators, by how their names begin, that see all columns of the rows below."""
_READ_AS_VALUES = frozenset({"LateralSubquery", "ListQuery", "ScalarSubquery"})
_SAME_LIST = frozenset({"AggregateExpression", "Alias", "Coalesce"})
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


@dataclass(frozen=True, slots=True)
class Fault:
    """``calls`` are names of functions in the source that may have made it; ``column`` of ``input`` what it is about;
    ``cleared`` is what makes it harmless later."""

    kind: Kind
    what: str
    hint: str
    calls: tuple[str, ...] = ()
    input: str = ""
    column: str = ""
    cleared: Cleared = "never"

    @classmethod
    def of(cls, known: Unstable, subject: str) -> Fault:
        return cls(known.kind, f"{subject} {known.words}", known.hint, known.calls, cleared=known.cleared)


@dataclass(frozen=True, slots=True)
class Declaration:
    """What the projection says of its result and inputs. ``types``: columns of each input whose type Spark has not;
    ``states``: the inputs that can be given a ``cast``; ``results``: the projections that others are the results of."""

    tolerance: frozenset[str] = frozenset()
    trust: bool = False
    inputs: Mapping[str, InputFacts] = field(default_factory=dict)
    types: Mapping[str, Mapping[str, TextType]] = field(default_factory=dict)
    states: frozenset[str] = frozenset()
    results: Mapping[str, str] = field(default_factory=dict)


def faults(
    plan: Node, proof: Proof, declared: Declaration, random: Iterable[str]
) -> tuple[list[Fault], dict[str, TextType]]:
    """Each fault once, in the order of the plan from its inputs up; and the columns of the result whose type Spark has
    not. ``random`` are the classes of expressions that Spark says are not deterministic."""
    keys = {name: facts.unique for name, facts in declared.inputs.items()}
    texts = TypeUses(declared.types, keys, proof)
    search = _Search(proof, declared, texts, _limited_sorts(proof))
    for node in proof.relations:  # inputs first
        search.look_at(node)
    for calls in map(calls_of, sorted({*random} - {"PythonUDTF"})):  # of which it is the default
        search.found.append(Fault.of(replace(RANDOM, calls=calls), f"{calls[0]}()"))
    search.conclude(proof.relations[plan])
    found = dict.fromkeys(replace(each, cleared="never") for each in search.found)
    return list(found), texts.columns(proof.relations[plan])


@dataclass(slots=True)
class _Search:
    proof: Proof
    declared: Declaration
    texts: TypeUses
    limited: frozenset[Node]
    found: list[Fault] = field(default_factory=list)
    carried: dict[Attribute, dict[Fault, None]] = field(default_factory=lambda: defaultdict(dict))

    def look_at(self, node: Node) -> None:
        """Faults of an expression stay with the column that it makes; where it decides on rows, they count at once."""
        below = [self.proof.relations[child] for child in node.children if child in self.proof.relations]
        if node.kind.startswith(_OF_WHOLE_ROWS):
            self.found += [fault for side in below for fault in self._column_faults(side)]
        relation = _combine(below)
        self.found += [
            self._type_fault(use)
            for use in self.texts.uses(node, below, relation)
            if not use.warned or node.kind != "Sort" or node in self.limited
        ]
        self.found += [
            Fault("digits" if lost.cut else "fewer digits", lost.what, lost.hint, (lost.call,))
            for expression in node.all_expressions()
            for lost in lost_digits(expression)
        ]
        for place, expression, column in node.columns_made():
            later = self._expression_faults(
                expression, relation, _roots(node.expressions("groupingExpressions"))
            )
            if column is not None and place not in _DECIDING:
                self.carried[column] |= dict.fromkeys(later)
            elif node.kind != "Sort" and (place in _DECIDING or expression.kind != "AttributeReference"):
                self.found += later
        known = UNSTABLE.get(node.kind)
        if known and (known.cleared == "never" or not self._takes_certain_rows(node, relation)):
            names = ", ".join(name for each in node.expressions("keys") for name in names_in(each))
            self.found.append(Fault.of(known, known.calls[0] + (f"({names})" if names else "")))
        for new, old in self.proof.renames(node):
            self.carried[new] |= self.carried[old]

    def _expression_faults(
        self, expression: Node, relation: PlanRelation, groups: list[Attribute]
    ) -> list[Fault]:
        """The faults that its value has. What nothing clears later is found at once."""
        faults = []
        for inner, above in _walk_with_parents(expression):
            for fault in (
                *self._function_faults(inner, above, relation, groups),
                *self._inherited_faults(inner),
            ):
                faults += _remaining_faults(fault, inner, above)
        self.found += [fault for fault in faults if fault.cleared == "never"]
        return [fault for fault in faults if fault.cleared != "never"]

    def _inherited_faults(self, inner: Node) -> list[Fault]:
        """What stays with the columns that an expression is: its own, or those of a subquery."""
        if inner.kind == "AttributeReference":
            return list(self.carried[inner.id])
        plan = inner.expression("plan") if inner.kind in _READ_AS_VALUES else None
        return self._column_faults(self.proof.relations.get(plan)) if plan is not None else []

    def _column_faults(self, relation: PlanRelation | None) -> list[Fault]:
        columns = relation.output if relation is not None else ()
        return [fault for column in columns for fault in self.carried[column.id]]

    def _type_fault(self, use: Use) -> Fault:
        (name, column), kind = use.of, use.type
        typed = kind.is_text or kind.of_elements
        what = f"{name}.{column} is {kind.words}{'' if typed else ', text in the log'}, and {use.words}"
        if use.warned:
            hint = 'if that is meant, say collation="C"; otherwise order the rows where they are read'
            if "blanks" in use.words:
                hint = kind.hint
            return Fault("collation", what, hint, use.calls, name, column)
        if "constant" in use.words:
            hint = "leave out the blanks at its end" if kind.padded else "write it as Postgres prints it"
            return Fault("text", what, hint, use.calls, name, column)
        if typed:
            return Fault("text", what, kind.hint, use.calls, name, column)
        if "cast to text" in use.words:
            return Fault(
                "text", what, f"write concat({column}) for the text that it prints", use.calls, name, column
            )
        hint = f'F.col("{name}.{column}").cast("{kind.cast}")'
        if name in self.declared.states:
            hint = f'{name}=State(…, cast={{"{column}": "{kind.cast}"}})'
        elif name in self.declared.results:
            hint += f", or already where projection {self.declared.results[name]} reads it"
        say = "say that its text is meant" if kind.cast == "string" else "say its type"
        return Fault("text", what, f"{say}: {hint}", use.calls, name, column)

    def _function_faults(
        self, inner: Node, above: tuple[Node, ...], relation: PlanRelation, groups: list[Attribute]
    ) -> Iterator[Fault]:
        if inner.kind == "WindowExpression":
            yield from _window_faults(inner, relation)
        window = next((each for each in above if each.kind == "WindowExpression"), None)
        if window is not None:
            groups = _roots(window.children[1].expressions("partitionSpec"))
        known = None if window is not None and inner.kind in PLACED else _unstable_of(inner)
        if known and not self._is_cleared(known, inner, relation, groups):
            name = "min_by" if inner.kind == "MaxMinByK" and inner.fields.get("reverse") else known.calls[0]
            yield Fault.of(known, f"{name}({', '.join(names_in(inner))})")
        elif (text := _time_text(inner)) is not None:
            yield Fault.of(TIME_TEXT, f"'{text}' read as a {inner.type or 'date'}")
        elif inner.kind in _PYTHON and not self.declared.trust:
            name = inner.name or str(inner.fields.get("udfName") or "a function")
            what = f"nobody can see whether the Python function {name} gives the same each time"
            yield Fault("python", what, "use Spark's functions, or say trust=True when it does", (name,))

    def _is_cleared(
        self, known: Unstable, inner: Node, relation: PlanRelation, groups: list[Attribute]
    ) -> bool:
        match known.cleared:
            case "constant in its group":  # a group with the key of the row that the argument is of
                held = root(inner.children[0])
                origin = relation.origins.get(held) if held is not None else None
                keyed = relation.readings_with_key(groups, self.texts.keys)
                return held in groups or (origin is not None and origin.reading in keyed)
            case "a unique order":  # or one that goes by the value itself, as in mode(…, true)
                ordered = _roots(inner.children[1:2])
                by_value = root(inner.children[0]) in ordered or inner.fields.get("reverseOpt") is not None
                return by_value or relation.is_unique([*groups, *ordered])
            case "exact numbers":  # text that is read as a number is a fault of its own
                floats = any(map(is_float, inner.children))
                return not floats or not self.texts.numbers.isdisjoint(inner.walk())
            case _:
                return False

    def _takes_certain_rows(self, node: Node, relation: PlanRelation) -> bool:
        """A limit behind an order, and dropDuplicates by columns, in which no two rows are equal."""
        if node.kind == "Deduplicate":
            keys = _roots(node.expressions("keys"))
            return relation.is_unique(keys) or {column.id for column in relation.output} <= set(keys)
        below = node.children[0]
        while below.kind in ("LocalLimit", "GlobalLimit", "Offset", "Project", "SubqueryAlias"):
            below = below.children[0]
        is_order = below.kind == "Sort" and below.fields.get("global") is True  # SORT BY is of each part
        order = below.expressions("order") if is_order else ()
        self.found += [
            fault for each in order for inner in each.walk() for fault in self._inherited_faults(inner)
        ]
        known = self.proof.relations.get(below, relation)
        return known.is_unique(_roots(order))

    def conclude(self, result: PlanRelation) -> None:
        """What reaches the result."""
        for column in result.output:
            for fault in self.carried[column.id]:
                if fault.kind != "float":
                    self.found.append(fault)
                elif column.name not in self.declared.tolerance:
                    more = f', or say how much a float may differ: tolerance={{"{column.name}": 1e-6}}'
                    self.found.append(replace(fault, hint=fault.hint + more, column=column.name))


def _limited_sorts(proof: Proof) -> frozenset[Node]:
    """Sorts that decide which rows a limit takes. Any other order of rows says nothing of a result with a key."""
    found = set()
    for node in proof.relations:
        if node.kind in ("GlobalLimit", "LocalLimit", "Offset", "Tail"):
            below = node.children[0]
            while below.kind in ("GlobalLimit", "LocalLimit", "Offset", "Project", "SubqueryAlias"):
                below = below.children[0]
            found.add(below)
    return frozenset(found)


def _unstable_of(inner: Node) -> Unstable | None:
    """What an expression depends on that may give another value each time."""
    if inner.kind == "AggregateExpression":
        made = inner.children[0].kind
        is_known = made in UNSTABLE or made in EXACT | _PYTHON
        return None if is_known else replace(UNKNOWN_AGGREGATE, calls=calls_of(made))
    return UNSTABLE.get("Collate" if has_collation(inner.type) else inner.kind)


def _window_faults(window: Node, relation: PlanRelation) -> Iterator[Fault]:
    """Row numbers and their like need an order in which no two rows of a partition are equal."""
    function, spec = window.children
    is_aggregate = function.kind == "AggregateExpression"
    kind = function.children[0].kind if is_aggregate else function.kind
    partition, order = spec.expressions("partitionSpec"), spec.expressions("orderSpec")
    # Which rows are in a frame of so many rows depends on their order.
    by_rows = bool(order) and any(each.object_name("frameType") == "RowFrame" for each in spec.children)
    by_place = kind in PLACED or (is_aggregate and by_rows)
    if by_place and not relation.is_unique(_roots((*partition, *order))):
        calls = calls_of(kind)
        ordered = ", ".join(column for each in order for column in names_in(each)) or "nothing"
        yield Fault.of(replace(BY_PLACE, calls=calls), f"{calls[0]}() goes by the order of {ordered},")


def _remaining_faults(fault: Fault, inner: Node, above: tuple[Node, ...]) -> list[Fault]:
    """What is left of a fault of a part of an expression in the whole: nothing where a list is sorted."""
    for outer in above if fault.cleared == "sorted" else ():
        orders = [each.children[0].walk() for each in outer.children if each.kind == "LambdaFunction"]
        is_usual = all(" ".join(each.kind for each in order) == _USUAL_ORDER for order in orders)
        if outer.kind in SORTING and outer.children[0] is inner and is_usual:
            return []
        if outer.kind not in _SAME_LIST:
            return [replace(fault, cleared="never")]
        inner = outer
    return [fault]


def _time_text(inner: Node) -> str | None:
    """The text of constants alone that is read as a time and names one. Spark takes no such name from a column."""
    parses = inner.kind in ("ParseToDate", "ParseToTimestamp")
    reads = len(inner.children) == 1 and (parses or (inner.kind == "Cast" and inner.type in _TIME_TYPES))
    below = list(inner.children[0].walk()) if reads else []
    literals = (each for each in below if each.kind == "Literal" and each.type.startswith("string"))
    text = "".join(str(each.fields.get("value") or "") for each in literals).strip()
    is_constant = all(each.kind != "AttributeReference" for each in below)
    return text if is_constant and _TIME_WORDS.search(text) else None


def _walk_with_parents(
    expression: Node, above: tuple[Node, ...] = ()
) -> Iterator[tuple[Node, tuple[Node, ...]]]:
    """Every node of an expression with those above it, the nearest first."""
    yield expression, above
    for child in expression.children:
        yield from _walk_with_parents(child, (expression, *above))


def _roots(expressions: Iterable[Node]) -> list[Attribute]:
    return [held for each in expressions for held in roots(each)]


def _combine(parts: Sequence[PlanRelation]) -> PlanRelation:
    """What an operator's expressions may look at: its inputs together."""
    if len(parts) == 1:
        return parts[0]
    origins = {attribute: origin for part in parts for attribute, origin in part.origins.items()}
    return PlanRelation(tuple(column for part in parts for column in part.output), UnknownRows(), origins)
