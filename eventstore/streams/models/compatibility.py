"""JSON Schema of the declared events, and whether today's still take what earlier ones wrote.

What cannot be told counts as a change that old events may not fit: better one question too many in CI than one event
that nobody can read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, TypeAlias

from tailrace.eventstore.streams.models.codec import OURS
from tailrace.eventstore.streams.models.event_types import declared_types
from tailrace.eventstore.streams.models.reshape import Json
from tailrace.eventstore.streams.models.upcasters import is_upcast
from tailrace.eventstore.streams.rows import EventType

Schemas: TypeAlias = Mapping[str, Mapping[str, Json]]
_LOOKED_AT: Final = frozenset(
    {"title", "description", "default", "examples", "deprecated", "$defs", "type", "required", "properties"}
)
_DEPTH_MAX: Final = 20
_LEAST: Final = frozenset({"minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties"})
_MOST: Final = frozenset({"maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties"})


def event_schemas() -> dict[str, dict[str, Json]]:
    """The JSON Schema of each event that users declare, by name and version (as text, as JSON has it)."""
    found: dict[str, dict[str, Json]] = {}
    for kind, codec in sorted(declared_types().items(), key=lambda each: (each[0].name, each[0].version)):
        if not kind.name.startswith(OURS):
            found.setdefault(kind.name, {})[str(kind.version)] = codec.json_schema()
    return found


def incompatible_changes(before: Schemas) -> list[str]:
    """What today's code may not read of events that were written under earlier schemas; empty: it reads all."""
    now = event_schemas()
    problems = []
    for name, versions in sorted(before.items()):
        for version, schema in sorted(versions.items()):
            about = f"{name} version {version}"
            if is_upcast(EventType(name, int(version))):
                continue  # events check tries it on what is stored
            today = now.get(name, {}).get(version)
            if today is None:
                problems.append(f"{about}: no model is declared, and no upcaster leads on")
            else:
                problems += [f"{about}: {each}" for each in _refused(schema, today, schema, today, "")]
    return problems


def _refused(
    old: Json, new: Json, old_root: Json, new_root: Json, path: str, depth: int = 0
) -> Iterator[str]:
    """Why ``new`` may refuse a value that ``old`` takes."""
    old, new = _resolved(old, old_root), _resolved(new, new_root)
    where = path or "the event"
    if depth > _DEPTH_MAX:  # a model of itself
        return
    choices = _choices(old), _choices(new)
    if max(map(len, choices)) > 1:
        for choice in choices[0]:
            tried = [list(_refused(choice, each, old_root, new_root, path, depth + 1)) for each in choices[1]]
            if all(tried):
                yield f"{where} no longer takes {choice.get('type') or choice.get('$ref') or 'one of its kinds'}"
        return
    if "enum" in old or "const" in old or "enum" in new or "const" in new:
        gone = None if not _values(old) else [value for value in _values(old) if value not in _values(new)]
        if _values(new) and (gone is None or gone):
            yield f"{where} no longer takes {gone or 'every value'}"
        return
    if old.get("type") != new.get("type") and (old.get("type"), new.get("type")) != ("integer", "number"):
        yield f"{where} was {old.get('type', 'anything')} and is {new.get('type', 'anything')}"
        return
    yield from _refused_fields(old, new, old_root, new_root, path, depth)
    for key in sorted((old.keys() | new.keys()) - _LOOKED_AT):
        yield from _refused_key(key, old, new, old_root, new_root, path, depth)


def _refused_fields(
    old: Json, new: Json, old_root: Json, new_root: Json, path: str, depth: int
) -> Iterator[str]:
    for name in sorted(set(new.get("required", ())) - set(old.get("required", ()))):
        yield f"field {_below(path, name)} is required now"
    before, now = old.get("properties", {}), new.get("properties", {})
    for name in sorted(before.keys() & now.keys()):
        yield from _refused(before[name], now[name], old_root, new_root, _below(path, name), depth + 1)
    if new.get("additionalProperties") is False:
        for name in sorted(before.keys() - now.keys()):
            yield f"field {_below(path, name)} is gone, and others are forbidden"


def _refused_key(
    key: str, old: Json, new: Json, old_root: Json, new_root: Json, path: str, depth: int
) -> Iterator[str]:
    before, now = old.get(key), new.get(key)
    if now is None or now is True or (key == "additionalProperties" and (before, now) == (None, False)):
        return  # fields that are not declared were not written
    if isinstance(before, dict) and isinstance(now, dict):
        yield from _refused(before, now, old_root, new_root, _below(path, "[]"), depth + 1)
    elif (
        isinstance(before, list)
        and isinstance(now, list)
        and key == "prefixItems"
        and len(before) == len(now)
    ):
        for place, (one, other) in enumerate(zip(before, now, strict=True)):
            yield from _refused(one, other, old_root, new_root, _below(path, f"[{place}]"), depth + 1)
    elif before != now and not _is_wider(key, before, now):
        yield f"{key} of {path or 'the event'} was {before!r} and is {now!r}"


def _is_wider(key: str, before: Any, now: Any) -> bool:
    return before is not None and ((key in _LEAST and now <= before) or (key in _MOST and now >= before))


def _below(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _resolved(schema: Json, root: Json) -> Json:
    for _ in range(10):
        name = schema.get("$ref")
        if name is None:
            break
        schema = root["$defs"][name.rpartition("/")[2]]
    return schema


def _choices(schema: Json) -> list[Json]:
    found: list[Json] = schema.get("anyOf") or schema.get("oneOf") or [schema]
    return found


def _values(schema: Json) -> list[Any]:
    return list(schema["enum"]) if "enum" in schema else [schema["const"]] if "const" in schema else []
