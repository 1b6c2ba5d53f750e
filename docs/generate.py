"""Writes the pages of ``docs/reference`` from the code: ``python -m docs.generate``, or ``make reference``.

A page is a function in ``PAGES`` that returns its text. ``tests/docs/test_reference.py`` compares it with the file.
What has no description in the code fails there: ``Undescribed`` names it.
"""

from __future__ import annotations

import ast
import inspect
import re
import tempfile
import textwrap
import types
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import typer
from annotated_types import Ge, Gt, Le
from pydantic import BaseModel, SecretStr
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

import tailrace
from docs.translation import parts
from tailrace import errors, projections
from tailrace.cli.app import app
from tailrace.config.load import CONFIG_VARIABLE, ENV_VARIABLE
from tailrace.eventstore.disclosure import VARIABLE
from tailrace.eventstore.errors import DOCS_URL_VARIABLE, Reaction, TailraceError
from tailrace.eventstore.model.retention import Retention
from tailrace.eventstore.settings import DESTINATION_KINDS, SINK_ADDRESS, SOURCE_KINDS, Settings
from tailrace.eventstore.store import Store
from tailrace.metrics import LABELS
from tailrace.metrics.capture import Collector
from tailrace.metrics.projections import ProjectionCollector
from tailrace.metrics.publications import PublicationCollector
from tailrace.projections.context import ProjectionContext
from tailrace.projections.definition.model import Projection
from tailrace.projections.sinks.specs import OwnSink

FOLDER = Path(__file__).parent / "reference"
_MADE = "<!-- Written by `make reference` from the code. -->"
_MIB = 1 << 20


class Undescribed(Exception):
    """Something public has no description."""


def described(text: str | None, name: str) -> str:
    """A description on one line. Raises Undescribed when there is none."""
    if text is None or not text.strip():
        raise Undescribed(name)
    return " ".join(inspect.cleandoc(text).replace("``", "`").split())


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    cells = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |" for row in cells)


def page(title: str, *parts: str) -> str:
    return "\n\n".join([f"# {title}", _MADE, *parts]) + "\n"


# ------------------------------------------------------------------------------------------------- configuration

_SECTIONS: Mapping[str, str] = {
    "sources": "sources.NAME",
    "topics": 'topics."SOURCE.SCHEMA.TABLE"',
    "sinks": "sinks.NAME",
    "destinations": "destinations.NAME",
    "publish": "publish.NAME",
    "tables": 'tables."SCHEMA.TABLE"',
}
"""Tables of the file that are written once for each name."""
_KINDS: Mapping[str, Mapping[Any, type[BaseModel]]] = {
    "sources": SOURCE_KINDS,
    "destinations": DESTINATION_KINDS,
}
"""Tables that have other settings for each kind."""
_VARIABLES = (
    (f"`{CONFIG_VARIABLE}`", "The configuration file, where `--config` names none. Default: `tailrace.toml` here."),
    (f"`{ENV_VARIABLE}`", "The overlay `[env.NAME]`, where `--env` names none."),
    (f"`{VARIABLE}`", "1: errors and differences quote values of rows, as with `--show-values`."),
    (f"`{DOCS_URL_VARIABLE}`", "Address of the folder `docs` of this version, where a team serves it. Hints of errors"
     " then link to its pages; without it they name them."),
)  # fmt: skip
_TYPES: Mapping[object, str] = {
    bool: "true or false",
    float: "number",
    int: "integer",
    Path: "path",
    Retention: "text",
    SecretStr: "text, secret",
    str: "text",
}


def configuration() -> str:
    fields = Settings.model_fields.items()
    top = [(name, field) for name, field in fields if name not in _KINDS and _model(field) is None]
    addresses = [(f"`{kind}`", f"`{address}`") for kind, address in SINK_ADDRESS.items()]
    return page(
        "Configuration",
        "What `tailrace.toml` may hold. `tailrace init --example` writes one to begin with. A text may hold `${VAR}`,"
        " `${VAR:-default}` and `${file:/run/secrets/x}`; `$$` is a dollar sign. Tables below `[env.NAME]` replace the"
        " keys above them when `--env NAME` or `TAILRACE_ENV` names them. Relative paths begin at the folder of the"
        " file.",
        "## At the top of the file",
        _settings(top, ""),
        *_models(Settings, ""),
        "## The address of a sink",
        table(("kind", "setting with its address"), addresses),
        "## Environment variables",
        table(("variable", "meaning"), _VARIABLES),
    )


def _models(model: type[BaseModel], above: str) -> Iterator[str]:
    """A section for each table, each followed by the tables inside it."""
    for name, field in model.model_fields.items():
        if (above, name) == ("store", "topics"):  # in the file these are at the top
            continue
        place = ".".join(filter(None, (above, _SECTIONS.get(name, name))))
        if model is Settings and name in _KINDS:
            for kind, inner in _KINDS[name].items():
                yield from _section(inner, place, f" of the kind {kind}")
        elif (found := _model(field)) is not None:
            yield from _section(found, place)


def _section(model: type[BaseModel], place: str, kind: str = "") -> Iterator[str]:
    own = [(key, each) for key, each in model.model_fields.items() if _model(each) is None]
    yield f"## `[{place}]`{kind}"
    yield described(model.__doc__, model.__name__)
    yield _settings(own, place)
    yield from _models(model, place)


def _settings(fields: Sequence[tuple[str, FieldInfo]], place: str) -> str:
    rows = [
        (f"`{name}`", _type(field), _default(name, field), described(field.description, f"{place}.{name}"))
        for name, field in fields
    ]
    return table(("setting", "type", "default", "meaning"), rows)


def _model(field: FieldInfo) -> type[BaseModel] | None:
    """The model of a table, or of each of several named ones."""
    for kind in (field.annotation, *typing.get_args(field.annotation)):
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            return kind
    return None


def _type(field: FieldInfo) -> str:
    limits = [
        f"{sign} {getattr(bound, kind.__name__.lower())}"
        for bound in field.metadata
        for kind, sign in ((Ge, "≥"), (Gt, ">"), (Le, "≤"))
        if isinstance(bound, kind)
    ]
    return ", ".join([_type_name(field.annotation), *limits])


def _type_name(annotation: Any) -> str:
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated:
        return _type_name(arguments[0])
    if origin is Literal:
        return " or ".join(f"`{value}`" for value in arguments)
    if origin in (typing.Union, types.UnionType):
        names = dict.fromkeys(_type_name(each) for each in arguments if each is not type(None))
        return " or ".join(names)
    if origin is tuple:
        return f"list of {_type_name(arguments[0])}"
    if origin is dict:
        return f"table of {_type_name(arguments[1])}"
    return _TYPES[annotation]


def _default(name: str, field: FieldInfo) -> str:
    value = field.default
    if value is PydanticUndefined:
        return "required"
    match value:
        case None:
            return ""
        case bool():
            return f"`{str(value).lower()}`"
        case int() if name.endswith("bytes") and value and value % _MIB == 0:
            return f"`{value}` ({value // _MIB} MiB)"
        case Retention():
            return '`"keep"`'
        case str() | Path():
            return f'`"{value}"`'
        case tuple():
            return f"`[{', '.join(f'{chr(34)}{each}{chr(34)}' for each in value)}]`"
        case dict():
            return "`{}`"
    return f"`{value:g}`" if isinstance(value, float) else f"`{value}`"


# -------------------------------------------------------------------------------------------------- command line


def command_line() -> str:
    root = typer.main.get_command(app)
    parts = [
        described(root.help, "tailrace"),
        "Global options, which may stand anywhere on the line:",
        _parameters(root),
        "Exit codes: 0 done, 1 a bug, 2 wrong usage, 3 nothing to do (with `--detailed-exitcode`), 4 a difference was"
        " found, 5 fenced, 6 may be tried again, 7 somebody has to act first, 130 interrupted.",
    ]
    for path, command in _commands(root, "tailrace"):
        level = "##" if path.count(" ") == 1 else "###"
        parts += [f"{level} {path}", _help(command, path)]
        if not hasattr(command, "commands"):
            parts += [f"```console\n$ {_usage(path, command)}\n```", _parameters(command)]
    return page("Command line", *filter(None, parts))


def _commands(group: Any, above: str) -> Iterator[tuple[str, Any]]:
    for name, command in group.commands.items():
        path = f"{above} {name}"
        yield path, command
        if hasattr(command, "commands"):
            yield from _commands(command, path)


def _help(command: Any, path: str) -> str:
    paragraphs = re.split(r"\n\s*\n", inspect.cleandoc(command.help or "").replace("\b", ""))
    return "\n\n".join(_plain(described(paragraph, path)) for paragraph in paragraphs)


def _usage(path: str, command: Any) -> str:
    names = [
        _argument_name(each) if each.required else f"[{_argument_name(each)}]"
        for each in command.params
        if each.param_type_name == "argument"
    ]
    options = ["[OPTIONS]"] if len(names) < len(command.params) else []
    return " ".join([path, *options, *names])


def _argument_name(parameter: Any) -> str:
    name = re.sub(r"[\[\].…]", "", parameter.metavar or parameter.name).upper()
    return f"{name}…" if parameter.nargs == -1 else name


def _parameters(command: Any) -> str:
    rows = [
        (
            f"`{_parameter_name(each)}`",
            _plain(described(each.help, f"{command.name} {each.name}"))
            + (" Required." if each.required and each.param_type_name == "option" else ""),
        )
        for each in command.params
    ]
    return table(("option", "meaning"), rows) if rows else ""


def _parameter_name(parameter: Any) -> str:
    if parameter.param_type_name == "argument":
        return _argument_name(parameter)
    names = ", ".join([*parameter.opts, *parameter.secondary_opts])
    value = "" if parameter.is_flag else f" {parameter.metavar or parameter.name.upper()}"
    return names + value


def _plain(text: str) -> str:
    """Help without the escapes of its markup."""
    return text.replace("\\[", "[")


# ---------------------------------------------------------------------------------------------- inputs and sinks

_INPUTS = (
    projections.State,
    projections.Changes,
    projections.Events,
    projections.Result,
    projections.Through,
    projections.Computed,
)
_SINKS = (
    projections.PostgresTable,
    projections.RedisCache,
    projections.SearchIndex,
    projections.ParquetFolder,
)
_DECLARED = ("key", "sink", "version", "trust", "tolerance", "freshness", "collation")
"""Options of ``@projection``; every further argument is an input."""


@dataclass(frozen=True, slots=True)
class Option:
    """A field of a dataclass as it is written: its type, its default and the text below it."""

    name: str
    type: str
    default: str
    meaning: str


def inputs_and_sinks() -> str:
    declared = [option for option in options(Projection) if option.name in _DECLARED]
    methods = [
        (f"`{name}{inspect.signature(method)}`".replace("'", ""), described(method.__doc__, name))
        for name, method in vars(OwnSink).items()
        if name.startswith("open_")
    ]
    return page(
        "Inputs and sinks",
        "All of these are imported from `tailrace`. How they are used:"
        " [writing a projection](../projections/writing.md).",
        "## `@projection`",
        "Makes a projection of a function from DataFrames to one DataFrame. Every argument that is not named here is an"
        " input: the function has a parameter of its name and gets a DataFrame there. A parameter `now` gets the commit"
        " time of the position.",
        _options(declared),
        "## Inputs",
        *_classes(_INPUTS),
        "## Sinks",
        *_classes(_SINKS),
        "### A sink of your own",
        _class_text(OwnSink),
        table(("method", "gives"), methods),
        _key_value(),
    )


def _classes(kinds: Sequence[type]) -> Iterator[str]:
    for kind in kinds:
        yield f"### `{kind.__name__}`"
        yield _class_text(kind)
        yield _options(options(kind))


def _key_value() -> str:
    from tailrace.projections.sinks.keyvalue import sink

    return (
        described((sink.__doc__ or "").split("\n\n")[0], sink.__name__)
        + "\n\n"
        + described((sink.__doc__ or "").split("\n\n")[-1], sink.__name__)
    )


def _class_text(kind: type) -> str:
    paragraphs = re.split(r"\n\s*\n", inspect.cleandoc(kind.__doc__ or ""))
    return "\n\n".join(described(paragraph, kind.__name__) for paragraph in paragraphs)


def options(kind: type) -> list[Option]:
    """The fields of a dataclass. Raises Undescribed for one without a text below it."""
    (definition,) = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
    assert isinstance(definition, ast.ClassDef)
    found = []
    for statement, below in zip(definition.body, [*definition.body[1:], None], strict=True):
        match statement, below:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                pass
            case ast.AnnAssign(target=ast.Name(id=name)), _:
                raise Undescribed(f"{kind.__name__}.{name}")
            case _:
                continue
        default = "required" if statement.value is None else f"`{_default_text(statement.value)}`"
        meaning = described(text, f"{kind.__name__}.{name}")
        found.append(Option(name, f"`{_annotation(kind, statement.annotation)}`", default, meaning))
    return found


def _annotation(kind: type, annotation: ast.expr) -> str:
    """The type as it is written, but with what names of the module stand for."""
    module = ast.parse(inspect.getsource(inspect.getmodule(kind) or kind))
    aliases = {
        target.id: ast.unparse(statement.value)
        for statement in module.body
        if isinstance(statement, ast.Assign)
        for target in statement.targets
        if isinstance(target, ast.Name) and isinstance(statement.value, ast.Subscript | ast.BinOp)
    }
    text = re.sub(r"\w+", lambda name: aliases.get(name[0], name[0]), ast.unparse(annotation))
    return text.replace("'", '"')


def _default_text(value: ast.expr) -> str:
    text = ast.unparse(value)
    return "{}" if text == "field(default_factory=dict)" else text.replace("'", '"')


def _options(found: Sequence[Option]) -> str:
    rows = [(f"`{each.name}`", each.type, each.default, each.meaning) for each in found]
    return table(("option", "type", "default", "meaning"), rows)


# ------------------------------------------------------------------------------------------------------- metrics


def metrics() -> str:
    with (
        tempfile.TemporaryDirectory() as place,
        Store.open(Settings().store, create=True, root=Path(place)) as store,
    ):
        captured = _families(Collector(store, [], list).collect())
        projected = _families(ProjectionCollector(ProjectionContext(store, Settings(), {})).collect())
        published = _families(PublicationCollector(store, {}, {}).collect())
    used = dict.fromkeys(
        label for row in (*captured, *projected, *published) for label in row[2].split(", ") if label
    )
    labels = [(name, described(LABELS.get(name.strip("`")), f"label {name}")) for name in used]
    return page(
        "Metrics",
        "What Prometheus scrapes with `--metrics-port`, or `metrics.port`, `metrics.projections_port` and"
        " `metrics.publications_port` of the [configuration](configuration.md). What is not known has no sample.",
        "## `tailrace capture`",
        table(("metric", "type", "labels", "meaning"), captured),
        "## `tailrace run`",
        table(("metric", "type", "labels", "meaning"), projected),
        "## `tailrace publish`",
        table(("metric", "type", "labels", "meaning"), published),
        "## Labels",
        table(("label", "meaning"), labels),
    )


def _families(families: Iterator[Any]) -> list[tuple[str, str, str, str]]:
    return [
        (
            f"`{each.name}{'_total' if each.type == 'counter' else ''}`",
            each.type,
            ", ".join(f"`{label}`" for label in each._labelnames),
            described(each.documentation, each.name),
        )
        for each in families
    ]


# -------------------------------------------------------------------------------------------------------- errors

_REACTIONS: Mapping[Reaction, str] = {
    Reaction.RETRY: "nobody: try again later",
    Reaction.OPERATOR: "the operator, before it is tried again",
    Reaction.NEVER: "the caller: the same call fails again",
}


def public_errors() -> list[type[TailraceError]]:
    """What is exported by ``tailrace.errors``, then what other public modules add."""
    exported = [
        getattr(module, name) for module in (errors, tailrace, projections) for name in module.__all__
    ]
    found = (kind for kind in exported if isinstance(kind, type) and issubclass(kind, TailraceError))
    return sorted(dict.fromkeys(found), key=lambda kind: kind is not TailraceError)


def error_list() -> str:
    rows = [
        (
            f"`{kind.__name__}`",
            f"`{kind.__mro__[1].__name__}`" if kind is not TailraceError else "",
            _class_text(kind).replace("\n\n", " "),
            _REACTIONS[kind.reaction],
            str(kind.exit_code),
        )
        for kind in public_errors()
    ]
    return page(
        "Errors",
        "Every error that Tailrace raises on purpose is a `TailraceError`: `message` says what is wrong and where,"
        " `hint` what to do about it. On the command line its exit code says who has to act. Errors that are not listed"
        " are subclasses of these.",
        table(("error", "is a", "when, and what to do", "who acts", "exit code"), rows),
    )


# --------------------------------------------------------------------------------------------------- translation


def postgres_and_spark() -> str:
    tables = [part for title, head, rows in parts() for part in (f"## {title}", table(head, rows))]
    return page(
        "Postgres' SQL and Spark's",
        "What of Postgres' SQL a query may hold. What is *equal* here is compared with Postgres' own answers by the"
        " tests, over edges of every type and at random. Everything else is refused at its line and column. An argument"
        " that is called a constant is written as one.",
        "Errors differ in five ways. Here, a numeric of more than 38 digits is one when it is computed. So is a text"
        " that is cast and not written as Postgres prints the type, and an object of JSON that is taken as text. A"
        " float that becomes infinite or zero is an error in Postgres, and here `Infinity` or `0`. What stands beside a"
        " NULL may be computed, and fail, in one of them only.",
        *tables,
    )


PAGES: Mapping[str, Callable[[], str]] = {
    "configuration.md": configuration,
    "command-line.md": command_line,
    "inputs-and-sinks.md": inputs_and_sinks,
    "metrics.md": metrics,
    "errors.md": error_list,
    "postgres-and-spark.md": postgres_and_spark,
}


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    for name, write in PAGES.items():
        (FOLDER / name).write_text(write(), encoding="utf-8")


if __name__ == "__main__":
    main()
