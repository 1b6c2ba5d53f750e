"""What is wrong with a configuration, in words: the file, the key, and what is allowed there."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, get_args, get_origin

from pydantic import BaseModel, ValidationError

from tailrace.eventstore.errors import UsageError
from tailrace.eventstore.settings import Settings

Keys = tuple[str, ...]


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
    context = item.get("ctx", {})
    match item["type"]:
        case "extra_forbidden":
            allowed = _allowed_keys(location[:-1])
            guess = did_you_mean(location[-1], allowed)
            known = guess or f"allowed here: {', '.join(allowed)}"
            return f"{to_dotted(location)}: unknown key; {known}"
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
    {"dsn", "url", "catalog", "hash_key"}
)  # settings.py: SecretStr, and a catalog URL with its password


def _display(location: Keys, value: Any) -> str:
    """The value for a message; anything that may hold a secret by its kind only."""
    if _SECRET_KEYS & set(location) or (
        isinstance(value, str) and re.search("[@=]" if "columns" in location else "[:@=]", value)
    ):
        return "text not shown, it may hold a secret"
    return f"a {type(value).__name__}" if isinstance(value, dict | list) else repr(value)


def _allowed_keys(location: Keys) -> list[str]:
    """The keys allowed in the table at ``location``."""
    model: Any = Settings
    for part in location:
        model = _type_of_key(model, part)
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
