"""Is a projection local in its key? Proved on the analysed plan of its function, from its inputs up.

Every aggregate, window, distinct, set operation and join must keep rows of different keys apart, and the key of the
result must be the value that the inputs' ``affects`` name. What cannot be proved counts as not local, and is named in
the user's words. Pure: it is given a plan and what is declared, and knows neither Spark nor data.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from tailrace.projections.analysis.expressions import (
    coalesced_attributes,
    column_holding,
    equalities,
    non_null_attributes,
    root,
    subqueries,
)
from tailrace.projections.analysis.locality.computed_attributes import ComputedAttributes
from tailrace.projections.analysis.locality.input_rows import rows_of_input
from tailrace.projections.analysis.locality.joins import (
    INNER,
    JoinSides,
    join_in_any_order,
    join_rows,
    refusal_of,
)
from tailrace.projections.analysis.locality.obstacle_words import (
    UNPROVABLE,
    computed_key_hint,
    foreign_key,
    group_words,
    key_of,
    name_list,
    window_hint,
)
from tailrace.projections.analysis.locality.set_operations import rows_of_comparison, rows_of_union
from tailrace.projections.analysis.plan_tree import Node
from tailrace.projections.analysis.spread import (
    AllRows,
    Attribute,
    InputColumn,
    InputFacts,
    Obstacle,
    OutputColumn,
    PlanRelation,
    Proof,
    Refusal,
    Rows,
    Spread,
    UnknownRows,
    column_words,
    joint,
    narrow,
    unique_of_join,
)
from tailrace.projections.compute.scalar_subqueries import MARK
from tailrace.projections.definition.lineage import Lineage
from tailrace.projections.definition.model import KeyColumn

_PASSING = frozenset({
    "CollectMetrics", "EventTimeWatermark", "RebalancePartitions", "Repartition", "RepartitionByExpression",
    "ResolvedHint", "Sort", "SubqueryAlias", "View",
})  # fmt: skip
_CONSTANT = frozenset({"EmptyRelation", "LocalRelation", "LogicalRDD", "OneRowRelation", "Range"})
_LIMITS = frozenset({"GlobalLimit", "LimitAll", "LocalLimit", "Offset", "Tail"})


def prove(plan: Node, lineage: Lineage, inputs: Mapping[str, InputFacts]) -> Proof:
    """Walk a plan whose inputs are marked (``MARK``). A scalar subquery that names no column around it is taken for a
    constant: a refresh by keys gives it the value that it has over all rows."""
    walk = _Walk(lineage, inputs, ComputedAttributes(inputs))
    result = walk.relation(plan)
    walk.conclude(plan, result)
    return walk.proof


@dataclass(frozen=True, slots=True)
class _Defined:
    """A common table expression: its ``plan``, the readings of inputs in it, the names of these inputs, and what speaks
    against following keys where it is read, but not within a subquery that sees all rows."""

    plan: Node
    relation: PlanRelation
    readings: Sequence[int]
    inputs: frozenset[str]
    obstacles: Sequence[Obstacle]


@dataclass(slots=True)
class _Walk:
    lineage: Lineage
    inputs: Mapping[str, InputFacts]
    computed: ComputedAttributes
    proof: Proof = field(default_factory=Proof)
    _defined: dict[int, _Defined] = field(default_factory=dict)
    _readings: int = 0
    _sees_all: bool = False
    """Within a subquery whose inputs are never restricted."""

    def relation(self, node: Node) -> PlanRelation:
        found = self._relation(node)
        self._look_into_subqueries(node, found)
        if found.rows != UnknownRows() and any(obstacle.node is node for obstacle in self.proof.obstacles):
            found = found.with_rows(UnknownRows())
        self.proof.relations[node] = found
        return found

    def _relation(self, node: Node) -> PlanRelation:
        if node.kind == "SubqueryAlias" and (name := _marked_input(node)) in self.inputs:
            return self._input(node, self.inputs[name])
        if node.kind in _PASSING:
            return self.relation(node.children[0])
        if node.kind in _CONSTANT:
            return PlanRelation(_columns(node.expressions("output")), AllRows())
        if node.kind in _LIMITS:
            return self._limit(node)
        rule = _RULES.get(node.kind)
        return rule(self, node) if rule else self._unknown_node(node)

    def _input(self, node: Node, facts: InputFacts) -> PlanRelation:
        """A reading of an input: its rows are spread as its lineage says."""
        below = self.relation(node.children[0])  # casts that the declaration asks for: not of the function
        for inner in node.children[0].walk():
            self.proof.relations.pop(inner, None)
        self._readings += 1
        if not self._sees_all:
            self.proof.inputs.add(facts.name)
        places: dict[str, Attribute] = {column.name: column.id for column in below.output}
        if facts.nested and "key" in places:
            row = next(column.id for column in below.output if column.name == "key")
            named = {name for path in self.lineage.paths for name in self.lineage.columns_of(path)}
            places |= {name: (row, name) for name in named}
        origins = {
            attribute: InputColumn(self._readings, facts.name, name) for name, attribute in places.items()
        }
        unique = frozenset(
            frozenset(places[name] for name in key)
            for key in facts.unique
            if all(name in places for name in key)
        )
        computed = self.computed.of_reading(self._readings, facts)
        origins |= {
            number: InputColumn(self._readings, facts.name, column_words(each))
            for each, number in computed.items()
        }
        held: dict[KeyColumn, Attribute] = dict(places.items()) | dict(computed.items())
        held |= {each: places[made.column] for each, made in facts.computed.items() if made.column in places}
        rows: Rows = AllRows()
        if not self._sees_all:
            rows = self._rows_or_refusal(node, rows_of_input(self.lineage, facts, held))
        return PlanRelation(below.output, rows, origins, unique)

    def _limit(self, node: Node) -> PlanRelation:
        below = self.relation(node.children[0])
        if not isinstance(below.rows, AllRows):
            self._refuse(
                node, below, "it takes a number of rows of the whole result, not of each key",
                "number the rows of each key instead: row_number() over a window partitioned by the key",
            )  # fmt: skip
        return below

    def _unknown_node(self, node: Node) -> PlanRelation:
        below = [self.relation(child) for child in node.children]
        output = _columns(node.expressions("output")) or (below[0].output if below else ())
        if below and all(isinstance(each.rows, AllRows) for each in below):
            return PlanRelation(output, AllRows())
        if not any(isinstance(each.rows, UnknownRows) for each in below):
            words, hint = UNPROVABLE.get(node.kind, (
                f"it goes through {node.kind}, of which nobody knows whether it keeps keys apart",
                "do it otherwise, or say trust=True when you know that it does",
            ))  # fmt: skip
            self.proof.obstacles.append(Obstacle(node, words, hint))
        return PlanRelation(output, UnknownRows())

    def _project(self, node: Node) -> PlanRelation:
        return self._named_columns(self.relation(node.children[0]), node.expressions("projectList"))

    def _named_columns(self, below: PlanRelation, expressions: Sequence[Node]) -> PlanRelation:
        """A node whose columns are these expressions of the one below."""
        output = _columns(expressions)
        held_by = self.computed.held_by(below)
        roots = {
            column.id: held
            for column, expression in zip(output, expressions, strict=True)
            if (held := held_by(expression)) is not None
        }
        found = below.rename(output, roots)
        for column, expression in zip(output, expressions, strict=True):
            first_of = coalesced_attributes(expression)
            if first_of:
                found = found.with_rows(joint(below.rows, found.rows, first_of, column.id))
        return found

    def _filter(self, node: Node) -> PlanRelation:
        (child,) = node.children
        condition = node.expression("condition")
        if _is_inner_join(child):
            below = self._inner_joins(child, [child.expression("condition"), condition])
            self._look_into_subqueries(child, below)
            self.proof.relations[child] = below
            return below
        below = self.relation(child)
        return self._narrowed(below, [condition])

    def _narrowed(self, below: PlanRelation, conditions: Iterable[Node | None]) -> PlanRelation:
        """The rows below that fulfil these conditions."""
        rows, held_by = below.rows, self.computed.held_by(below)
        if not isinstance(rows, Spread):
            return below
        known = {held for each in conditions for held in non_null_attributes(each, held_by)}
        return below.with_rows(narrow(rows, known))

    def _aggregate(self, node: Node) -> PlanRelation:
        below = self.relation(node.children[0])
        grouping = node.expressions("groupingExpressions")
        expressions = node.expressions("aggregateExpressions")
        named = self._named_columns(below, expressions)
        grouped = [*map(self.computed.held_by(below), grouping)]
        held = [each for each in grouped if each is not None]
        told = [column_holding(each, expressions) for each in self._telling(below, grouping)]
        unique = (
            frozenset() if None in told else frozenset({frozenset(each for each in told if each is not None)})
        )
        rows = self._kept_apart(node, below, held, group_words(grouping), computed_key_hint(below, grouping))
        if isinstance(rows, Spread):
            rows = named.rows
        return PlanRelation(named.output, rows, named.origins, unique)

    def _telling(self, below: PlanRelation, grouping: Sequence[Node]) -> list[Node]:
        """Those of the grouping expressions that tell groups apart: where a row's key is among them, its other columns
        are not needed."""
        keys = {name: facts.unique for name, facts in self.inputs.items()}
        keyed = below.readings_with_key([held for held in map(root, grouping) if held is not None], keys)

        def is_told(expression: Node) -> bool:
            held = root(expression)
            origin = below.origins.get(held) if held is not None else None
            if origin is None or origin.reading not in keyed:
                return False
            return all(origin.column not in key for key in keys[origin.input])

        return [each for each in grouping if not is_told(each)]

    def _distinct(self, node: Node) -> PlanRelation:
        below = self.relation(node.children[0])
        everything = [column.id for column in below.output]
        rows = self._kept_apart(node, below, everything, "distinct compares rows without their key")
        return PlanRelation(below.output, rows, below.origins, below.unique | {frozenset(everything)})

    def _deduplicate(self, node: Node) -> PlanRelation:
        below = self.relation(node.children[0])
        keys = node.expressions("keys")
        held = [each for each in map(root, keys) if each is not None]
        everything = {column.id for column in below.output} <= set(held)  # distinct() of a DataFrame
        words = (
            "distinct compares rows without their key"
            if everything
            else f"dropDuplicates({name_list(keys)}) compares rows of different keys"
        )
        rows = self._kept_apart(node, below, held, words)
        return PlanRelation(below.output, rows, below.origins, below.unique | {frozenset(held)})

    def _window(self, node: Node) -> PlanRelation:
        below = self.relation(node.children[0])
        added = node.expressions("windowExpressions")
        partition = node.expressions("partitionSpec")
        held = [each for each in map(self.computed.held_by(below), partition) if each is not None]
        words = (
            f"a window partitioned by {name_list(partition)} spans rows of different keys"
            if partition
            else "a window without partitionBy spans all rows"
        )
        rows = self._kept_apart(node, below, held, words, window_hint(self.lineage, below, partition, held))
        return PlanRelation((*below.output, *_columns(added)), rows, below.origins, below.unique)

    def _kept_apart(
        self, node: Node, below: PlanRelation, held: Iterable[Attribute], words: str, hint: str = ""
    ) -> Rows:
        """The rows below, when these attributes tell their keys apart."""
        rows, attributes = below.rows, frozenset(held)
        attributes |= self.computed.told(below, attributes)
        if isinstance(rows, Spread) and rows.restrict_to(attributes) is None:
            if all(rows.holders[name] & attributes for name in rows.domain.columns):
                words += ": it is NULL in rows that an outer join keeps"
            self._refuse(
                node, below, words,
                hint or f"carry the key along: {key_of(self.lineage, below)} has to be among these columns",
            )  # fmt: skip
            return UnknownRows()
        return rows

    def _generate(self, node: Node) -> PlanRelation:
        """Rows of one row: explode and its like."""
        below = self.relation(node.children[0])
        output = (*below.output, *_columns(node.expressions("generatorOutput")))
        generator = node.expression("generator")
        if generator is not None and "UDTF" in generator.kind and not isinstance(below.rows, AllRows):
            self._refuse(node, below, "a table function in Python may mix rows of different keys",
                         "use a function of one row, or say trust=True")  # fmt: skip
        return PlanRelation(output, below.rows, below.origins)

    def _expand(self, node: Node) -> PlanRelation:
        """Several rows for each row: unpivot, rollup and cube. Columns that go on keep their ids."""
        below = self.relation(node.children[0])
        output = _columns(node.expressions("output"))
        before = {column.id for column in below.output}
        return PlanRelation(output, below.rename(output, {
            column.id: column.id for column in output if column.id in before
        }).rows)  # fmt: skip

    def _union(self, node: Node) -> PlanRelation:
        """Columns of one place belong together."""
        parts = [self.relation(child) for child in node.children]
        return PlanRelation(parts[0].output, self._rows_or_refusal(node, rows_of_union(parts)))

    def _set_operation(self, node: Node) -> PlanRelation:
        """Intersect and except compare whole rows."""
        left, right = (self.relation(child) for child in node.children)
        rows = self._rows_or_refusal(node, rows_of_comparison(node.kind, left, right))
        if isinstance(rows, UnknownRows):
            return PlanRelation(left.output, rows)
        everything = frozenset({frozenset(column.id for column in left.output)})
        unique = left.unique if node.fields.get("isAll") else left.unique | everything
        return PlanRelation(left.output, rows, left.origins, unique)

    def _rows_or_refusal(self, node: Node, found: Rows | Refusal) -> Rows:
        if not isinstance(found, tuple):
            return found
        self.proof.obstacles.append(Obstacle(node, *found))
        return UnknownRows()

    def _join(self, node: Node) -> PlanRelation:
        if _is_inner_join(node):
            return self._inner_joins(node, [node.expression("condition")])
        left, right = (self.relation(child) for child in node.children)
        kind = node.object_name("joinType")
        sides = self._sides(left, right, [node.expression("condition")])
        rows = self._rows_or_refusal(node, join_rows(kind, sides) or refusal_of(kind, sides))
        if kind in ("LeftSemi", "LeftAnti") or kind.startswith("ExistenceJoin"):
            return PlanRelation(left.output, rows, left.origins, left.unique)
        keeps = {"LeftOuter": "left", "RightOuter": "right", "FullOuter": "both"}.get(kind, "none")
        joined = _beside(left, right, sides, keeps).with_rows(rows)
        # Of rows that match nothing the columns are NULL, but not what is computed of them: coalesce(NULL, 'none').
        gone = {"left": right.computed, "right": left.computed, "both": left.computed | right.computed}
        return joined.without(gone.get(keeps, frozenset()))

    def _inner_joins(self, node: Node, conditions: Sequence[Node | None]) -> PlanRelation:
        """An inner join and those below it: all of their conditions hold together."""
        tree = _InnerJoins()
        whole = self._gather(node, conditions, tree)
        rows = join_in_any_order(tree.parts, lambda left, right: self._sides(left, right, tree.conditions))
        whole = whole.with_rows(self._rows_or_refusal(node, rows))
        for below in tree.nodes:
            self._look_into_subqueries(below, whole)
        return self._narrowed(whole, tree.conditions)

    def _gather(self, node: Node, conditions: Sequence[Node | None], tree: _InnerJoins) -> PlanRelation:
        """The columns of an inner join; what it joins goes into the tree."""
        below = []
        for child in node.children:
            join = child.children[0] if child.kind == "Filter" else child
            if not _is_inner_join(join):
                below.append(self.relation(child))
                tree.parts.append(below[-1])
                continue
            nodes = [join] if join is child else [join, child]
            below.append(self._gather(join, [each.expression("condition") for each in nodes], tree))
            tree.nodes += nodes
            self.proof.relations |= dict.fromkeys(nodes, below[-1])
        tree.conditions += conditions
        left, right = below
        return _beside(left, right, self._sides(left, right, conditions), "none")

    def _sides(self, left: PlanRelation, right: PlanRelation, conditions: Iterable[Node | None]) -> JoinSides:
        held_by = self.computed.held_by(left, right)
        matched = [each for condition in conditions for each in equalities(condition, held_by)]
        return JoinSides.of(left, right, [*matched, *self.computed.equal_constants(left, right)])

    def _with_cte(self, node: Node) -> PlanRelation:
        for defined in node.expressions("cteDefs"):
            before, around = self._readings, self.proof.inputs
            known, self.proof.inputs = len(self.proof.obstacles), set()
            found = self.relation(defined.children[0])
            self._defined[int(defined.fields["id"])] = _Defined(
                defined.children[0], found, range(before + 1, self._readings + 1),
                frozenset(self.proof.inputs), self.proof.obstacles[known:],
            )  # fmt: skip
            del self.proof.obstacles[known:]
            self.proof.inputs = around
        plan = node.expression("plan")
        return self.relation(plan if plan is not None else node.children[-1])

    def _cte_reference(self, node: Node) -> PlanRelation:
        """Columns have new ids, place by place."""
        defined = self._defined.get(int(node.fields.get("cteId", -1)))
        output = _columns(node.expressions("output"))
        if defined is None or len(output) != len(defined.relation.output):
            return self._unknown_node(node)
        if self._sees_all:
            defined = self._seen_whole(defined)
        self.proof.inputs |= defined.inputs
        self.proof.obstacles += [each for each in defined.obstacles if each not in self.proof.obstacles]
        columns = {new.id: old.id for new, old in zip(output, defined.relation.output, strict=True)}
        readings = {reading: self._readings + place for place, reading in enumerate(defined.readings, 1)}
        self._readings += len(readings)
        self.proof.again[node] = columns
        found = defined.relation.rename(output, columns)
        found = self.computed.renumbered(found, readings)
        origins = {
            held: replace(origin, reading=readings[origin.reading]) for held, origin in found.origins.items()
        }
        return replace(found, origins=origins)

    def _seen_whole(self, defined: _Defined) -> _Defined:
        """A common table expression within a subquery whose inputs are never restricted."""
        walk = _Walk(self.lineage, self.inputs, ComputedAttributes(self.inputs), _defined=self._defined)
        walk._sees_all = True
        found = defined.relation.with_rows(walk.relation(defined.plan).rows)
        return replace(defined, relation=found, inputs=frozenset(), obstacles=walk.proof.obstacles)

    def _look_into_subqueries(self, node: Node, found: PlanRelation) -> None:
        for expression in node.all_expressions():
            for query, plan in subqueries(expression):
                if query.kind == "ScalarSubquery" and not query.children:  # those are the columns around it
                    around, self._sees_all = self._sees_all, True
                    self.relation(plan)
                    self._sees_all = around
                    continue
                inner = self.relation(plan)
                if not isinstance(inner.rows, AllRows | UnknownRows) and not isinstance(
                    found.rows, UnknownRows
                ):
                    self._refuse(node, found, "a subquery looks at rows of all keys",
                                 "write it as a join on the key")  # fmt: skip

    def _refuse(self, node: Node, below: PlanRelation, what: str, hint: str) -> None:
        if not isinstance(below.rows, UnknownRows):
            self.proof.obstacles.append(Obstacle(node, what, hint))

    def conclude(self, plan: Node, result: PlanRelation) -> None:
        """The columns of the result that are named like the key hold what the inputs' ``affects`` say."""
        if isinstance(result.rows, UnknownRows):
            return
        if isinstance(result.rows, AllRows):
            self.proof.obstacles.append(Obstacle(plan, "its result is made of inputs without affects alone",
                                                 "say what the inputs affect"))  # fmt: skip
            return
        places = {column.name: column for column in result.output}
        for name in self.lineage.key:
            column = places.get(name)
            if column is None:
                continue  # a result without its key is refused before
            if result.rows.domain.of:
                self._refuse(
                    plan, result, f"its key {name} is never joined with {result.rows.domain.of}, through which"
                    " its rows are found", f"join {result.rows.domain.of} and take the key from there",
                )  # fmt: skip
                return
            if not result.rows.certain(name, column.id):
                what, hint = foreign_key(self.lineage, result, column)
                self.proof.obstacles.append(Obstacle(plan, what, hint))
        self.proof.never_null = not self.proof.obstacles and set(self.lineage.key) <= result.rows.never_null


@dataclass(slots=True)
class _InnerJoins:
    """Inner joins below each other: what they join, their ``nodes`` without the topmost, and all their conditions."""

    parts: list[PlanRelation] = field(default_factory=list)
    nodes: list[Node] = field(default_factory=list)
    conditions: list[Node | None] = field(default_factory=list)


def _is_inner_join(node: Node) -> bool:
    return node.kind == "Join" and node.object_name("joinType") in INNER


def _beside(left: PlanRelation, right: PlanRelation, sides: JoinSides, keeps: str) -> PlanRelation:
    """The columns of two relations in one row."""
    return PlanRelation(
        (*left.output, *right.output),
        UnknownRows(),
        {**left.origins, **right.origins},
        unique_of_join(left, right, sides.pairs(), keeps=keeps),
    )


def _marked_input(node: Node) -> str:
    """The input that an alias marks; "" for an alias of the user's."""
    identifier = node.fields.get("identifier")
    name = str(identifier.get("name", "")) if isinstance(identifier, dict) else ""
    return name.removeprefix(MARK) if name.startswith(MARK) else ""


def _columns(expressions: Iterable[Node]) -> tuple[OutputColumn, ...]:
    return tuple(OutputColumn(each.id, each.name) for each in expressions if "exprId" in each.fields)


_Rule = Callable[[_Walk, Node], PlanRelation]
_RULES: dict[str, _Rule] = {
    "Aggregate": _Walk._aggregate,
    "CTERelationRef": _Walk._cte_reference,
    "Deduplicate": _Walk._deduplicate,
    "Distinct": _Walk._distinct,
    "Except": _Walk._set_operation,
    "Expand": _Walk._expand,
    "Filter": _Walk._filter,
    "Generate": _Walk._generate,
    "Intersect": _Walk._set_operation,
    "Join": _Walk._join,
    "Project": _Walk._project,
    "Union": _Walk._union,
    "Window": _Walk._window,
    "WithCTE": _Walk._with_cte,
}
