"""Reading ``tailrace.toml``: overlays, ``${VAR}`` expansion; errors name the file, the key and what is allowed.

A string value may hold ``${VAR}``, ``${VAR:-default}`` and ``${file:/run/secrets/x}`` (the file's text without its
last line end); ``$$`` is one dollar sign. ``[env.NAME]`` overlays the tables above it. Relative paths, of SQLite
catalogs too, are relative to the folder of the file.
"""

from __future__ import annotations

import difflib
import os
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args, get_origin
from urllib.parse import urlsplit

from pydantic import BaseModel, ValidationError

from tailrace.eventstore.errors import UsageError
from tailrace.eventstore.settings import SINK_ADDRESS, Settings, SinkSettings, StoreSettings

FILE_NAME = "tailrace.toml"
CONFIG_VARIABLE = "TAILRACE_CONFIG"
ENV_VARIABLE = "TAILRACE_ENV"
SECRET_FILE_BYTES_MAX = 64 * 1024  # a secret is a line; a larger file is the wrong one

_REFERENCE = re.compile(r"\$(?:(\$)|\{([^{}]*)\}|(\{))")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SQLITE = "sqlite:///"

Keys = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Configuration:
    """The settings of one environment, with where they come from. ``warnings`` are said by ``tailrace doctor``."""

    path: Path
    env: str | None
    settings: Settings
    warnings: tuple[str, ...] = ()

    @property
    def folder(self) -> Path:
        return self.path.parent


def load_settings(path: Path | None = None, env: str | None = None) -> Settings:
    """The settings in ``path`` (default: ``TAILRACE_CONFIG``, else ``tailrace.toml`` here) under overlay ``env``
    (default: ``TAILRACE_ENV``). Raises UsageError that names the file and the key."""
    return load_configuration(path, env).settings


def load_configuration(path: Path | None = None, env: str | None = None) -> Configuration:
    """``load_settings`` with its origin. Raises UsageError."""
    file = find_file(path)
    chosen = env or os.environ.get(ENV_VARIABLE) or None
    overlaid = _overlay(file, _parse(file), chosen)
    expanded = _Expansion(file).table(overlaid, ())
    _refuse_topics_in_store(file, expanded)
    anchored = _anchor(expanded, file.parent)
    try:
        settings = Settings.model_validate(anchored)
    except ValidationError as error:
        raise _rendered(file, chosen, error) from None
    store = settings.store.model_copy(update={"topics": settings.topics})
    settings = settings.model_copy(update={"store": store})
    _check_addresses(file, settings)
    _require_hidden_keys(file, overlaid)
    inline = [_dotted(keys) for keys in _inline_passwords(overlaid)]
    if inline and settings.protected:
        raise UsageError(
            f"{file}: {', '.join(inline)}: a password is written in the file of a protected environment",
            hint="take it from the environment or a file: ${SHOP_DSN} or ${file:/run/secrets/shop_dsn}",
        )
    warnings = tuple(
        f"{keys}: a password is written in the file; use ${{VAR}} or ${{file:…}}" for keys in inline
    )
    return Configuration(file, chosen, settings, warnings)


def placed(
    configuration: Configuration, catalog: str, segments: str, s3: Mapping[str, str | None]
) -> StoreSettings:
    """The store's settings with another place, given on the command line and read as the file's values are. ``s3``:
    settings of the object store; None = as they are. Raises UsageError."""
    expanded = _Expansion(Path("command line")).table({"catalog": catalog, "segments": segments}, ())
    store = configuration.settings.store
    given = {name: value for name, value in s3.items() if value is not None}
    document = store.model_dump() | {
        "catalog": _anchored_catalog(expanded["catalog"], configuration.folder),
        "segments": anchored(expanded["segments"], configuration.folder),
        "s3": store.s3.model_dump() | given,
    }
    try:
        return StoreSettings.model_validate(document)
    except ValidationError as error:
        raise _rendered(Path("command line"), None, error) from None


def variables(configuration: Configuration) -> tuple[str, ...]:
    """The environment variables that the file needs under its overlay, each once, in the file's order."""
    overlaid = _overlay(configuration.path, _parse(configuration.path), configuration.env)
    return tuple(dict.fromkeys(_needed(overlaid)))


def _needed(value: Any) -> Iterable[str]:
    """Names of variables in a value, but for those with a default."""
    match value:
        case str():
            inside = (found[2] for found in _REFERENCE.finditer(value) if found[2] is not None)
            yield from (name for name in inside if _VARIABLE.fullmatch(name))
        case dict():
            for part in value.values():
                yield from _needed(part)
        case list():
            for part in value:
                yield from _needed(part)


def find_file(path: Path | None = None) -> Path:
    """The absolute path of the configuration file. Raises UsageError when there is none."""
    given = path or (Path(os.environ[CONFIG_VARIABLE]) if os.environ.get(CONFIG_VARIABLE) else None)
    file = Path(given or FILE_NAME).absolute()
    if file.is_file():
        return file
    if given is None:
        raise UsageError(
            f"there is no {FILE_NAME} in {Path.cwd()}",
            hint="write one with: tailrace init --example; or name one with --config or TAILRACE_CONFIG",
        )
    origin = "--config" if path else CONFIG_VARIABLE
    raise UsageError(f"{file} (from {origin}) is not a file", hint="name an existing tailrace.toml")


def _parse(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{file} is not TOML: {error}", hint='strings need quotes: name = "acme"') from None
    except UnicodeDecodeError:
        raise UsageError(f"{file} is not UTF-8 text", hint="save it as UTF-8") from None
    except OSError as error:
        raise UsageError(f"{file} cannot be read: {error.strerror}", hint="let this user read it") from None


def _overlay(file: Path, document: Mapping[str, Any], env: str | None) -> dict[str, Any]:
    base = {key: value for key, value in document.items() if key != "env"}
    overlays = document.get("env", {})
    if not isinstance(overlays, dict) or not all(isinstance(table, dict) for table in overlays.values()):
        raise UsageError(
            f"{file}: env: must hold one table per environment", hint="write [env.prod] and keys below it"
        )
    if env is None:
        return base
    if env not in overlays:
        known = ", ".join(sorted(overlays)) or "none"
        raise UsageError(
            f"{file} has no environment {env!r} (defined: {known})",
            hint=_did_you_mean(env, overlays) or f"add a table [env.{env}], or choose another with --env",
        )
    return _merged(base, overlays[env])


def _merged(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Tables are merged key by key; any other value, lists too, is replaced."""
    result = dict(base)
    for key, value in over.items():
        below = result.get(key)
        result[key] = _merged(below, value) if isinstance(below, dict) and isinstance(value, dict) else value
    return result


@dataclass(frozen=True, slots=True)
class _Expansion:
    """``${…}`` in the strings of one file."""

    file: Path

    def table(self, table: Mapping[str, Any], at: Keys) -> dict[str, Any]:
        return {key: self.value(value, (*at, key)) for key, value in table.items()}

    def value(self, value: Any, at: Keys) -> Any:
        match value:
            case str():
                return _REFERENCE.sub(lambda match: self._reference(match, at), value)
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
        if not _VARIABLE.fullmatch(name):
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
        return UsageError(f"{self.file}: {_dotted(at)}: {problem}", hint=hint)


def _anchor(document: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Paths relative to the file's folder made absolute, defaults included; values of a wrong type are left alone."""
    defaults = Settings().store
    store = document.get("store", {})
    if isinstance(store, dict):
        catalog = store.get("catalog", defaults.catalog)
        segments = store.get("segments", str(defaults.segments))
        if isinstance(catalog, str) and isinstance(segments, str):
            paths = {"catalog": _anchored_catalog(catalog, folder), "segments": anchored(segments, folder)}
            document = {**document, "store": {**store, **paths}}
    sinks = document.get("sinks", {})
    if isinstance(sinks, dict):
        document = {**document, "sinks": {name: _anchored_sink(sink, folder) for name, sink in sinks.items()}}
    return document


def anchored(segments: str, folder: Path) -> str:
    """A folder relative to the configuration's; what has a scheme is left as it is."""
    return segments if "://" in segments else str(folder / segments)


def _refuse_topics_in_store(file: Path, document: Mapping[str, Any]) -> None:
    """Topics have tables of their own in the file, wherever the store keeps them. Raises UsageError."""
    store = document.get("store")
    if isinstance(store, dict) and "topics" in store:
        raise UsageError(
            f"{file}: store.topics: unknown key", hint='write a table for each: [topics."shop.public.*"]'
        )


def _anchored_catalog(url: str, folder: Path) -> str:
    if not url.startswith(_SQLITE) or url == _SQLITE + ":memory:":
        return url
    return _SQLITE + str(folder / url.removeprefix(_SQLITE))


def _anchored_sink(sink: Any, folder: Path) -> Any:
    if isinstance(sink, dict) and isinstance(sink.get("path"), str):
        return {**sink, "path": str(folder / sink["path"])}
    return sink


def _check_addresses(file: Path, settings: Settings) -> None:
    """Each kind of sink has its one address, and no other."""
    problems = [line for name, sink in settings.sinks.items() for line in _address_problems(name, sink)]
    if problems:
        raise _problems(file, problems)


def _address_problems(name: str, sink: SinkSettings) -> list[str]:
    wanted = SINK_ADDRESS[sink.kind]
    lines = []
    if getattr(sink, wanted) is None:
        lines.append(f"sinks.{name}: a {sink.kind} sink needs {wanted} = …")
    others = [
        other
        for other in dict.fromkeys(SINK_ADDRESS.values())
        if other != wanted and getattr(sink, other) is not None
    ]
    lines += [
        f"sinks.{name}.{other}: a {sink.kind} sink has no {other} (it has {wanted})" for other in others
    ]
    if sink.cluster and sink.kind != "redis":
        lines.append(f"sinks.{name}.cluster: a {sink.kind} sink has no cluster")
    return lines


def _require_hidden_keys(file: Path, overlaid: Mapping[str, Any]) -> None:
    """A hash key that stands in the file protects nothing. Raises UsageError."""
    sources = overlaid.get("sources", {})
    for name, source in sources.items() if isinstance(sources, dict) else ():
        key = source.get("hash_key") if isinstance(source, dict) else None
        if isinstance(key, str) and _REFERENCE.sub(lambda match: (match[2] or "").partition(":-")[2], key):
            raise UsageError(
                f"{file}: {_dotted(('sources', name, 'hash_key'))}: the key is written in the file",
                hint="take it from the environment or a file: ${SHOP_HASH_KEY} or ${file:/run/secrets/shop_hash_key}",
            )


def _inline_passwords(table: Mapping[str, Any], at: Keys = ()) -> Iterable[Keys]:
    """Keys of addresses whose password is written in the file itself."""
    for key, value in table.items():
        if isinstance(value, dict):
            yield from _inline_passwords(value, (*at, key))
        elif key in ("dsn", "url", "catalog") and isinstance(value, str) and _has_password(value):
            yield (*at, key)


def _has_password(address: str) -> bool:
    blanked = _REFERENCE.sub("", address)
    if "://" not in blanked:
        return re.search(r"\bpassword\s*=\s*[^\s]", blanked) is not None
    try:
        return bool(urlsplit(blanked).password) or re.search(r"[?&]password=[^&]", blanked) is not None
    except ValueError:  # not an address at all: connecting to it will say so
        return False


def _rendered(file: Path, env: str | None, error: ValidationError) -> UsageError:
    lines = [_line(item) for item in error.errors(include_url=False, include_input=True)]
    suffix = f" (with [env.{env}])" if env else ""
    return _problems(file, lines, suffix)


def _problems(file: Path, lines: Sequence[str], suffix: str = "") -> UsageError:
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
            allowed = _allowed(location[:-1])
            guess = _did_you_mean(location[-1], allowed)
            known = guess or f"allowed here: {', '.join(allowed)}"
            return f"{_dotted(location)}: unknown key; {known}"
        case "missing":
            return f"{_dotted(location)}: is required"
        case "string_pattern_mismatch" if location[-1] == "[key]":
            return f"{_dotted(location[:-1])}: {_NAME_RULE}"
        case "string_pattern_mismatch":
            return f"{_dotted(location)}: {_NAME_RULE} (got {_shown(location, item['input'])})"
        case "literal_error":
            return (
                f"{_dotted(location)}: must be {context['expected']} (got {_shown(location, item['input'])})"
            )
        case "greater_than_equal":
            return f"{_dotted(location)}: must be at least {context['ge']} (got {_shown(location, item['input'])})"
        case "less_than_equal":
            return f"{_dotted(location)}: must be at most {context['le']} (got {_shown(location, item['input'])})"
        case "greater_than":
            return f"{_dotted(location)}: must be more than {context['gt']} (got {_shown(location, item['input'])})"
        case "value_error" if isinstance(item["input"], dict):
            return f"{_dotted(location)}: {context['error']}"
        case "value_error":
            return f"{_dotted(location)}: {context['error']} (got {_shown(location, item['input'])})"
        case _:
            said = item["msg"].removeprefix("Input ")
            return f"{_dotted(location)}: {said} (got {_shown(location, item['input'])})"


_NAME_RULE = "a name is 1 to 31 of a-z, 0-9 and _, and starts with a letter"
_SECRET_KEYS = frozenset(
    {"dsn", "url", "catalog", "hash_key"}
)  # settings.py: SecretStr, and a catalog URL with its password


def _shown(location: Keys, value: Any) -> str:
    """The value for a message; anything that may hold a secret by its kind only."""
    if _SECRET_KEYS & set(location) or (
        isinstance(value, str) and re.search("[@=]" if "columns" in location else "[:@=]", value)
    ):
        return "text not shown, it may hold a secret"
    return f"a {type(value).__name__}" if isinstance(value, dict | list) else repr(value)


def _allowed(location: Keys) -> list[str]:
    """The keys allowed in the table at ``location``."""
    model: Any = Settings
    for part in location:
        model = _below(model, part)
    allowed = list(model.model_fields) if _is_model(model) else []
    return [*allowed, "env"] if model is Settings else allowed


def _below(annotation: Any, part: str) -> Any:
    if _is_model(annotation):
        field = annotation.model_fields.get(part)
        return field.annotation if field else None
    if get_origin(annotation) is dict:
        return get_args(annotation)[1]
    return None


def _is_model(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)


def _did_you_mean(word: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f"did you mean {close[0]!r}?" if close else ""


def _dotted(keys: Keys) -> str:
    return ".".join(key if re.fullmatch(r"[A-Za-z0-9_\-\[\]]+", key) else f'"{key}"' for key in keys)
