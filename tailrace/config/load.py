"""Reading ``tailrace.toml``: overlays, ``${VAR}`` expansion; errors name the file, the key and what is allowed.

A string value may hold ``${VAR}``, ``${VAR:-default}`` and ``${file:/run/secrets/x}`` (the file's text without its
last line end); ``$$`` is one dollar sign. ``[env.NAME]`` overlays the tables above it. Relative paths, of SQLite
catalogs too, are relative to the folder of the file.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from pydantic import ValidationError

from tailrace.config.errors import Keys, did_you_mean, file_error, settings_error, to_dotted
from tailrace.config.expand import REFERENCE, Expansion, variables_in
from tailrace.eventstore.errors import UsageError
from tailrace.eventstore.settings import SINK_ADDRESS, Settings, SinkSettings, StoreSettings

FILE_NAME = "tailrace.toml"
CONFIG_VARIABLE = "TAILRACE_CONFIG"
ENV_VARIABLE = "TAILRACE_ENV"

_SQLITE = "sqlite:///"


@dataclass(frozen=True, slots=True)
class Configuration:
    """The settings of one environment, with where they come from. ``tailrace doctor`` prints the ``warnings``."""

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
    expanded = Expansion(file).table(overlaid, ())
    _refuse_topics_in_store(file, expanded)
    document = _absolute_paths(expanded, file.parent)
    try:
        settings = Settings.model_validate(document)
    except ValidationError as error:
        raise settings_error(file, chosen, error) from None
    store = settings.store.model_copy(update={"topics": settings.topics})
    settings = settings.model_copy(update={"store": store})
    _check_addresses(file, settings)
    _require_hidden_keys(file, overlaid)
    inline = [to_dotted(keys) for keys in _inline_passwords(overlaid)]
    if inline and settings.protected:
        raise UsageError(
            f"{file}: {', '.join(inline)}: a password is written in the file of a protected environment",
            hint="take it from the environment or a file: ${SHOP_DSN} or ${file:/run/secrets/shop_dsn}",
        )
    warnings = tuple(
        f"{keys}: a password is written in the file; use ${{VAR}} or ${{file:…}}" for keys in inline
    )
    return Configuration(file, chosen, settings, warnings)


def store_at(
    configuration: Configuration, catalog: str, segments: str, s3: Mapping[str, str | None]
) -> StoreSettings:
    """The store's settings with another place, given on the command line and read as the file's values are. ``s3``:
    settings of the object store; None = as they are. Raises UsageError."""
    expanded = Expansion(Path("command line")).table({"catalog": catalog, "segments": segments}, ())
    store = configuration.settings.store
    given = {name: value for name, value in s3.items() if value is not None}
    document = store.model_dump() | {
        "catalog": _absolute_catalog(expanded["catalog"], configuration.folder),
        "segments": absolute_segments(expanded["segments"], configuration.folder),
        "s3": store.s3.model_dump() | given,
    }
    try:
        return StoreSettings.model_validate(document)
    except ValidationError as error:
        raise settings_error(Path("command line"), None, error) from None


def variables(configuration: Configuration) -> tuple[str, ...]:
    """The environment variables that the file needs under its overlay, each once, in the file's order."""
    overlaid = _overlay(configuration.path, _parse(configuration.path), configuration.env)
    return tuple(dict.fromkeys(variables_in(overlaid)))


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
            hint=did_you_mean(env, overlays) or f"add a table [env.{env}], or choose another with --env",
        )
    return _merge(base, overlays[env])


def _merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Tables are merged key by key; any other value, lists too, is replaced."""
    result = dict(base)
    for key, value in over.items():
        below = result.get(key)
        result[key] = _merge(below, value) if isinstance(below, dict) and isinstance(value, dict) else value
    return result


def _absolute_paths(document: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Paths relative to the file's folder made absolute, defaults included; values of a wrong type are left alone."""
    defaults = Settings().store
    store = document.get("store", {})
    if isinstance(store, dict):
        catalog = store.get("catalog", defaults.catalog)
        segments = store.get("segments", str(defaults.segments))
        if isinstance(catalog, str) and isinstance(segments, str):
            paths = {
                "catalog": _absolute_catalog(catalog, folder),
                "segments": absolute_segments(segments, folder),
            }
            document = {**document, "store": {**store, **paths}}
    tables = (("sinks", _absolute_sink), ("sources", _absolute_files), ("destinations", _absolute_files))
    for name, absolute in tables:
        found = document.get(name, {})
        if isinstance(found, dict):
            document = {**document, name: {key: absolute(each, folder) for key, each in found.items()}}
    return document


def absolute_segments(segments: str, folder: Path) -> str:
    """A folder relative to the configuration's; what has a scheme is left as it is."""
    return segments if "://" in segments else str(folder / segments)


def _refuse_topics_in_store(file: Path, document: Mapping[str, Any]) -> None:
    """Topics have tables of their own in the file, wherever the store keeps them. Raises UsageError."""
    store = document.get("store")
    if isinstance(store, dict) and "topics" in store:
        raise UsageError(
            f"{file}: store.topics: unknown key", hint='write a table for each: [topics."shop.public.*"]'
        )


def _absolute_catalog(url: str, folder: Path) -> str:
    if not url.startswith(_SQLITE) or url == _SQLITE + ":memory:":
        return url
    return _SQLITE + str(folder / url.removeprefix(_SQLITE))


def _absolute_sink(sink: Any, folder: Path) -> Any:
    if isinstance(sink, dict) and isinstance(sink.get("path"), str):
        return {**sink, "path": str(folder / sink["path"])}
    return sink


_FILES = ("ca_file", "certificate", "certificate_key", "credentials_file")


def _absolute_files(server: Any, folder: Path) -> Any:
    if not isinstance(server, dict):
        return server
    files = {key: server[key] for key in _FILES if isinstance(server.get(key), str)}
    if server.get("kind") == "own" and isinstance(server.get("folder", ""), str):
        files["folder"] = server.get("folder", "")
    found = {**server, **{key: str(folder / file) for key, file in files.items()}}
    if isinstance(server.get("registry"), dict):
        found["registry"] = _absolute_files(server["registry"], folder)
    return found


def _check_addresses(file: Path, settings: Settings) -> None:
    """Raises UsageError unless each sink has the one address of its kind, and each publication its destination."""
    problems = [line for name, sink in settings.sinks.items() for line in _addressfile_error(name, sink)]
    problems += [
        f"publish.{name}.destination: there is no table [destinations.{each.destination}]"
        for name, each in settings.publish.items()
        if each.destination not in settings.destinations
    ]
    problems += [
        f"publish.{name}.{key}: only a destination of the kind kafka has it"
        for name, each in settings.publish.items()
        if each.destination in settings.destinations
        and settings.destinations[each.destination].kind != "kafka"
        for key in each.for_kafka
    ]
    if problems:
        raise file_error(file, problems)


def _addressfile_error(name: str, sink: SinkSettings) -> list[str]:
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
    """Raises UsageError for a hash key in the file itself, which protects nothing."""
    sources = overlaid.get("sources", {})
    for name, source in sources.items() if isinstance(sources, dict) else ():
        key = source.get("hash_key") if isinstance(source, dict) else None
        if isinstance(key, str) and REFERENCE.sub(lambda match: (match[2] or "").partition(":-")[2], key):
            raise UsageError(
                f"{file}: {to_dotted(('sources', name, 'hash_key'))}: the key is written in the file",
                hint="take it from the environment or a file: ${SHOP_HASH_KEY} or ${file:/run/secrets/shop_hash_key}",
            )


_BARE_SECRETS = ("password", "certificate_key_password", "secret", "previous_secret")


def _inline_passwords(table: Mapping[str, Any], at: Keys = ()) -> Iterable[Keys]:
    """Keys of passwords, and of addresses whose password is written in the file itself."""
    for key, value in table.items():
        if isinstance(value, dict):
            yield from _inline_passwords(value, (*at, key))
        elif isinstance(value, str) and (
            (key in ("dsn", "url", "catalog", "catalog_dsn") and _has_password(value))
            or (key in _BARE_SECRETS and REFERENCE.sub("", value))
        ):
            yield (*at, key)


def _has_password(address: str) -> bool:
    blanked = REFERENCE.sub("", address)
    if "://" not in blanked:
        return re.search(r"\bpassword\s*=\s*[^\s]", blanked) is not None
    try:
        return bool(urlsplit(blanked).password) or re.search(r"[?&]password=[^&]", blanked) is not None
    except ValueError:  # not an address at all: connecting to it will say so
        return False
