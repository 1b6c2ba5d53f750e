"""What a plan does with columns whose type Spark has not, and which are the text that Postgres prints
(``postgres_types``).

Where a type's values are equal though their texts differ, or are ordered otherwise than these, nothing may compare or
order them. What passes a text on is followed: through aliases, structs, lists, subqueries and set operations. Beside
the key of its row a text does no harm in groups: rows that have the key in common have one text. A cast to string says
that the text itself is meant. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from tailrace.projections.analysis.expressions import root, values_of
from tailrace.projections.analysis.meaning.postgres_types import TextType
from tailrace.projections.analysis.meaning.text_functions import CARRYING, TEXT_FUNCTIONS, pads_matter
from tailrace.projections.analysis.plan_tree import Node
from tailrace.projections.analysis.spread import Attribute, PlanRelation, Proof

TextColumn = tuple[str, str]
"""An input and its column; ``after.price`` of changes."""
Held = Mapping[str, frozenset[TextColumn]]
"""The text that a value is (under ""), or that its fields are, by their names."""


@dataclass(frozen=True, slots=True)
class Use:
    """What is done with such text that must not be: whose, in words, and the calls in the source that do it.
    ``warned``: it is right for the order that the definition may mean."""

    of: TextColumn
    type: TextType
    words: str
    calls: tuple[str, ...] = ()
    warned: bool = False


_EQUAL = {
    "EqualTo": "=", "EqualNullSafe": "<=>", "In": "in", "InSubquery": "in", "CollectSet": "collect_set", "Mode": "mode",
    "PivotFirst": "pivot",
    "HyperLogLogPlusPlus": "approx_count_distinct", "ArrayDistinct": "array_distinct",
    "ArrayContains": "array_contains", "ArrayPosition": "array_position", "ArrayRemove": "array_remove",
    "ArraysOverlap": "arrays_overlap", "ArrayUnion": "array_union", "ArrayIntersect": "array_intersect",
    "ArrayExcept": "array_except",
}  # fmt: skip
_ORDER = {
    "GreaterThan": ">", "GreaterThanOrEqual": ">=", "LessThan": "<", "LessThanOrEqual": "<=", "Max": "max",
    "Min": "min", "SortOrder": "orderBy", "Greatest": "greatest", "Least": "least", "SortArray": "sort_array",
    "ArrayMax": "array_max", "ArrayMin": "array_min",
}  # fmt: skip
_ORDERED_BY = {"MaxBy": "max_by", "MaxMinByK": "max_by", "MinBy": "min_by"}
_PASSES_ON = frozenset({
    "AggregateExpression", "Alias", "AnyValue", "ArrayDistinct", "ArrayFilter", "ArrayMax", "ArrayMin", "ArraySort",
    "Coalesce", "CollectList", "CollectSet", "CreateArray", "ElementAt", "Explode", "First", "Flatten", "Get",
    "GetArrayItem", "Greatest", "IfNull", "Inline", "KnownNotNull", "KnownNullable", "Lag", "Last", "Lead", "Least",
    "Max", "Min",
    "Mode", "NthValue", "NullIf", "NullIfResult", "Nvl", "Nvl2", "PosExplode", "Reverse", "Slice", "SortArray",
    "SortOrder", "StringTrim", "WindowExpression",
})  # fmt: skip
"""What gives one of the values that it is given, or a list of them."""
_OF_ELEMENTS = frozenset({
    "ArrayMax", "ArrayMin", "ElementAt", "Explode", "Get", "GetArrayItem", "Inline", "PosExplode", "SortArray",
})  # fmt: skip
"""What looks at the elements of a list, and not at the list."""
_CONSTANTS = frozenset(
    {"EqualTo", "EqualNullSafe", "In", "NullIf", "ArrayContains", "ArrayPosition", "ArrayRemove"}
)
_WITH_OUTER_COLUMNS = frozenset({"Exists", "LateralSubquery", "ListQuery", "ScalarSubquery"})
"""Subqueries, whose children are the columns of the rows outside that they use."""
_GROUPING = {
    "Aggregate": ("groupingExpressions", "groupBy"),
    "Window": ("partitionSpec", "partitionBy"),
    "Deduplicate": ("keys", "dropDuplicates"),
}
_GROUPING_CALLS = {
    "groupBy": ("groupBy", "groupby", "rollup", "cube", "pivot"), "partitionBy": ("partitionBy",),
    "distinct": ("distinct", "dropDuplicates", "drop_duplicates"), "except": ("subtract", "exceptAll"),
    "dropDuplicates": ("dropDuplicates", "drop_duplicates"), "intersect": ("intersect", "intersectAll"),
}  # fmt: skip


@dataclass(slots=True)
class TypeUses:
    """``inputs``: the columns of each input that are such text, with their types; ``keys``: sets of columns that none
    of its rows share. ``numbers`` are the casts that read one as a number."""

    inputs: Mapping[str, Mapping[str, TextType]]
    keys: Mapping[str, Sequence[Sequence[str]]]
    proof: Proof
    numbers: set[Node] = field(default_factory=set)
    _columns: dict[Attribute, Held] = field(default_factory=dict)
    _found: list[Use] = field(default_factory=list)

    def uses(self, node: Node, below: Sequence[PlanRelation], relation: PlanRelation) -> list[Use]:
        """What an operator does with such text that it must not; the columns that it makes are remembered.
        ``relation`` is all that is ``below`` it."""
        self._found = []
        if any(self.inputs.values()):
            for _, expression, column in node.columns_made():
                held = self._text_of(expression, relation, {})
                if column is not None:
                    self._columns[column] = _merge([self._columns.get(column, {}), held])
            for origin, words, calls in self._compared_rows(node, below):
                self._find(origin, words, calls, fails=not self._type(origin).equal)
            for new, old in self.proof.renames(node):
                self._columns[new] = _merge([self._columns.get(new, {}), self._text_of_column(old, relation)])
            if node.kind == "Generate" and (generator := node.expression("generator")) is not None:
                held = self._text_of(generator, relation, {})
                for made in node.expressions("generatorOutput"):
                    self._columns[made.id] = {"": _any_of(held), **held}
        return list(dict.fromkeys(self._found))

    def _type(self, origin: TextColumn) -> TextType:
        return self.inputs[origin[0]][origin[1]]

    def _find(
        self,
        origin: TextColumn,
        words: str,
        calls: tuple[str, ...] = (),
        *,
        fails: bool,
        warned: bool = False,
    ) -> None:
        if fails:
            self._found.append(Use(origin, self._type(origin), words, calls, warned))

    def columns(self, relation: PlanRelation) -> dict[str, TextType]:
        """The columns of a relation that are such text, or lists of it; ``paid.price`` of structs. Of several types
        one that allows least."""
        return {
            f"{column.name}.{inside}" if inside else column.name: min(
                map(self._type, origins), key=TextType.allows
            )
            for column in relation.output
            for inside, origins in self._text_of_column(column.id, relation).items()
            if origins
        }

    def _text_of(self, inner: Node, relation: PlanRelation, common: Held) -> Held:
        """The text that an expression is. ``common``: what BETWEEN and its like say once and use twice."""
        if inner.kind == "With":
            defined = [child for child in inner.children if child.kind == "CommonExpressionDef"]
            common = _merge(self._text_of(each.children[0], relation, common) for each in defined)
            others = [child for child in inner.children if child.kind != "CommonExpressionDef"]
            return _merge([self._text_of(each, relation, common) for each in others])
        lambdas = [child for child in inner.children if child.kind == "LambdaFunction"]
        below = [
            {} if child in lambdas else self._text_of(child, relation, common) for child in inner.children
        ]
        for each in lambdas:
            for variable in each.children[1:]:
                self._columns[variable.id] = self._elements(_merge(below))
            self._text_of(each.children[0], relation, common)
        self._judge(inner, below, relation)
        return common if inner.kind == "CommonExpressionRef" else self._passed_text(inner, below, relation)

    def _passed_text(self, inner: Node, below: Sequence[Held], relation: PlanRelation) -> Held:
        match inner.kind:
            case "AttributeReference" | "NamedLambdaVariable":
                return self._text_of_column(inner.id, relation)
            case "GetStructField":
                return {"": below[0].get(inner.name, frozenset())}
            case "CreateNamedStruct":
                names = [str(name.fields.get("value")) for name in inner.children[::2]]
                return {name: _any_of(held) for name, held in zip(names, below[1::2], strict=False)}
            case "Cast":
                held = below[0].get("", frozenset())
                if inner.type == "string":  # it is the text that is meant
                    return {"": frozenset(each for each in held if self._type(each).kept_by_cast)}
                return below[0] if inner.type in ("array", "map", "struct") else {}
            case "If" | "CaseWhen":
                return _merge(values_of(inner.kind, below))
            case "MaxBy" | "MaxMinByK" | "MinBy":
                return below[0]
            case "ListQuery" | "ScalarSubquery":
                plan = inner.expression("plan")
                query = self.proof.relations.get(plan) if plan is not None else None
                return _merge(self._text_of_column(each.id, query) for each in query.output) if query else {}
            case kind:
                found = _merge(below) if kind in _PASSES_ON else {}
                return self._elements(found) if kind in _OF_ELEMENTS - {"SortArray"} else found

    def _elements(self, held: Held) -> Held:
        """Of lists of values that are typed no text is left in their elements."""
        return {
            name: frozenset(each for each in origins if not self._type(each).of_elements)
            for name, origins in held.items()
        }

    def _text_of_column(self, attribute: Attribute, relation: PlanRelation) -> Held:
        if attribute in self._columns:
            return self._columns[attribute]
        origin = relation.origins.get(attribute)
        if origin is None:
            return {}
        texts = self.inputs.get(origin.input, {})
        inside = origin.column + "."
        found = {text.removeprefix(inside): text for text in texts if text.startswith(inside)}
        found |= {"": origin.column} if origin.column in texts else {}
        return {name: frozenset({(origin.input, text)}) for name, text in found.items()}

    def _judge(self, inner: Node, below: Sequence[Held], relation: PlanRelation) -> None:
        every = _any_of(_merge(below))
        if inner.kind == "AggregateExpression" and inner.fields.get("isDistinct"):
            every = _any_of(_merge(self._text_of(each, relation, {}) for each in inner.children[0].children))
            self._judge_equality(every, "is compared as text (distinct)")
        elif not every:
            return
        elif inner.kind == "Cast":
            self._judge_cast(inner, below[0].get("", frozenset()))
        elif inner.kind in _WITH_OUTER_COLUMNS:
            self._judge_equality(every, "is compared with a subquery's rows")
        elif inner.kind in _EQUAL:
            self._judge_equality(every, f"is compared as text ({_EQUAL[inner.kind]})")
            self._judge_constants(inner, every)
            self._judge_blanks(every)
        elif inner.kind in _ORDER or inner.kind in _ORDERED_BY:
            self._judge_order(inner, below, relation)
            self._judge_constants(inner, every)
            self._judge_blanks(every)
        else:
            self._judge_function(inner, every)

    def _judge_cast(self, inner: Node, used: frozenset[TextColumn]) -> None:
        name = inner.type.partition("(")[0]
        for origin in sorted(used) if name == "string" else ():
            self._find(
                origin,
                f"is cast to text, {self._type(origin).cast_text}",
                fails=bool(self._type(origin).cast_text),
            )
        for origin in sorted(used) if inner.type not in ("string", "array", "map", "struct") else ():
            if not self._type(origin).may_be_read_as(name):
                self.numbers.add(inner)
                self._find(origin, f"is read as {inner.type}", fails=True)

    def _judge_equality(self, used: Iterable[TextColumn], words: str) -> None:
        for origin in sorted(used):
            self._find(origin, words, fails=not self._type(origin).equal)

    def _judge_order(self, inner: Node, below: Sequence[Held], relation: PlanRelation) -> None:
        words = _ORDER.get(inner.kind) or _ORDERED_BY[inner.kind]
        compared = list(zip(inner.children, below, strict=True))
        used = frozenset[TextColumn]()
        for child, held in compared[1:] if inner.kind in _ORDERED_BY else compared:
            used |= _ordering(child, held, relation)
        for origin in sorted(used):
            kind = self._type(origin)
            if not (kind.of_elements and inner.kind in _OF_ELEMENTS):
                how = "ordered by its bytes" if kind.order == "warned" else "compared as text"
                fails = kind.order != "as text"
                self._find(origin, f"is {how} ({words})", fails=fails, warned=kind.order == "warned")

    def _judge_constants(self, inner: Node, used: frozenset[TextColumn]) -> None:
        """A constant that a value is compared with is in the form of its text."""
        constants = [
            str(each.fields.get("value"))
            for each in inner.children
            if each.kind == "Literal"
            and each.type.startswith("string")
            and each.fields.get("value") is not None
        ]
        for origin in sorted(used) if inner.kind in _CONSTANTS or len(inner.children) == 2 else ():
            kind = self._type(origin)
            fails = kind.equal and not all(map(kind.is_written_so, constants))
            self._find(origin, "is compared with a constant that Postgres would print otherwise", fails=fails)

    def _judge_blanks(self, used: frozenset[TextColumn]) -> None:
        """Beside char(n) Postgres takes a varchar for one, too."""
        padded = any(self._type(each).padded for each in used)
        for origin in sorted(used):
            words = "is compared with character(n), where Postgres leaves out blanks at its end"
            self._find(origin, words, fails=padded and self._type(origin).varying, warned=True)

    def _judge_function(self, inner: Node, used: frozenset[TextColumn]) -> None:
        if inner.kind in CARRYING or inner.kind in _PASSES_ON:
            return
        for origin in sorted(used):
            kind = self._type(origin)
            if kind.padded:
                self._find(
                    origin, f"is used by {_name(inner)}, which sees no padding here", fails=pads_matter(inner)
                )
            if not kind.is_text:
                fails = not kind.functions or inner.kind not in TEXT_FUNCTIONS
                self._find(origin, f"is used by {_name(inner)}", fails=fails)

    def _compared_rows(
        self, node: Node, below: Sequence[PlanRelation]
    ) -> Iterator[tuple[TextColumn, str, tuple[str, ...]]]:
        """The text by which an operator tells rows apart."""
        field, words = _GROUPING.get(node.kind, ("", node.kind.lower()))
        if node.kind in ("Except", "Intersect"):
            origins = self._compared_columns(*below)
        elif node.kind == "Distinct":
            origins = self._grouped_columns(
                [(c.id, self._text_of_column(c.id, below[0])) for c in below[0].output], below[0]
            )
        elif field:
            compared = node.expressions(field)
            origins = self._grouped_columns(
                [(root(each), self._text_of(each, below[0], {})) for each in compared], below[0]
            )
            if node.kind == "Deduplicate" and len(compared) == len(below[0].output):
                words = "distinct"
        else:
            return
        for origin in origins:
            yield origin, f"is compared as text ({words})", _GROUPING_CALLS[words]

    def _grouped_columns(
        self, compared: Sequence[tuple[Attribute | None, Held]], relation: PlanRelation
    ) -> Iterator[TextColumn]:
        known = [attribute for attribute, _ in compared if attribute is not None]
        with_key = relation.readings_with_key(known, self.keys)
        for attribute, held in () if relation.is_unique(known) else compared:
            origin = relation.origins.get(attribute) if attribute is not None else None
            if origin is None or origin.reading not in with_key:
                yield from sorted(_any_of(held))

    def _compared_columns(self, left: PlanRelation, right: PlanRelation) -> Iterator[TextColumn]:
        """Text that is compared with that of other rows. Rows of one input that have its key in common are the same."""
        sides = [(one.id, other.id) for one, other in zip(left.output, right.output, strict=False)]
        same = {
            one
            for one, other in sides
            if (mine := left.origins.get(one))
            and (theirs := right.origins.get(other))
            and (mine.input, mine.column) == (theirs.input, theirs.column)
        }
        with_key = left.readings_with_key(same, self.keys)
        for one, other in sides:
            if one not in same or left.origins[one].reading not in with_key:
                yield from sorted(
                    _any_of(self._text_of_column(one, left)) | _any_of(self._text_of_column(other, right))
                )


def _name(inner: Node) -> str:
    """An expression in the words of the source, about."""
    return f"{inner.kind.lower()}()"


def _ordering(expression: Node, held: Held, relation: PlanRelation) -> frozenset[TextColumn]:
    """The text that an order goes by: of a struct the fields up to those that no two rows share."""
    if expression.kind != "CreateNamedStruct":
        return _any_of(held)
    used, known = frozenset[TextColumn](), list[Attribute]()
    for name, value in zip(expression.children[::2], expression.children[1::2], strict=True):
        if relation.is_unique(known):
            break
        used |= held.get(str(name.fields.get("value")), frozenset())
        attribute = root(value)
        known += [attribute] if attribute is not None else []
    return used


def _merge(several: Iterable[Held]) -> Held:
    found: dict[str, frozenset[TextColumn]] = {}
    for held in several:
        for name, origins in held.items():
            found[name] = found.get(name, frozenset()) | origins
    return found


def _any_of(held: Held) -> frozenset[TextColumn]:
    """All the text that a value holds."""
    return frozenset[TextColumn]().union(*held.values())
