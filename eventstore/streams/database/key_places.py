"""Keys where settings say they are: for those who read events from the log."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit, urlunsplit

import psycopg

from tailrace.eventstore.errors import OperatorError, TransientError
from tailrace.eventstore.model.event_schema import EVENTS_SCHEMA
from tailrace.eventstore.streams.blocking import finish
from tailrace.eventstore.streams.database.connection import ask_of
from tailrace.eventstore.streams.database.subject_keys import SourceKeys
from tailrace.eventstore.streams.personal.file_keys import FileKeys
from tailrace.eventstore.streams.personal.keys import KeyStore, opening_keys

_FILE: Final = "file:"
_SCHEMA: Final = "schema="
"""No option of libpq."""


@dataclass(frozen=True, slots=True)
class KeyPlace:
    """``url``: ``postgresql://…``, the database of the events or a copy of its keys, as a user that may open them, with
    ``?schema=NAME`` where the tables of domain events are not in schema ``tailrace``; or ``file:PATH``, a file of
    ``FileKeys``. Pickles."""

    url: str

    @property
    def file(self) -> FileKeys | None:
        """Where they are in one."""
        return FileKeys(self.url.removeprefix(_FILE)) if self.url.startswith(_FILE) else None

    @property
    def _database(self) -> tuple[str, str]:
        """What libpq connects to, and the schema there."""
        parts = urlsplit(self.url)
        options = parts.query.split("&")
        chosen = [each for each in options if each.startswith(_SCHEMA)]
        if not chosen:
            return self.url, EVENTS_SCHEMA
        others = "&".join(each for each in options if each not in chosen)
        return urlunsplit(parts._replace(query=others)), chosen[-1].removeprefix(_SCHEMA)

    def open_keys(self, ids: set[str]) -> Mapping[str, bytes | None]:
        """Keys by their ids; None for one that was forgotten.

        Raises IntegrityError for one that is lost, TransientError for a database out of reach, OperatorError for a
        user that may not."""
        file = self.file
        if file is not None:
            return finish(opening_keys(file, ids))
        url, schema = self._database
        try:
            with psycopg.connect(url, autocommit=True, connect_timeout=10) as connection:
                store: KeyStore = SourceKeys(ask_of(connection, schema))
                return finish(opening_keys(store, ids))
        except psycopg.OperationalError as error:
            # libpq's own message names host and port, never the password.
            raise TransientError(
                f"the keys of personal values are out of reach: {str(error).strip()}",
                hint="check the URL in [store.keys], and that the server runs",
            ) from None
        except psycopg.Error as error:
            raise OperatorError(
                f"the keys of personal values cannot be read: {error.diag.message_primary or type(error).__name__}",
                hint="check the URL in [store.keys], and the rights of its user",
            ) from None


def no_keys(source: str) -> OperatorError:
    """Who reads a personal value has to have its key."""
    return OperatorError(
        f"events of source {source} have personal values, and it is not known where their keys are",
        hint=f'[store.keys] {source} = "postgresql://…" (the database of the events) or "file:PATH"',
    )
