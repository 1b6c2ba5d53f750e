"""The header of a ``.sql`` file: a comment at its beginning with TOML, which says what ``@projection`` is given in
Python."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Annotated, Any, Literal
from zoneinfo import available_timezones

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    TypeAdapter,
    ValidationError,
)

from tailrace.eventstore.errors import manual_page
from tailrace.projections.definition.computed import Computed
from tailrace.projections.definition.findings import DefinitionFinding, did_you_mean
from tailrace.projections.definition.model import Changes, Events, Input, OnUnreadable, Result, State, Through
from tailrace.projections.definition.sql.own_sink import WrongSink, own_sink
from tailrace.projections.sinks.specs import ParquetFolder, PostgresTable, RedisCache, SearchIndex, SinkSpec

EVERYTHING = "*"
"""As ``affects``: a change of the input concerns every key, so that everything is computed again."""

_HEADER = re.compile(
    r"(?:\s|--[^\n]*(?:\n|\Z)|/\*(?!\s*projection\b).*?\*/)*/\*\s*projection\b[ \t]*\n?", re.S
)
_PLACE = re.compile(r" \(at line (\d+), column (\d+)\)| \(at end of document\)")
_TABLE = re.compile(r"\s*\[([^\[\]]+)\]\s*(?:#.*)?$")
_KEY = re.compile(r"\s*([^=#\[\]]+?)\s*=")
_MORE = f"its form is described in {manual_page('projections/sql.md')}"
_EXAMPLE = """begin the file with
/* projection
key = "customer_id"
sink = { kind = "postgres", sink = "mart", table = "customer_totals" }
inputs.orders = "shop.public.orders"
*/"""

_KINDS: dict[str, type[Any]] = {
    "postgres": PostgresTable, "redis": RedisCache, "search": SearchIndex, "parquet": ParquetFolder,
}  # fmt: skip
_OWN = "own"


Dialect = Literal["postgres", "spark"]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class _ThroughForm(_Strict):
    through: str
    on: dict[str, str] = Field(min_length=1)


class _ComputedForm(_Strict):
    computed: str


def _form_of_affects(value: object) -> str:
    match value:
        case {"through": _} | _ThroughForm():
            return "Through"
        case Mapping():
            return "Columns"
        case list():
            return "Several"
        case _:
            return "Column"


_Affects = Annotated[
    Annotated[_ThroughForm, Tag("Through")]
    | Annotated[dict[str, str | _ComputedForm], Tag("Columns")]
    | Annotated[tuple[str, ...], Tag("Several")]
    | Annotated[str, Tag("Column")],
    Discriminator(_form_of_affects),
]


def _input_of(value: object) -> object:
    return {"state": value} if isinstance(value, str) else value


class _InputForm(_Strict):
    state: str | None = None
    changes: str | None = None
    events: str | None = None
    result: str | None = None
    affects: _Affects | None = None
    columns: tuple[str, ...] | None = None
    cast: dict[str, str] = {}
    on_unreadable: OnUnreadable | dict[str, OnUnreadable] = "error"
    erased: bool = False


class _HeaderForm(_Strict):
    name: str | None = None
    key: str | tuple[str, ...] = ()
    sink: Any = None
    inputs: dict[str, Annotated[_InputForm, BeforeValidator(_input_of)]] = {}
    version: str | int = ""
    trust: bool = False
    tolerance: dict[str, float] = {}
    freshness: str | float | None = None
    collation: str = ""
    dialect: Dialect = "postgres"
    time_zone: str = "UTC"


@dataclass(frozen=True, slots=True)
class Header:
    """What a header says. ``sink`` is None when it is wrong. ``derived`` names the inputs without an ``affects`` in it;
    those with "everything" have none either. ``lines`` and ``places`` are those of its inputs, ``words`` the places of
    all that it says."""

    name: str
    key: tuple[str, ...]
    sink: SinkSpec | None
    inputs: Mapping[str, Input]
    derived: tuple[str, ...]
    version: str
    trust: bool
    tolerance: Mapping[str, float]
    freshness: str | float | None
    collation: str
    dialect: Dialect
    time_zone: str
    lines: Mapping[str, int]
    places: Mapping[str, str]
    words: Mapping[str, str]


@dataclass(slots=True)
class HeaderReader:
    """Reads the header of one file. ``findings`` are what is wrong with it."""

    file: str
    stem: str
    findings: list[DefinitionFinding] = field(default_factory=list)
    _text: str = ""
    _lines: dict[tuple[str, ...], int] = field(default_factory=dict)

    def read(self, text: str) -> tuple[Header | None, str]:
        """The header (None: it cannot be understood), and the text with spaces in its place."""
        self._text = text
        begin = _HEADER.match(text)
        closed = text.find("*/", begin.end()) if begin else -1
        if begin is None or closed < 0:
            self._find("it has no header" if begin is None else "its header has no end (*/)", _EXAMPLE, 1)
            return None, text
        toml = text[begin.end() : closed]
        first = text.count("\n", 0, begin.end()) + 1
        body = re.sub(r"[^\n]", " ", text[: closed + 2]) + text[closed + 2 :]
        try:
            values = tomllib.loads(toml)
        except tomllib.TOMLDecodeError as error:
            place = _PLACE.search(str(error))
            line = first + int(place[1]) - 1 if place and place[1] else first + toml.count("\n")
            self._find(f"its header is no TOML: {_PLACE.sub('', str(error))}", _MORE, line)
            return None, body
        self._lines = dict(_lines(toml, first))
        return self._check_form(values, first), body

    def _check_form(self, values: Mapping[str, Any], first: int) -> Header | None:
        sink = self._sink(values.get("sink"), first)
        try:
            header = _HeaderForm.model_validate(dict(values))
        except ValidationError as error:
            for what, hint, path in _problems(error, values):
                self._find(what, hint, self._line(path, first))
            return None
        inputs = {
            name: made
            for name, given in header.inputs.items()
            if (made := self._input(name, given, header, self._line(("inputs", name), first))) is not None
        }
        derived = tuple(name for name, given in header.inputs.items() if given.affects is None)
        return Header(
            name=header.name or self.stem,
            key=(header.key,) if isinstance(header.key, str) else header.key,
            sink=sink,
            inputs=inputs,
            derived=tuple(name for name in derived if name in inputs),
            version=str(header.version),
            trust=header.trust,
            tolerance=header.tolerance,
            freshness=header.freshness,
            collation=header.collation,
            dialect=header.dialect,
            time_zone=self._time_zone(header.time_zone, first),
            lines={name: self._line(("inputs", name), first) for name in inputs},
            places={name: self._place(self._line(("inputs", name), first)) for name in inputs},
            words={path[0]: self._place(line) for path, line in self._lines.items() if len(path) == 1},
        )

    def _time_zone(self, name: str, first: int) -> str:
        if name not in available_timezones():
            hint = did_you_mean(name, available_timezones()) or 'for example time_zone = "Europe/Berlin"'
            self._find(f"there is no time zone {name!r}", hint, self._line(("time_zone",), first))
        return name

    def _input(self, name: str, given: _InputForm, header: _HeaderForm, line: int) -> Input | None:
        if not name.isidentifier():
            self._find(f"input {name!r}: a name is made of letters, digits and _", "rename it", line)
            return None
        chosen = [
            kind for kind in ("state", "changes", "events", "result") if getattr(given, kind) is not None
        ]
        if len(chosen) != 1:
            hint = f'inputs.{name} = {{ state = "shop.public.orders" }}, or changes, events, result'
            self._find(f"input {name!r} is given {len(chosen) or 'no'} sources", hint, line)
            return None
        affects: Any = given.affects
        if isinstance(affects, _ThroughForm):
            affects = Through(affects.through, affects.on)
        elif isinstance(affects, dict):
            affects = {
                key: _computed(held, header) if isinstance(held, _ComputedForm) else held
                for key, held in affects.items()
            }
        elif affects == EVERYTHING:
            affects = None
        if chosen == ["state"]:
            assert given.state is not None
            return State(given.state, affects, given.columns, given.cast, given.on_unreadable, given.erased)
        options = sorted(given.model_fields_set & {"columns", "cast", "on_unreadable", "erased"})
        if options:
            self._find(f"input {name!r}: {', '.join(options)} go with a state only", "leave them out", line)
        kinds: dict[str, type[Changes | Events | Result]] = {
            "changes": Changes, "events": Events, "result": Result,
        }  # fmt: skip
        made: Input = kinds[chosen[0]](str(getattr(given, chosen[0])), affects)
        return made

    def _sink(self, given: object, first: int) -> SinkSpec | None:
        line = self._line(("sink",), first)
        if isinstance(given, dict) and given.get("kind") == _OWN:
            return self._own_sink(given, first)
        if not isinstance(given, dict) or given.get("kind") not in _KINDS:
            kind = f" of kind {given['kind']!r}" if isinstance(given, dict) and "kind" in given else ""
            kinds = ", ".join([*_KINDS, _OWN])
            hint = f'for example sink = {{ kind = "parquet", sink = "lake" }}; kinds are {kinds}'
            self._find(f"it has no sink{kind}", hint, line)
            return None
        spec = _KINDS[given["kind"]]
        known = [each.name for each in fields(spec)]
        self._find_unknown(given, known, first)
        try:
            made: SinkSpec = TypeAdapter(spec).validate_python(
                {name: _option(name, given[name]) for name in known if name in given}
            )
        except ValidationError as error:
            for what, hint, path in _problems(error, given):
                self._find(f"sink.{what}", hint, self._line(("sink", *path), first))
            return None
        return made

    def _own_sink(self, given: Mapping[str, Any], first: int) -> SinkSpec | None:
        self._find_unknown(given, ["factory", "options"], first)
        try:
            return own_sink(given.get("factory"), given.get("options", {}))
        except WrongSink as error:
            self._find(error.what, error.hint, self._line(("sink", error.option), first))
            return None

    def _find_unknown(self, sink: Mapping[str, Any], known: Sequence[str], first: int) -> None:
        for option in sorted(sink.keys() - {"kind", *known}):
            self._find(*_unknown_name(f"sink.{option}", option, known), self._line(("sink", option), first))

    def _find(self, what: str, hint: str, line: int) -> None:
        self.findings.append(DefinitionFinding("fail", what, hint, f"{self.file}:{self._place(line)}"))

    def _place(self, line: int) -> str:
        """``line:column`` of the first word of a line."""
        written = self._text.splitlines()[line - 1] if line <= self._text.count("\n") + 1 else ""
        return f"{line}:{len(written) - len(written.lstrip()) + 1}"

    def _line(self, path: tuple[str, ...], first: int) -> int:
        """The line of a key, or of the nearest one around it."""
        while path:
            if path in self._lines:
                return self._lines[path]
            path = path[:-1]
        return first


def _computed(held: _ComputedForm, header: _HeaderForm) -> Computed:
    """In the dialect of the body."""
    if header.dialect == "spark":
        return Computed(held.computed)
    return Computed(held.computed, "postgres", header.time_zone)


def _problems(
    error: ValidationError, values: Mapping[str, Any]
) -> Iterator[tuple[str, str, tuple[str, ...]]]:
    """What is wrong (what, hint, path), once for each place: a value with several allowed forms fails all of them."""
    seen: set[tuple[str, ...]] = set()
    for problem in error.errors():
        absent = problem["type"] in ("missing", "extra_forbidden")
        path = _header_keys([str(part) for part in problem["loc"]], values, absent=absent)
        if path in seen:
            continue
        seen.add(path)
        name = ".".join(path)
        if problem["type"] == "extra_forbidden":
            inside = _InputForm if path[0] == "inputs" else _HeaderForm
            yield *_unknown_name(name, path[-1], inside.model_fields), path
        elif absent:
            yield f"{name} is missing", "add it", path
        else:
            yield f"{name}: {_lower_first(problem['msg'])}", _MORE, path


def _unknown_name(name: str, word: str, known: Iterable[str]) -> tuple[str, str]:
    return f"there is no {name}", did_you_mean(word, known) or f"known are {', '.join(known)}"


def _header_keys(loc: Sequence[str], values: Mapping[str, Any], *, absent: bool) -> tuple[str, ...]:
    """The part of an error's place that is in the header; the rest are names of the forms that were tried. What is
    absent or unknown is its last part."""
    keys: list[str] = []
    at: Any = values
    for part in loc[:-1] if absent else loc:
        if isinstance(at, Mapping) and part in at:
            keys.append(part)
            at = at[part]
    return (*keys, loc[-1]) if absent else tuple(keys)


def _option(name: str, value: Any) -> Any:
    """An option of a sink. An index of one column may be written as its name."""
    if name != "indexes" or not isinstance(value, list):
        return value
    return [[each] if isinstance(each, str) else each for each in value]


def _lower_first(text: str) -> str:
    return text[:1].lower() + text[1:]


def _lines(toml: str, first: int) -> Iterator[tuple[tuple[str, ...], int]]:
    """The line of each key and table of a TOML text, by its path."""
    around: tuple[str, ...] = ()
    seen: set[tuple[str, ...]] = set()
    for number, line in enumerate(toml.splitlines(), first):
        table, key = _TABLE.match(line), _KEY.match(line)
        if table:
            around = path = _path(table[1])
        elif key:
            path = (*around, *_path(key[1]))
        else:
            continue
        for length in range(1, len(path) + 1):
            if path[:length] not in seen:
                seen.add(path[:length])
                yield path[:length], number


def _path(key: str) -> tuple[str, ...]:
    """``a."b c".d`` as its parts; () for what is no key."""
    try:
        at: Any = tomllib.loads(f"{key} = 0")
    except tomllib.TOMLDecodeError:
        return ()
    path = []
    while isinstance(at, dict):
        ((name, at),) = at.items()
        path.append(name)
    return tuple(path)
