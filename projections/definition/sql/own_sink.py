"""A user's own sink, named in a header: ``module:name`` of a factory that is called with the header's options."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any

from tailrace.eventstore.errors import manual_page
from tailrace.projections.definition.findings import did_you_mean
from tailrace.projections.definition.source import user_place
from tailrace.projections.sinks.specs import OwnSink

_EXAMPLE = 'for example factory = "shop.sinks:TotalsFile", options = { path = "totals.db" }'


class WrongSink(Exception):
    """What is wrong with ``factory`` or ``options`` (``option``), and what to do about it."""

    def __init__(self, option: str, what: str, hint: str) -> None:
        super().__init__(what)
        self.option, self.what, self.hint = option, what, hint


def own_sink(factory: object, options: object) -> OwnSink:
    """The sink that ``factory`` makes. Raises WrongSink. Its module is imported."""
    if not isinstance(options, Mapping):
        raise WrongSink("options", "sink.options is no table", _EXAMPLE)
    make = _import_factory(factory)
    try:
        made = make(**options)
    except Exception as error:
        place = f" ({at})" if (at := user_place(error)) else ""
        raise WrongSink(
            "options",
            f"{factory} does not give a sink for these options: {type(error).__name__}: {error}{place}",
            "sink.options are its arguments by name",
        ) from error
    if not isinstance(made, OwnSink):
        raise WrongSink(
            "factory",
            f"{factory} gives a {type(made).__name__}, which is no sink",
            "a sink has open_sink and open_reader: see "
            + manual_page("projections/sinks.md", "A sink of your own"),
        )
    return made


def _import_factory(factory: object) -> Callable[..., Any]:
    module_name, colon, name = factory.partition(":") if isinstance(factory, str) else ("", "", "")
    if not (module_name and colon and name.isidentifier()):
        raise WrongSink("factory", "sink.factory does not name what makes the sink as module:name", _EXAMPLE)
    try:
        module = importlib.import_module(module_name)
    except Exception as error:
        place = f" ({at})" if (at := user_place(error)) else ""
        raise WrongSink(
            "factory",
            f"module {module_name!r} of sink.factory does not import: {type(error).__name__}: {error}{place}",
            "modules are looked up from the folder of tailrace.toml and the installed packages",
        ) from error
    made: Callable[..., Any] | None = getattr(module, name, None)
    if not callable(made):
        known = [each for each in vars(module) if not each.startswith("_")]
        raise WrongSink(
            "factory",
            f"module {module_name!r} has no class or function {name}",
            did_you_mean(name, known) or "sink.factory is a class, or a function, at the top of its module",
        )
    return made
