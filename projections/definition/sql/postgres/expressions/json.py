r"""``->``, ``->>`` and ``#>>``: a value inside of JSON, as text.

Spark reads a number of JSON as a double and loses digits and zeros, and it does not tell a text from an object that is
printed. So the text of the JSON is marked first: each string begins with U+E003, and each number becomes a string that
begins with U+E002. What is found then says what it was.
"""

from __future__ import annotations

from collections.abc import Sequence

from sqlglot import exp

from tailrace.projections.definition.sql.postgres.contract import TranslatesExpressions
from tailrace.projections.definition.sql.postgres.refusal import NotInTable
from tailrace.projections.definition.sql.postgres.types.types import TEXT, UNKNOWN
from tailrace.projections.definition.sql.postgres.types.values import Value, quoted

_STRING = r'"([^"\\]*+(?:\\.[^"\\]*+)*+)"'
_NUMBER = r'\G((?:[^"0-9-]++|"[^"\\]*+(?:\\.[^"\\]*+)*+")*+)(-?[0-9][0-9.eE+-]*+)'
_END_WITH_TEXT = "end with ->>, and cast what it gives: (doc ->> 'price')::numeric(10,2)"
_WHOLE = "an object or a list of JSON as text, or an element of what is no list, is not translated"


def json_value(expressions: TranslatesExpressions, node: exp.Operator) -> Value:
    """The text at the end of a chain of operators. Raises NotInTable."""
    if node.args["operator"] not in ("->>", "#>>"):
        raise NotInTable("JSON as a value", _END_WITH_TEXT)
    steps: list[str] = []
    at: exp.Expr = node
    while isinstance(at, exp.Operator):
        steps = [*_steps(str(at.args["operator"]), at.expression), *steps]
        at = at.this.unnest()
    root = expressions.value(at)
    if root.type != TEXT:
        hint = "it is translated for columns of json and jsonb"
        raise NotInTable(f"{node.args['operator']} of {root.type}", hint if root.type == UNKNOWN else "")
    marked = f"regexp_replace({root.sql}, {quoted(_STRING)}, '\"\\uE003$1\"')"
    marked = f"regexp_replace({marked}, {quoted(_NUMBER)}, '$1\"\\uE002$2\"')"
    found = _at(marked, steps)
    plain = f"regexp_replace({found}, '^[\\uE002\\uE003]', '')"
    indexed = [_at(marked, steps[:at]) for at, step in enumerate(steps) if step[1:-1].isdecimal()]
    wrong = [f"{found} RLIKE '^[{{{{\\\\[]'", *(f"{each} RLIKE '^[^{{{{\\\\[]'" for each in indexed)]
    failed = f"CAST(raise_error({quoted(_WHOLE)}) AS STRING)"
    return Value(f"(CASE WHEN {' OR '.join(wrong)} THEN {failed} ELSE {plain} END)", TEXT)


def _at(marked: str, steps: Sequence[str]) -> str:
    return f"get_json_object({marked}, {quoted('$' + ''.join(steps))})"


def _steps(operator: str, at: exp.Expr) -> Sequence[str]:
    """The path of one operator as Spark writes it. Raises NotInTable."""
    if not isinstance(at, exp.Literal):
        raise NotInTable(f"{operator} with a computed path", "write a constant")
    if operator in ("->", "->>"):
        return [_key(at.name)] if at.is_string else [f"[{int(at.name)}]"]
    parts = [part.strip() for part in at.name.strip().removeprefix("{").removesuffix("}").split(",")]
    if any(not part or part.lstrip("-").isdecimal() or set(part) & set('"\\{}') for part in parts):
        raise NotInTable(f"{operator} {at.name!r}", "write -> for each step: a number is an index there")
    return [_key(part) for part in parts]


def _key(name: str) -> str:
    if not name or set(name) & set("'\\*"):
        raise NotInTable(f"the key {name!r} of JSON", "")
    return f"['\ue003{name}']"
