"""A bridge of the user's own: a class that the configuration names, and nothing else does."""

from __future__ import annotations

import importlib
import sys
from typing import cast

from tailrace.eventstore.errors import UsageError, manual_page
from tailrace.eventstore.publishing.bridges.bridge import Bridge
from tailrace.eventstore.settings import OwnDestinationSettings

_METHODS = ("send", "check", "close")


def open_own(settings: OwnDestinationSettings) -> Bridge:
    """Call the class with the options. Raises UsageError where there is none, or it is no bridge."""
    module_name, _, class_name = settings.bridge.partition(":")
    if str(settings.folder) not in sys.path:
        sys.path.insert(0, str(settings.folder))
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise  # the module is there, and imports one that is not
        raise UsageError(
            f"bridge {settings.bridge}: there is no module {error.name} in {settings.folder}",
            hint="name it as it is imported from the folder of the configuration: package.module:Class",
        ) from None
    found = getattr(module, class_name, None)
    missing = [name for name in _METHODS if not callable(getattr(found, name, None))]
    if not isinstance(found, type) or missing:
        what = f"has no {', '.join(missing)}" if isinstance(found, type) else "is no class"
        raise UsageError(
            f"bridge {settings.bridge}: {class_name} {what}",
            hint="a bridge is a class with send, check and close: see "
            + manual_page("bridges.md", "A bridge of your own"),
        )
    return cast(Bridge, found(settings.all_options))
