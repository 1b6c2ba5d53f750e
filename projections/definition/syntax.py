"""The syntax tree of a file of Python. Several questions are asked of each, and of each projection in it, at every
refresh: a text is parsed once."""

from __future__ import annotations

import ast
from functools import lru_cache
from pathlib import Path

_FILES = 32


def syntax_tree(file: str) -> ast.Module:
    """Shared: not to be changed. Raises OSError, SyntaxError and ValueError (no text, or a NUL in it)."""
    return _tree(file, Path(file).read_text(encoding="utf-8"))


@lru_cache(_FILES)
def _tree(file: str, text: str) -> ast.Module:
    return ast.parse(text, file)
