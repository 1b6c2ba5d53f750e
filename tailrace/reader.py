"""``open_reader``: how an application reads what a projection shows, by its name or with everything given."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, overload

from tailrace import projections
from tailrace.config.load import load_configuration
from tailrace.eventstore.errors import UsageError
from tailrace.eventstore.store import Store
from tailrace.projections.definition.findings import did_you_mean
from tailrace.projections.generations.generation import Generation
from tailrace.projections.sinks.reader import nothing_live_error
from tailrace.projections.sinks.record import SinkClasses

if TYPE_CHECKING:
    from tailrace.config.load import Configuration
    from tailrace.eventstore.settings import Settings
    from tailrace.projections.sinks.reader import Reader
    from tailrace.projections.sinks.specs import SinkSpec


@overload
def open_reader(projection: str, /, *, config: Path | None = None, env: str | None = None) -> Reader: ...


@overload
def open_reader(settings: Settings, store: str, projection: str, spec: SinkSpec) -> Reader: ...


def open_reader(
    settings: Settings | str,
    store: str | None = None,
    projection: str | None = None,
    spec: SinkSpec | None = None,
    *,
    config: Path | None = None,
    env: str | None = None,
) -> Reader:
    """A reader of what is live of a projection; it connects to the sink when it is first used.

    ``open_reader("customer_totals")`` finds ``tailrace.toml`` as the commands do (``config``, else TAILRACE_CONFIG,
    else the current folder; ``env``, else TAILRACE_ENV) and asks the catalog which sink shows the projection.
    ``open_reader(settings, store, projection, spec)`` reads no file and no catalog: for a service that has access to
    the sink alone.

    Raises UsageError for a projection that is not known and for a sink that is not in the settings, OperatorError when
    nothing is live or the sink's optional part is not installed.
    """
    if isinstance(settings, str):
        return _reader_by_name(load_configuration(config, env), settings)
    if store is None or projection is None or spec is None:
        raise UsageError(
            "open_reader takes the name of a projection, or settings, store, projection and sink",
            hint='open_reader("customer_totals") takes the rest from tailrace.toml',
        )
    return projections.open_reader(settings, store, projection, spec)


def _reader_by_name(configuration: Configuration, projection: str) -> Reader:
    settings = configuration.settings
    with Store.open(settings.store, root=configuration.folder) as store:
        live = store.derived.live(projection)
        found = [each for each in store.derived.generations(projection) if each.generation == live]
        if not found:
            raise _nothing_to_read(projection, store.derived.projections())
    spec = Generation.of(found[0]).sink(SinkClasses(settings.projections.sinks_from))
    return projections.open_reader(settings, settings.store.name, projection, spec)


def _nothing_to_read(projection: str, known: list[str]) -> Exception:
    if projection in known:
        return nothing_live_error(projection)
    names = f"built so far: {', '.join(sorted(known)) or 'none'}; tailrace rebuild {projection} builds it"
    return UsageError(
        f"projection {projection!r} was never built", hint=did_you_mean(projection, known) or names
    )
