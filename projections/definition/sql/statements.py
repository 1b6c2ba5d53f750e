"""The statements of a text."""

from __future__ import annotations

import sqlglot
from sqlglot import exp
from sqlglot.dialects.dialect import DialectType


def statements(text: str, dialect: DialectType) -> list[exp.Expr]:
    """Without empty ones, such as a comment behind the last semicolon. Raises ParseError and TokenError."""
    parsed = sqlglot.parse(text, read=dialect)
    return [each for each in parsed if each is not None and not isinstance(each, exp.Semicolon)]
