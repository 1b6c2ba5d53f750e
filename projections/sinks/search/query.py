"""Queries of users, for tantivy: what they may contain, and what is wrong with one.

tantivy's messages quote the query, which may hold values of rows, so ours replace them. They name fields of the index,
which are schema, but never the field of a query: that may be any text before a colon.
"""

from __future__ import annotations

from collections.abc import Callable

import tantivy
from tantivy import query_parser_error  # type: ignore[attr-defined]  # not in its stubs

from tailrace.eventstore import disclosure
from tailrace.eventstore.errors import UsageError
from tailrace.projections.sinks.search.folder import IndexMeta, index_schema

_MOMENT = '"2024-02-29T00:00:00Z"'
_SYNTAX = 'words, "a phrase", field:word, AND, OR, NOT, ( )'
_QUOTE = 'put words with a colon or another sign in quotes: field:"12:30"'

_Refusal = tuple[str, str]  # what is wrong, and what to do


class Queries:
    """Parses queries for one index. Its twin has the same fields except Tailrace's own, which nobody can search."""

    def __init__(self, meta: IndexMeta) -> None:
        self._meta = meta
        self._twin = tantivy.Index(index_schema(meta.fields, own=False))
        meta.cut_words(self._twin)
        self._defaults = [name for name, kind in meta.fields.items() if kind in ("text", "string")]

    def parse(self, query: str) -> tantivy.Query:
        """Raises UsageError for what is no query."""
        try:
            return self._twin.parse_query(query, self._defaults)
        except ValueError:
            raise self.refusal(query) from None

    def refusal(self, query: str) -> UsageError:
        """Why a query cannot be answered."""
        _, found = self._twin.parse_query_lenient(query, self._defaults)
        said, hint = next(
            (say(self) for kind, say in _REFUSALS for error in found if isinstance(error, kind)),
            ("its syntax is wrong", f"{_SYNTAX}; {_QUOTE}"),
        )
        return UsageError(f"{disclosure.value(query)} is not a query: {said}", hint=hint)

    def unindexed_field_error(self, query: str) -> UsageError:
        """The error for ``field:*`` where tantivy does not know which rows have a value."""
        has = self._fields("i64", "f64", "bool", "date")
        return UsageError(
            f"{disclosure.value(query)} is not a query: field:* asks for rows with any value, which works only for"
            f" fields of kind i64, f64, bool and date: {has or 'none here'}",
            hint="leave it out, or ask for words",
        )

    def _fields(self, *kinds: str) -> str:
        names = (name for name, kind in self._meta.fields.items() if not kinds or kind in kinds)
        return ", ".join(map(repr, names))

    def _unknown_field(self) -> _Refusal:
        return (
            f"it names a field that the index does not have; there are {self._fields()}",
            f"{_SYNTAX}; {_QUOTE}",
        )

    def _no_date(self) -> _Refusal:
        hint = f"write field:{_MOMENT}, with the quotes, or field:[2024-02-01T00:00:00Z TO 2024-03-01T00:00:00Z}}"
        return f"a date field ({self._fields('date')}) takes a moment as RFC 3339 writes it", hint

    def _no_number(self) -> _Refusal:
        return (
            f"a field of numbers ({self._fields('i64', 'f64')}) takes a number in its range",
            "write field:7, field:[1 TO 7]; i64 takes whole numbers only",
        )

    def _no_bool(self) -> _Refusal:
        return f"a bool field ({self._fields('bool')}) takes a truth value", "write true or false"

    def _only_excludes(self) -> _Refusal:
        return "it only excludes rows", 'begin with *, which is all rows: "* NOT chair"'

    def _too_short(self) -> _Refusal:
        return (
            'a phrase that ends in * has one word only ("red wooden ch"* has three)',
            "write two words or more",
        )

    def _refuse_syntax(self) -> _Refusal:
        return (
            "it has a range or a set without a field, or a regular expression",
            "write field:[a TO b], field: IN [a b]; there are no regular expressions",
        )

    def _no_phrases(self) -> _Refusal:
        return f"only text fields ({self._fields('text')}) have phrases", "ask for single words"


# The first of these kinds among a query's errors is reported: that it only excludes often follows from another.
_REFUSALS: tuple[tuple[type, Callable[[Queries], _Refusal]], ...] = (
    (query_parser_error.DateFormatError, Queries._no_date),
    (query_parser_error.FieldDoesNotExistError, Queries._unknown_field),
    (query_parser_error.FieldNotIndexedError, Queries._unknown_field),
    (query_parser_error.ExpectedIntError, Queries._no_number),
    (query_parser_error.ExpectedFloatError, Queries._no_number),
    (query_parser_error.ExpectedBoolError, Queries._no_bool),
    (query_parser_error.PhrasePrefixRequiresAtLeastTwoTermsError, Queries._too_short),
    (query_parser_error.UnsupportedQueryError, Queries._refuse_syntax),
    (query_parser_error.FieldDoesNotHavePositionsIndexedError, Queries._no_phrases),
    (query_parser_error.AllButQueryForbiddenError, Queries._only_excludes),
)
