"""What is wrong with a definition by itself: without a log, without settings.

A module is loaded without a type checker. A value of a wrong type that failed only in use would look like a bug of
ours, far from where it is written; so the fields of inputs and sinks are checked against one table.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeGuard, get_args

from tailrace.eventstore.errors import UsageError
from tailrace.eventstore.model.topic import TopicId
from tailrace.projections.definition.computed import Computed
from tailrace.projections.definition.findings import DefinitionFinding
from tailrace.projections.definition.model import (
    NOW,
    PROJECTION_NAME,
    Changes,
    Events,
    Input,
    OnUnreadable,
    Projection,
    Result,
    State,
    Through,
)
from tailrace.projections.definition.source import SourceLines
from tailrace.projections.events.typed_events import TypedEvents
from tailrace.projections.sinks.record import own_mistakes
from tailrace.projections.sinks.specs import (
    FieldKind,
    OwnSink,
    ParquetFolder,
    PostgresTable,
    RedisCache,
    RedisFormat,
    SearchIndex,
)


def mistakes_of(defined: Projection) -> Iterator[DefinitionFinding]:
    """All of them, each with its place."""
    lines = SourceLines.of(defined)
    for what, hint in _declaration_mistakes(defined):
        yield DefinitionFinding("fail", what, hint, defined.place)
    for name, found in _argument_mistakes(defined):
        for what, hint in found:
            yield DefinitionFinding("fail", what, hint, lines.declared_place(name))
    for name, source in defined.inputs.items():
        wrong = list(wrong_values(source))
        for what, hint in wrong:
            yield DefinitionFinding("fail", f"input {name!r}: {what}", hint, lines.declared_place(name), name)
        for what, hint in () if wrong else _input_mistakes(defined, name, source):
            yield DefinitionFinding("fail", what, hint, lines.declared_place(name), name)


_Mistakes = Iterator[tuple[str, str]]


def _argument_mistakes(defined: Projection) -> Iterator[tuple[str, _Mistakes]]:
    """Arguments of the decorator, and what is wrong with the values they have."""
    yield "sink", wrong_values(defined.sink)
    yield "tolerance", _tolerance_mistakes(defined.tolerance)
    yield "trust", _trust_mistakes(defined.trust)
    yield "collation", _collation_mistakes(defined.collation)


def _tolerance_mistakes(given: object) -> _Mistakes:
    if not isinstance(given, Mapping) or not all(
        isinstance(column, str) and is_number(value) for column, value in given.items()
    ):
        yield (
            f"its tolerance is {describe_value(given)}",
            'say for each column how much may differ: tolerance={"total": 1e-6}',
        )


def _trust_mistakes(given: object) -> _Mistakes:
    if not isinstance(given, bool):
        yield f"its trust is {describe_value(given)}", "say trust=True, or leave it out"


def _collation_mistakes(given: object) -> _Mistakes:
    if given not in ("", "C"):
        yield (
            f"its collation is {describe_value(given)}",
            'the order of bytes is collation="C"; there is no other',
        )


def _declaration_mistakes(defined: Projection) -> _Mistakes:
    if not PROJECTION_NAME.fullmatch(defined.name):
        yield "its name becomes part of table and index names", "use a-z, 0-9 and _, at most 41"
    if not defined.key or None in defined.key or "" in defined.key:
        yield "it has no key", 'name the columns that tell its rows apart: key="customer_id"'
    elif others := [name for name in defined.key if not isinstance(name, str)]:
        yield (
            f"its key names {describe_value(others[0])}",
            'a key is a column, or several: key=("customer_id", "day")',
        )
    elif len(set(defined.key)) != len(defined.key):
        yield f"its key {defined.key} names a column twice", "name each column once"
    sink: object = defined.sink  # what an untyped module gave
    a_sink = isinstance(sink, PostgresTable | RedisCache | SearchIndex | ParquetFolder | OwnSink)
    if not a_sink or isinstance(sink, type):
        yield "its sink is not one", 'for example sink=PostgresTable("mart", "customer_totals")'
    elif type(sink) not in _FIELDS:
        yield from own_mistakes(sink)
    try:
        _ = defined.freshness_seconds
    except (TypeError, ValueError) as error:
        yield (
            f"its freshness {defined.freshness!r} {error}",
            'say how old its result may be: freshness="10min"',
        )
    if not defined.inputs:
        yield "it reads nothing", 'declare inputs: orders=State("shop.public.orders")'
        return
    wanted = set(inspect.signature(defined.function).parameters) - {NOW}
    if wanted != set(defined.inputs):
        declared = ", ".join(defined.inputs)
        yield (
            f"its parameters ({', '.join(sorted(wanted)) or 'none'}) are not its inputs ({declared})",
            "give the function one parameter for each declared input, of the same name",
        )


def _input_mistakes(defined: Projection, name: str, source: object) -> _Mistakes:
    if not isinstance(source, State | Changes | Events | Result):
        yield (
            f"{name}={source!r} is no input",
            f'an input is a State, Changes, Events or Result: {name}=State("shop.public.orders")',
        )
        return
    try:
        if not isinstance(source, Result):
            TopicId.parse(source.topic)
        if isinstance(source, Events) and source.types is not None:
            TypedEvents.of(source.topic_id, source.types)
    except UsageError as error:
        yield f"input {name!r}: {error.message}", error.hint
    yield from _computed_mistakes(name, source)
    match source.affects:
        case Through() as through:
            yield from _through_mistakes(defined, name, through)
            return
        case Mapping() as paths:
            unknown = [column for column in paths if column not in defined.key]
        case tuple() as columns:
            unknown = (
                []
                if len(columns) == len(defined.key)
                else [str(each) for each in columns if each not in defined.key]
            )
        case str() | Computed() as column:
            unknown = [] if len(defined.key) == 1 or column in defined.key else [str(column)]
        case _:
            unknown = []
    if unknown:
        yield (
            f"input {name!r}: affects={source.affects!r} does not give the key ({', '.join(defined.key)})",
            "map each key column to the column of this input that holds it: affects={'customer_id': 'id'}",
        )


def _computed_mistakes(name: str, source: Input) -> _Mistakes:
    """Expressions of ``affects`` that cannot be read, or are of an input that is not followed by them."""
    affects = source.affects
    held = (
        affects.values()
        if isinstance(affects, Mapping)
        else affects
        if isinstance(affects, tuple)
        else (affects,)
    )
    for each in held:
        if not isinstance(each, Computed):
            continue
        if isinstance(source, Changes):
            yield (
                f"input {name!r}: {each.expression} is computed, and changes are found by columns of their key alone",
                "follow a column of the key, or read the table as State",
            )
            continue
        try:
            _ = each.columns
        except ValueError as error:
            yield (
                f"input {name!r}: the key cannot be followed by {each.expression}: {error}",
                'an expression over columns of one row: affects={"day": Computed("to_date(placed_at)")}',
            )


def _through_mistakes(defined: Projection, name: str, through: Through) -> _Mistakes:
    """A ``Through`` leads to an input with a lineage, and not back."""
    columns = [*through.on, *through.on.values()] if isinstance(through.on, Mapping) else []
    if not columns or not all(isinstance(column, str) and column for column in columns):
        yield (
            f"input {name!r}: {through!r} does not say which columns belong together",
            'map columns of this input to those of the other: Through("orders", {"order_id": "id"})',
        )
    passed = [name]
    at: object = through
    while isinstance(at, Through):
        if at.input not in defined.inputs:
            yield (
                f"input {passed[-1]!r} goes through {at.input!r}, which is no input",
                f"its inputs are {', '.join(defined.inputs)}",
            )
            return
        if at.input in passed:
            yield (
                f"its inputs go through each other in a circle: {' -> '.join([*passed, at.input])}",
                "one of them has to name columns of the key",
            )
            return
        passed.append(at.input)
        at = getattr(defined.inputs[at.input], "affects", None)
    if at is None:
        yield (
            f"input {name!r} goes through {passed[-1]!r}, which does not say what it affects",
            f"give {passed[-1]!r} affects=, or leave it out here",
        )


@dataclass(frozen=True, slots=True)
class _Expectation:
    words: str
    fits: Callable[[object], bool]


def wrong_values(given: object) -> Iterator[tuple[str, str]]:
    """The fields of an input or a sink with unusable values: what is wrong, and what is wanted."""
    for name, wanted in _FIELDS.get(type(given), {}).items():
        value = getattr(given, name)
        if not wanted.fits(value):
            owner = type(given).__name__
            yield f"{name} of {owner} is {describe_value(value)}", f"{owner}({name}=…) takes {wanted.words}"


def describe_value(value: object) -> str:
    """A value and its type, as messages name it."""
    text = repr(value)
    return f"{text if len(text) <= _LONGEST else text[:_LONGEST] + '…'} ({type(value).__name__})"


_LONGEST = 80


def is_number(value: object) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and value == value  # not NaN


def _is_text(value: object) -> bool:
    return isinstance(value, str) and bool(value)


def _is_key_column(value: object) -> bool:
    return _is_text(value.expression if isinstance(value, Computed) else value)


def _is_texts(value: object) -> bool:
    return isinstance(value, tuple | list) and all(map(_is_text, value))


def _maps_texts_to(fits: Callable[[object], bool]) -> Callable[[object], bool]:
    return lambda value: (
        isinstance(value, Mapping) and all(_is_text(key) and fits(held) for key, held in value.items())
    )


def _one_of(words: tuple[str, ...]) -> Callable[[object], bool]:
    return lambda value: isinstance(value, str) and value in words


def _optional(wanted: _Expectation) -> _Expectation:
    return _Expectation(f"{wanted.words}, or None", lambda value: value is None or wanted.fits(value))


def _one_or_each(words: str, fits: Callable[[object], bool]) -> _Expectation:
    """One for all columns, or one for each."""
    each = _maps_texts_to(fits)
    return _Expectation(words, lambda value: fits(value) or each(value))


_POLICIES, _KINDS, _FORMATS = get_args(OnUnreadable), get_args(FieldKind), get_args(RedisFormat)
_TEXT = _Expectation("a text", _is_text)
_TEXTS = _Expectation('a tuple of column names, ("status",) for one', _is_texts)
_FLAG = _Expectation("True or False", lambda value: isinstance(value, bool))
_SECONDS = _Expectation("a number of seconds", is_number)
_AFFECTS = _Expectation(
    'a column ("customer_id"), a tuple of columns, a mapping of key columns to columns, Computed in place of a column,'
    " Through, or None",
    lambda value: (
        value is None
        or isinstance(value, Through)
        or _is_key_column(value)
        or (isinstance(value, tuple) and all(map(_is_key_column, value)))
        or _maps_texts_to(_is_key_column)(value)
    ),
)
_READ = {"topic": _TEXT, "affects": _AFFECTS}
_FIELDS: Mapping[type, Mapping[str, _Expectation]] = {
    State: {
        **_READ,
        "columns": _optional(_TEXTS),
        "cast": _Expectation(
            'a mapping of columns to Spark types: {"price": "decimal(20,4)"}', _maps_texts_to(_is_text)
        ),
        "on_unreadable": _one_or_each(
            f"one of {', '.join(_POLICIES)}, or a mapping of columns to these", _one_of(_POLICIES)
        ),
        "erased": _FLAG,
    },
    Changes: _READ,
    Events: {
        **_READ,
        "types": _optional(
            _Expectation(
                "a list of models of events: [Deposited, Withdrawn]",
                lambda value: isinstance(value, tuple | list)
                and bool(value)
                and all(isinstance(each, type) for each in value),
            )
        ),
    },
    Result: {"projection": _TEXT, "affects": _AFFECTS},
    PostgresTable: {
        "sink": _TEXT,
        "table": _TEXT,
        "schema": _TEXT,
        "indexes": _Expectation(
            'a tuple of tuples of column names: (("status",),)',
            lambda value: isinstance(value, tuple | list) and all(map(_is_texts, value)),
        ),
        "json": _TEXTS,
    },
    RedisCache: {
        "sink": _TEXT,
        "prefix": _Expectation("a text, or None", lambda value: value is None or isinstance(value, str)),
        "format": _Expectation(f"one of {', '.join(_FORMATS)}", _one_of(_FORMATS)),
        "ttl_seconds": _optional(_SECONDS),
    },
    SearchIndex: {
        "sink": _TEXT,
        "fields": _Expectation(
            f'a mapping of columns to kinds of fields ({", ".join(_KINDS)}): {{"note": "text"}}',
            _maps_texts_to(_one_of(_KINDS)),
        ),
    },
    ParquetFolder: {
        "sink": _TEXT,
        "partition_by": _TEXTS,
        "keep_seconds": _Expectation("a number of seconds, 0 or more", lambda value: is_number(value) and value >= 0),
    },
}  # fmt: skip
