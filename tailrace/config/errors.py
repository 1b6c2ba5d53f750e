"""What is wrong with a configuration, in words: the file, the key, and what is allowed there."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, get_args, get_origin

from pydantic import BaseModel, ValidationError

from tailrace.eventstore.errors import UsageError
from tailrace.eventstore.settings import DESTINATION_KINDS, SOURCE_KINDS, Settings

Keys = tuple[str, ...]
_KINDS: Mapping[str, Mapping[Any, type[BaseModel]]] = {
    "sources": SOURCE_KINDS,
    "destinations": DESTINATION_KINDS,
}
"""Tables of which each kind has other keys."""


def settings_error(file: Path, env: str | None, error: ValidationError) -> UsageError:
    lines = [_line(item) for item in error.errors(include_url=False, include_input=True)]
    suffix = f" (with [env.{env}])" if env else ""
    return file_error(file, lines, suffix)


def file_error(file: Path, lines: Sequence[str], suffix: str = "") -> UsageError:
    if len(lines) == 1:
        message = f"{file}{suffix}: {lines[0]}"
    else:
        message = f"{file}{suffix} has {len(lines)} errors:\n" + "\n".join(f"  {line}" for line in lines)
    return UsageError(message, hint="all keys with their meaning: tailrace init --example --dry-run")


def _line(item: Any) -> str:
    """One pydantic error as ``key.path: what is wrong and what is allowed``."""
    location = tuple(str(part) for part in item["loc"])
    kinds = _KINDS.get(location[0], {}) if location else {}
    kind = location[2] if location[2:3] and location[2] in kinds else ""
    if kind:  # pydantic names it in the place; the file does not
        location = (*location[:2], *location[3:])
    context = item.get("ctx", {})
    match item["type"]:
        case "extra_forbidden":
            allowed = _allowed_keys(location[:-1], kind)
            guess = did_you_mean(location[-1], allowed)
            known = guess or f"allowed here: {', '.join(allowed)}"
            return f"{to_dotted(location)}: unknown key; {known}"
        case "union_tag_invalid":
            *names, last = map(repr, kinds)
            known = f"{', '.join(names)} or {last}"
            return f"{to_dotted((*location, 'kind'))}: must be {known} (got {context['tag']!r})"
        case "union_tag_not_found":
            return f"{to_dotted((*location, 'kind'))}: is required"
        case "missing":
            return f"{to_dotted(location)}: is required"
        case "string_pattern_mismatch" if location[-1] == "[key]":
            return f"{to_dotted(location[:-1])}: {_NAME_RULE}"
        case "string_pattern_mismatch":
            return f"{to_dotted(location)}: {_NAME_RULE} (got {_display(location, item['input'])})"
        case "literal_error":
            return f"{to_dotted(location)}: must be {context['expected']} (got {_display(location, item['input'])})"
        case "greater_than_equal":
            return f"{to_dotted(location)}: must be at least {context['ge']} (got {_display(location, item['input'])})"
        case "less_than_equal":
            return f"{to_dotted(location)}: must be at most {context['le']} (got {_display(location, item['input'])})"
        case "greater_than":
            return f"{to_dotted(location)}: must be more than {context['gt']} (got {_display(location, item['input'])})"
        case "value_error" if isinstance(item["input"], dict):
            return f"{to_dotted(location)}: {context['error']}"
        case "value_error":
            return f"{to_dotted(location)}: {context['error']} (got {_display(location, item['input'])})"
        case _:
            said = item["msg"].removeprefix("Input ")
            return f"{to_dotted(location)}: {said} (got {_display(location, item['input'])})"


_NAME_RULE = "a name is 1 to 31 of a-z, 0-9 and _, and starts with a letter"
_SECRET_KEYS = frozenset(
    {"dsn", "url", "catalog", "catalog_dsn", "hash_key", "password", "certificate_key_password"}
    | {"secret", "previous_secret"}
)  # settings.py: SecretStr, and a catalog URL with its password


def _display(location: Keys, value: Any) -> str:
    """The value for a message; anything that may hold a secret by its kind only."""
    if _SECRET_KEYS & set(location) or (
        isinstance(value, str) and re.search("[@=]" if "columns" in location else "[:@=]", value)
    ):
        return "text not shown, it may hold a secret"
    return f"a {type(value).__name__}" if isinstance(value, dict | list) else repr(value)


def _allowed_keys(location: Keys, kind: str) -> list[str]:
    """The keys allowed in the table at ``location``, in a source or destination of that kind."""
    model: Any = Settings
    for at, part in enumerate(location):
        model = _type_of_key(model, part)
        if at == 1 and kind:
            model = _KINDS[location[0]][kind]
    allowed = list(model.model_fields) if _is_model(model) else []
    return [*allowed, "env"] if model is Settings else allowed


def _type_of_key(annotation: Any, part: str) -> Any:
    if _is_model(annotation):
        field = annotation.model_fields.get(part)
        return field.annotation if field else None
    if get_origin(annotation) is dict:
        return get_args(annotation)[1]
    return None


def _is_model(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)


def did_you_mean(word: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f"did you mean {close[0]!r}?" if close else ""


def to_dotted(keys: Keys) -> str:
    return ".".join(key if re.fullmatch(r"[A-Za-z0-9_\-\[\]]+", key) else f'"{key}"' for key in keys)
