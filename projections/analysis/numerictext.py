"""Where ``numeric`` without a precision goes, which is text in the log: as a number it loses digits, or is none at all;
as text it sorts wrongly, and 1.0 does not equal 1.00. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from tailrace.projections.analysis.expressions import root, values_of
from tailrace.projections.analysis.plan_tree import Node
from tailrace.projections.analysis.spread import Attribute, Relation

Origin = tuple[str, str]
"""An input and its column; ``after.price`` of changes."""
Held = Mapping[str, frozenset[Origin]]
"""The numeric text that a value is (under ""), or that its fields are, by their names."""

_NUMBERS = frozenset({"float", "double", "byte", "short", "integer", "long"})
_ORDERS = {
    "GreaterThan": ">", "GreaterThanOrEqual": ">=", "LessThan": "<", "LessThanOrEqual": "<=", "Max": "max",
    "Min": "min", "SortOrder": "orderBy", "Greatest": "greatest", "Least": "least", "SortArray": "sort_array",
    "ArrayMax": "array_max", "ArrayMin": "array_min",
}  # fmt: skip
_BY = {"MaxBy": "max_by", "MaxMinByK": "max_by", "MinBy": "min_by"}
_EQUALITIES = {
    "EqualTo": "=", "EqualNullSafe": "<=>", "In": "in", "InSubquery": "in", "CollectSet": "collect_set", "Mode": "mode",
    "HyperLogLogPlusPlus": "approx_count_distinct", "ArrayDistinct": "array_distinct",
    "ArrayContains": "array_contains", "ArrayPosition": "array_position", "ArrayRemove": "array_remove",
    "ArraysOverlap": "arrays_overlap", "ArrayUnion": "array_union", "ArrayIntersect": "array_intersect",
    "ArrayExcept": "array_except",
}  # fmt: skip
_KEEPS = frozenset({
    "AggregateExpression", "Alias", "AnyValue", "ArrayDistinct", "ArrayFilter", "ArrayMax", "ArrayMin", "ArraySort",
    "Coalesce", "CollectList", "CollectSet", "CreateArray", "ElementAt", "First", "Flatten", "GetArrayItem", "Greatest",
    "IfNull", "KnownNotNull", "KnownNullable", "Lag", "Last", "Lead", "Least", "Max", "Min", "Mode", "NthValue",
    "NullIf", "NullIfResult", "Nvl", "Reverse", "Slice", "SortArray", "SortOrder", "StringTrim", "WindowExpression",
    "Explode", "PosExplode", "Inline",
})  # fmt: skip
"""What gives one of the values that it is given, or a list of them."""
_QUERIES = frozenset({"ListQuery", "ScalarSubquery"})


@dataclass(slots=True)
class NumericTexts:
    """``told``: columns of each input that are such text; ``relations`` has the plans of subqueries. ``numbers`` are
    the casts that read one as a number."""

    told: Mapping[str, frozenset[str]]
    relations: Mapping[Node, Relation] = field(default_factory=dict)
    numbers: set[Node] = field(default_factory=set)
    _columns: dict[Attribute, Held] = field(default_factory=dict)
    _readings: dict[Attribute, frozenset[int] | None] = field(default_factory=dict)
    _found: list[tuple[Origin, str]] = field(default_factory=list)

    def uses(self, expression: Node, relation: Relation) -> list[tuple[Origin, str]]:
        """What an expression does with such text that it must not: whose, and in words. Remembers what columns it
        makes."""
        self._found = []
        if any(self.told.values()):
            held = self._held(expression, relation, {})
            if (
                "exprId" in expression.fields
                and expression.kind != "AttributeReference"
                and any(held.values())
            ):
                self._columns[expression.id] = held
                self._readings[expression.id] = self.readings_of(expression, relation)
        return list(dict.fromkeys(self._found))

    def columns(self, relation: Relation) -> frozenset[str]:
        """The columns of a relation that are such text, or lists of it; ``paid.price`` of structs."""
        return frozenset(
            f"{column.name}.{inside}" if inside else column.name
            for column in relation.output
            for inside, origins in self.of_column(column.id, relation).items()
            if origins
        )

    def held(self, expression: Node, relation: Relation) -> Held:
        """The numeric text in an expression that ``uses`` was asked about."""
        return self._held(expression, relation, {})

    def readings_of(self, expression: Node, relation: Relation) -> frozenset[int] | None:
        """The readings of inputs whose rows decide what an expression of one row is; None when others do, too."""
        found = frozenset[int]()
        for inner in expression.walk():
            if inner.kind in ("AggregateExpression", "WindowExpression") or inner.kind in _QUERIES:
                return None
            if inner.kind == "AttributeReference":
                readings = self.readings_of_column(inner.id, relation)
                if readings is None:
                    return None
                found |= readings
        return found

    def readings_of_column(self, attribute: Attribute, relation: Relation) -> frozenset[int] | None:
        origin = relation.origins.get(attribute)
        return frozenset({origin.reading}) if origin is not None else self._readings.get(attribute)

    def of_operator(self, node: Node, parts: Sequence[Relation], relation: Relation) -> None:
        """Columns that an operator makes without an expression."""
        if node.kind == "Union":
            for place, column in enumerate(relation.output):
                sides = [part.output[place].id for part in parts if place < len(part.output)]
                held = [self.of_column(side, part) for side, part in zip(sides, parts, strict=False)]
                self._columns[column.id] = _together(held)
                self._readings[column.id] = None
        elif node.kind == "Expand":  # rollup and its like: each row once for each list of columns
            for place, made in enumerate(node.expressions("output")):
                rows = [projected[place] for projected in node.lists("projections") if place < len(projected)]
                self._columns[made.id] = _together(self._held(each, parts[0], {}) for each in rows)
        elif node.kind == "Generate" and (generator := node.expression("generator")) is not None:
            held_inside = self._held(generator, relation, {})
            for column_node in node.expressions("generatorOutput"):
                self._columns[column_node.id] = {"": any_of(held_inside), **held_inside}

    def read_again(self, columns: Mapping[int, int], readings: Mapping[int, int]) -> None:
        """Columns of a common table expression where it is read: new ids to old ones, and old readings to new ones."""
        for new, old in columns.items():
            if old in self._columns:
                self._columns[new] = self._columns[old]
                own = self._readings.get(old)
                self._readings[new] = (
                    None if own is None else frozenset(readings.get(each, each) for each in own)
                )

    def _held(self, inner: Node, relation: Relation, common: Held) -> Held:
        if inner.kind == "With":  # BETWEEN and its like: what is said once and used several times
            defined = [child for child in inner.children if child.kind == "CommonExpressionDef"]
            common = _together(self._held(each.children[0], relation, common) for each in defined)
            others = [child for child in inner.children if child.kind != "CommonExpressionDef"]
            return _together([self._held(each, relation, common) for each in others])
        below = [
            {} if child.kind == "LambdaFunction" else self._held(child, relation, common)
            for child in inner.children
        ]
        for child in inner.children:
            if child.kind == "LambdaFunction":
                for variable in child.children[1:]:
                    self._columns[variable.id] = _together(below)
                self._held(child.children[0], relation, common)
        self._judge(inner, below, relation)
        return common if inner.kind == "CommonExpressionRef" else self._carried(inner, below, relation)

    def _carried(self, inner: Node, below: Sequence[Held], relation: Relation) -> Held:
        match inner.kind:
            case "AttributeReference" | "NamedLambdaVariable":
                return self.of_column(inner.id, relation)
            case "GetStructField":
                return {"": below[0].get(inner.name, frozenset())}
            case "CreateNamedStruct":
                names = [str(name.fields.get("value")) for name in inner.children[::2]]
                return {name: any_of(held) for name, held in zip(names, below[1::2], strict=False)}
            case "Cast":
                return below[0] if inner.type == "string" else {}
            case "If" | "CaseWhen":
                return _together(values_of(inner.kind, below))
            case "MaxBy" | "MaxMinByK" | "MinBy":
                return below[0]
            case kind if kind in _QUERIES:
                return self._of_query(inner)
            case kind:
                return _together(below) if kind in _KEEPS else {}

    def _of_query(self, inner: Node) -> Held:
        plan = inner.expression("plan")
        relation = self.relations.get(plan) if plan is not None else None
        if relation is None:
            return {}
        return _together(self.of_column(column.id, relation) for column in relation.output)

    def of_column(self, attribute: Attribute, relation: Relation) -> Held:
        if attribute in self._columns:
            return self._columns[attribute]
        origin = relation.origins.get(attribute)
        if origin is None:
            return {}
        texts = self.told.get(origin.input, frozenset())
        own = {(origin.input, origin.column)} if origin.column in texts else ()
        inside = origin.column + "."
        return {"": frozenset(own)} | {
            text.removeprefix(inside): frozenset({(origin.input, text)})
            for text in texts
            if text.startswith(inside)
        }

    def _judge(self, inner: Node, below: Sequence[Held], relation: Relation) -> None:
        words, used = "", frozenset[Origin]()
        if inner.kind == "Cast" and inner.type in _NUMBERS:
            words, used = f"is read as {inner.type}", below[0].get("", frozenset())
            if used:
                self.numbers.add(inner)
        elif inner.kind in _EQUALITIES:
            words, used = f"is compared as text ({_EQUALITIES[inner.kind]})", any_of(_together(below))
        elif inner.kind == "AggregateExpression" and inner.fields.get("isDistinct"):
            words = "is compared as text (distinct)"
            used = any_of(_together(self._held(each, relation, {}) for each in inner.children[0].children))
        elif inner.kind in _ORDERS or inner.kind in _BY:
            words = f"is compared as text ({_ORDERS.get(inner.kind) or _BY[inner.kind]})"
            compared = zip(inner.children, below, strict=True)
            for child, held in list(compared)[1:] if inner.kind in _BY else compared:
                used |= _ordering(child, held, relation)
        self._found += [(origin, words) for origin in sorted(used)]


def _ordering(expression: Node, held: Held, relation: Relation) -> frozenset[Origin]:
    """The numeric text that an order goes by: of a struct the fields up to those that no two rows share."""
    if expression.kind != "CreateNamedStruct":
        return any_of(held)
    used, known = frozenset[Origin](), list[Attribute]()
    for name, value in zip(expression.children[::2], expression.children[1::2], strict=True):
        if relation.is_unique(known):
            break
        used |= held.get(str(name.fields.get("value")), frozenset())
        attribute = root(value)
        known += [attribute] if attribute is not None else []
    return used


def _together(several: Iterable[Held]) -> Held:
    found: dict[str, frozenset[Origin]] = {}
    for held in several:
        for name, origins in held.items():
            found[name] = found.get(name, frozenset()) | origins
    return found


def any_of(held: Held) -> frozenset[Origin]:
    """All the numeric text that a value holds."""
    return frozenset[Origin]().union(*held.values())
