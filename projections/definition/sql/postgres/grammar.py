"""Postgres' SQL as sqlglot parses it, without what it makes of functions and literals on the way: the tree has each
function under the name that is written, and the place of each literal."""

from __future__ import annotations

from typing import Any, ClassVar

from sqlglot import Token, TokenType, exp
from sqlglot.dialects.postgres import Postgres as _Postgres

_KEPT = ("CAST", "EXTRACT", "OVERLAY", "POSITION", "SUBSTRING", "TRIM")
"""Functions with words between their arguments."""
_Parser = _Postgres.Parser


class PostgresText(_Postgres):
    """The dialect."""

    INDEX_OFFSET = 0

    class Parser(_Parser):  # type: ignore[misc,valid-type]
        FUNCTIONS: ClassVar[dict[str, Any]] = {}
        FUNCTION_PARSERS: ClassVar = {name: _Parser.FUNCTION_PARSERS[name] for name in _KEPT}
        NO_PAREN_FUNCTION_PARSERS: ClassVar = {
            name: _Parser.NO_PAREN_FUNCTION_PARSERS[name] for name in ("ANY", "CASE")
        }
        JSON_OPERATORS: ClassVar = {
            kind: (
                lambda self, this, other, name=name: self.expression(
                    exp.Operator(this=this, operator=name, expression=other)
                )
            )
            for kind, name in {
                TokenType.ARROW: "->", TokenType.DARROW: "->>", TokenType.HASH_ARROW: "#>",
                TokenType.DHASH_ARROW: "#>>", TokenType.PLACEHOLDER: "?",
            }.items()
        }  # fmt: skip

        def expression(
            self, instance: exp.Expr, token: Token | None = None, comments: list[str] | None = None
        ) -> exp.Expr:
            """With the place of what has no name: literals."""
            made: exp.Expr = super().expression(instance, token, comments)
            before = self._prev
            if isinstance(made, exp.Literal | exp.Boolean | exp.Null | exp.Placeholder | exp.Star) and before:
                made.meta.setdefault("start", before.start)
                made.meta.setdefault("end", before.end)
            return made

        def _parse_function_call(self, *args: Any, **kwargs: Any) -> exp.Expr | None:
            """With the place of its name: CASE and CAST as well."""
            token = self._curr
            made: exp.Expr | None = super()._parse_function_call(*args, **kwargs)
            if isinstance(made, exp.Expr) and token:
                made.meta.setdefault("start", token.start)
                made.meta.setdefault("end", self._prev.end)
            return made

        def _parse_interval_span(self, this: exp.Expr, parse_function_unit: bool = True) -> exp.Interval:
            """With the text of a constant as it is written: sqlglot takes ``'1 day 02:30'`` for one day."""
            text = this.name if isinstance(this, exp.Literal) and this.is_string else None
            place = dict(this.meta)
            made: exp.Interval = super()._parse_interval_span(this, parse_function_unit=parse_function_unit)
            if (
                text is not None
                and made.this.name != text
                and not isinstance(made.args["unit"], exp.IntervalSpan)
            ):
                made.set("this", exp.Literal.string(text))
                made.set("unit", None)
                made.this.meta.update(place)
            return made
