"""A sink's specification as the catalog keeps it: JSON, and nothing that runs.

Whoever may write a row of the catalog must not choose the code that a reader of it runs. So a sink of a user's own is
kept as the name of its class and the values of its fields. The class is looked up among those that the definitions in
this process use, and in modules that the configuration names. A module that only the row names is never imported.
"""

from __future__ import annotations

import importlib
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields, is_dataclass
from functools import cache
from typing import Any, TypeGuard

from pydantic import BaseModel, TypeAdapter, ValidationError

from tailrace.eventstore import disclosure
from tailrace.eventstore.errors import UsageError
from tailrace.projections.sinks.contract import NoSink
from tailrace.projections.sinks.specs import ParquetFolder, PostgresTable, RedisCache, SearchIndex, SinkSpec

_SPECS: dict[str, type[Any]] = {
    spec.__name__: spec for spec in (PostgresTable, RedisCache, SearchIndex, ParquetFolder)
}
_OWN = "own"
_REBUILD = "rebuild the projection: its new generation is kept as JSON"


@dataclass(frozen=True, slots=True)
class SinkClasses:
    """Where classes of users' own sinks may come from: those that loaded definitions use, and ``modules`` that the
    configuration names. These are imported when one of their classes is needed."""

    modules: tuple[str, ...] = ()
    known: tuple[type[Any], ...] = ()

    @classmethod
    def of(cls, modules: Iterable[str], sinks: Iterable[object] = ()) -> SinkClasses:
        own = (type(sink) for sink in sinks if not isinstance(sink, tuple(_SPECS.values())))
        return cls(tuple(modules), tuple(dict.fromkeys(own)))

    def find(self, name: str) -> type[Any]:
        """The class of a name ``module:Class``. Raises NoSink."""
        for each in self.known:
            if _name_of(each) == name:
                return each
        module_name, _, class_name = name.partition(":")
        if module_name not in self.modules:
            raise NoSink(
                f"a generation's sink is of the class {name}, which no loaded definition uses",
                hint=f"if {module_name} is a module of yours, name it in projections.sink_modules of tailrace.toml",
            )
        try:
            found = vars(importlib.import_module(module_name)).get(class_name)
        except Exception as error:
            raise NoSink(
                f"a generation's sink is of the class {name}, whose module does not import: "
                f"{disclosure.describe_error(error)}",
                hint=f"mend the module {module_name}",
            ) from error
        if not _is_sink_class(found) or _name_of(found) != name:
            raise NoSink(
                f"a generation's sink is of the class {name}, and {module_name} defines no sink of that name",
                hint="bring the class back, or drop the generation by its number",
            )
        return found


def spec_to_text(spec: SinkSpec) -> str:
    """Raises UsageError for a sink of a user's own that JSON cannot hold."""
    name = type(spec).__name__
    if _SPECS.get(name) is type(spec):
        return json.dumps({"kind": name, **asdict(spec)}, ensure_ascii=False)  # type: ignore[arg-type]
    for what, hint in own_mistakes(spec):
        raise UsageError(what, hint=hint)
    return json.dumps(
        {"kind": _OWN, "class": _name_of(type(spec)), "fields": _values_of(spec)}, ensure_ascii=False
    )


def spec_from_text(text: str, classes: SinkClasses) -> SinkSpec:
    """Raises NoSink for a record that is not one of ours, and for a user's own sink whose class is not found."""
    try:
        data = json.loads(text)
        kind = data.pop("kind")
        if kind == _OWN:
            return _own_spec(data, classes)
        spec: SinkSpec = _adapter(kind).validate_python(data)
        if unknown := data.keys() - {field.name for field in fields(_SPECS[kind])}:
            raise KeyError(*sorted(unknown))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise NoSink(
            "the catalog's record of a generation's sink is not one that Tailrace wrote",
            hint="restore the catalog, or drop the generation by its number and rebuild the projection",
        ) from error
    return spec


@cache
def _adapter(kind: str) -> TypeAdapter[Any]:
    """It takes longer to make than to use."""
    return TypeAdapter(_SPECS[kind])


def sink_name(text: str) -> str | None:
    """The entry of ``[sinks]`` that a record names; None for a user's own sink, which has none."""
    try:
        name = json.loads(text).get("sink")
    except (ValueError, AttributeError):
        return None
    return name if isinstance(name, str) else None


def _own_spec(data: Mapping[str, Any], classes: SinkClasses) -> SinkSpec:
    if "pickle" in data:
        raise NoSink(
            "a generation's sink was kept by an earlier version in a form that could run any code; it is not read",
            hint=_REBUILD,
        )
    made_by, values = classes.find(str(data["class"])), data["fields"]
    try:
        if issubclass(made_by, BaseModel):
            return made_by.model_validate(values)  # type: ignore[return-value]
        spec: SinkSpec = made_by(**{name: _freeze(value) for name, value in values.items()})
    except Exception as error:
        said = "" if isinstance(error, ValidationError) else f": {disclosure.describe_error(error)}"
        raise NoSink(
            f"a generation's sink of the class {data['class']} is not made by the fields that the catalog has{said}",
            hint="let the class take the fields that it had, or drop the generation by its number",
        ) from error
    return spec


def own_mistakes(spec: object) -> Iterable[tuple[str, str]]:
    """Why the catalog could not keep a sink of a user's own: what is wrong, and what to do."""
    made_by = type(spec)
    name = f"{made_by.__module__}.{made_by.__qualname__}"
    if not (is_dataclass(made_by) or isinstance(spec, BaseModel)):
        yield (
            f"its sink's class {name} is no dataclass",
            "put @dataclass(frozen=True) above the class of the sink",
        )
        return
    if not made_by.__qualname__.isidentifier():
        yield f"its sink's class {name} is inside another or a function", "define it at the top of its module"
        return
    for field, value in _values_of(spec).items():
        if (wrong := _not_json(value)) is not None:
            yield (
                f"the field {field!r} of its sink is a {wrong}, which JSON cannot hold",
                "the catalog keeps a sink's fields: use texts, numbers, booleans, None, lists and mappings",
            )


def _values_of(spec: Any) -> dict[str, Any]:
    if isinstance(spec, BaseModel):
        return {name: getattr(spec, name) for name in type(spec).model_fields}
    return {field.name: getattr(spec, field.name) for field in fields(spec) if field.init}


def _not_json(value: object) -> str | None:
    """The type of the first part that JSON does not hold."""
    match value:
        case None | bool() | str():
            plain = type(value) in (type(None), bool, str)
        case int() | float():
            plain = type(value) in (int, float) and math.isfinite(value)
        case list() | tuple():
            return next(filter(None, map(_not_json, value)), None)
        case dict():
            odd = next((type(key).__name__ for key in value if type(key) is not str), None)
            return odd or next(filter(None, map(_not_json, value.values())), None)
        case _:
            plain = False
    return None if plain else type(value).__name__


def _name_of(made_by: type[Any]) -> str:
    return f"{made_by.__module__}:{made_by.__qualname__}"


def _is_sink_class(found: object) -> TypeGuard[type[Any]]:
    return (
        isinstance(found, type)
        and (is_dataclass(found) or issubclass(found, BaseModel))
        and all(callable(getattr(found, name, None)) for name in ("open_sink", "open_reader"))
    )


def _freeze(value: Any) -> Any:
    """JSON's lists as tuples, as frozen dataclasses hold them."""
    if isinstance(value, list):
        return tuple(_freeze(item) for item in value)
    return value
