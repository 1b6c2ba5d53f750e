"""``${VAR}``, ``${VAR:-default}`` and ``${file:…}`` in the strings of a configuration."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tailrace.config.errors import Keys, to_dotted
from tailrace.eventstore.errors import UsageError

SECRET_FILE_BYTES_MAX = 64 * 1024  # a secret is a line; a larger file is the wrong one
REFERENCE = re.compile(r"\$(?:(\$)|\{([^{}]*)\}|(\{))")
VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True, slots=True)
class Expansion:
    """``${…}`` in the strings of one file."""

    file: Path

    def table(self, table: Mapping[str, Any], at: Keys) -> dict[str, Any]:
        return {key: self.value(value, (*at, key)) for key, value in table.items()}

    def value(self, value: Any, at: Keys) -> Any:
        match value:
            case str():
                return REFERENCE.sub(lambda match: self._reference(match, at), value)
            case dict():
                return self.table(value, at)
            case list():
                return [self.value(item, (*at, str(index))) for index, item in enumerate(value)]
            case _:
                return value

    def _reference(self, match: re.Match[str], at: Keys) -> str:
        dollar, inside, unclosed = match.groups()
        if dollar:
            return "$"
        if unclosed:
            raise self._error(
                at, "a ${ without its }", "close it, or write $${ for the two characters themselves"
            )
        if inside.startswith("file:"):
            return self._secret(inside.removeprefix("file:"), at)
        name, has_default, default = inside.partition(":-")
        if not VARIABLE.fullmatch(name):
            raise self._error(
                at,
                f"${{{inside}}} names no variable",
                "use ${VAR}, ${VAR:-default} or ${file:/run/secrets/x}",
            )
        found = os.environ.get(name)
        if has_default:
            return found or default
        if found is None:
            raise self._error(
                at,
                f"the environment variable {name} is not set",
                f"export {name}=…, or write ${{{name}:-default}}",
            )
        return found

    def _secret(self, name: str, at: Keys) -> str:
        path = self.file.parent / Path(name).expanduser()
        try:
            with path.open("rb") as file:
                data = file.read(SECRET_FILE_BYTES_MAX + 1)
            if len(data) > SECRET_FILE_BYTES_MAX:
                raise self._error(at, f"the secret file {path} is larger than 64 KiB", "name the right file")
            return data.decode().removesuffix("\n").removesuffix("\r")
        except OSError as error:
            raise self._error(
                at,
                f"the secret file {path} cannot be read: {error.strerror}",
                "create it, or let this user read it",
            ) from None
        except UnicodeDecodeError:
            raise self._error(
                at, f"the secret file {path} is not UTF-8 text", "name the right file"
            ) from None

    def _error(self, at: Keys, problem: str, hint: str) -> UsageError:
        return UsageError(f"{self.file}: {to_dotted(at)}: {problem}", hint=hint)


def variables_in(value: Any) -> Iterable[str]:
    """Names of variables in a value, but for those with a default."""
    match value:
        case str():
            inside = (found[2] for found in REFERENCE.finditer(value) if found[2] is not None)
            yield from (name for name in inside if VARIABLE.fullmatch(name))
        case dict():
            for part in value.values():
                yield from variables_in(part)
        case list():
            for part in value:
                yield from variables_in(part)
