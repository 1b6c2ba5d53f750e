"""The catalog database: SQLite or Postgres behind two verbs, ``read`` (one snapshot) and ``write`` (one transaction).

Every database error leaves here as an error of our tree; connection URLs never do, only a label without secrets.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, TypeVar

from sqlalchemy import Connection, Engine, MetaData, create_engine, event, text
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.pool import StaticPool

from tailrace.eventstore.catalog import sqlite_file
from tailrace.eventstore.catalog.sqlite_file import SqliteFile
from tailrace.eventstore.disclosure import ESCAPES, is_ambiguous
from tailrace.eventstore.errors import (
    Fenced,
    IntegrityError,
    MissingFile,
    OperatorError,
    TailraceError,
    TransientError,
    UsageError,
)
from tailrace.eventstore.storage.private import make_folder, opener

_BUSY_SECONDS = 30  # how long a SQLite writer waits for another one; appends hold the lock for milliseconds
WRITES = "tailrace_write"
INIT = "`tailrace init`, or Store.open(..., create=True)"
_SNAPSHOTS = 5  # each can miss a file only when a merge ended and its files were removed meanwhile

Kind = Literal["sqlite", "postgres"]
_T = TypeVar("_T")


def schema_name(store_name: str) -> str:
    """The Postgres schema of a store's catalog: its own, so that ``public.*`` never captures it."""
    return f"{store_name}_log"


@dataclass(frozen=True, slots=True)
class Catalog:
    """An open catalog. ``label`` names it for people, without secrets; ``file`` is that of a SQLite catalog."""

    engine: Engine
    kind: Kind
    label: str
    schema: str
    file: SqliteFile | None = None

    @property
    def path(self) -> Path | None:
        return None if self.file is None else self.file.path

    @property
    def read_only(self) -> bool:
        """Whether this process may only read the file of a SQLite catalog, as on a read-only mount."""
        return self.file is not None and self.file.read_only

    def require_writable(self) -> None:
        """Raises OperatorError where nothing can be written. For work that would otherwise find out late."""
        if self.file is not None:
            self.file.require_writable()

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """One snapshot: all statements inside see the same committed state."""
        with translate_errors(self), self.engine.connect() as connection:
            if self.kind == "postgres":
                connection = connection.execution_options(
                    isolation_level="REPEATABLE READ", postgresql_readonly=True
                )
            with connection.begin(), self._checked():
                yield connection

    @contextmanager
    def write(self) -> Iterator[Connection]:
        """One transaction, committed at the end. SQLite takes its write lock at the start (BEGIN IMMEDIATE): a
        transaction that reads first and writes later could otherwise fail in the middle. Postgres runs READ
        COMMITTED, where an UPDATE that waited for a row lock checks its condition again on the newest row.

        TransientError means that the outcome is unknown when it comes from the COMMIT, as MissingFile always does."""
        self.require_writable()
        with translate_errors(self), self.engine.connect() as connection:
            connection = connection.execution_options(**{WRITES: True})
            with self._checked(), connection.begin():
                yield connection

    @contextmanager
    def _checked(self) -> Iterator[None]:
        """The file is the same, and at its place, before and after what is done inside."""
        if self.file is not None:
            self.file.check()
        yield
        if self.file is not None:
            self.file.check()

    def check_not_published(self, connection: Connection) -> None:
        """Raises OperatorError when a publication of the catalog's database covers the catalog: each commit would
        make changes to capture, and so on for ever."""
        if self.kind == "sqlite":
            return
        found = connection.scalar(
            text("SELECT min(pubname) FROM pg_publication_tables WHERE schemaname = :schema"),
            {"schema": self.schema},
        )
        if found is not None:
            raise OperatorError(
                f"{self.label} is inside publication {found}: capturing would capture itself",
                hint=f"leave schema {self.schema} out of the publication, or keep the catalog in another database",
            )

    def open_sibling(self, path: Path) -> Catalog:
        """Another SQLite database of the same store, made when it is not there."""
        create = not self.read_only
        _check_file(path, create)
        return _open_sqlite(path, self.schema, create)

    def without_file(self, metadata: MetaData) -> Catalog:
        """A database in memory, with these tables, all empty; nothing can be written to it either."""
        engine = create_engine("sqlite://", poolclass=StaticPool, connect_args={"check_same_thread": False})
        metadata.create_all(engine)
        return replace(self, engine=engine)

    def close(self) -> None:
        self.engine.dispose()


def retry_on_missing_file(catalog: Catalog, query: Callable[[Connection], _T]) -> _T:
    """``query`` in a snapshot of the catalog; in a newer one when a file that it named was merged away since."""
    for _ in range(_SNAPSHOTS - 1):
        with suppress(MissingFile), catalog.read() as connection:
            return query(connection)
    with catalog.read() as connection:
        return query(connection)


def connect_catalog(url: str, *, store_name: str, root: Path, create: bool = False) -> Catalog:
    """Connect, whatever the format. Raises as ``open_catalog`` does."""
    return _connect(_parse(url), schema_name(store_name), root, create)


def _parse(url: str) -> URL:
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError):
        raise UsageError(
            "store.catalog is not a database URL",
            hint="sqlite:///.tailrace/catalog.db or postgresql://user:password@host/database",
        ) from None
    backend = parsed.drivername.partition("+")[0]
    if backend in ("postgresql", "postgres"):
        if is_ambiguous(url):
            raise UsageError("store.catalog has an @ or / that is not escaped", hint=ESCAPES)
        return parsed.set(drivername="postgresql+psycopg")
    if backend != "sqlite":
        raise UsageError(
            f"a catalog cannot be kept in {backend!r}", hint="use a sqlite:/// or postgresql:// URL"
        )
    if not parsed.database or parsed.database == ":memory:":
        raise UsageError("a SQLite catalog needs a file", hint="sqlite:///.tailrace/catalog.db")
    return parsed


def _connect(url: URL, schema: str, root: Path, create: bool) -> Catalog:
    if url.get_backend_name() == "sqlite":
        path = (root / str(url.database)).absolute()
        _check_file(path, create)
        return _open_sqlite(path, schema, create)
    place = f"{url.host or 'local socket'}{f':{url.port}' if url.port else ''}/{url.database or ''}"
    engine = create_engine(url, pool_pre_ping=True, pool_size=5, max_overflow=20, hide_parameters=True)
    _prepare_postgres(engine, schema)
    return Catalog(engine, "postgres", f"catalog on Postgres {place}, schema {schema}", schema)


def _open_sqlite(path: Path, schema: str, create: bool) -> Catalog:
    if create:  # SQLite makes its other files with the mode of this one
        with _folder_errors(path), suppress(FileExistsError):
            open(path, "xb", opener=opener).close()
    file = SqliteFile(path, create=create)
    target = URL.create(
        "sqlite",
        database=f"file:{sqlite_file.quote_path(path)}",
        query={**file.query(create=create), "uri": "true"},
    )
    arguments = {"timeout": _BUSY_SECONDS, "check_same_thread": False}
    engine = create_engine(target, connect_args=arguments, hide_parameters=True)
    _prepare_sqlite(engine, file)
    return Catalog(engine, "sqlite", f"catalog {path}", schema, file)


def _check_file(path: Path, create: bool) -> None:
    with _folder_errors(path):
        if create:
            make_folder(path.parent)
        elif not path.is_file():
            raise OperatorError(f"there is no store here: {path} does not exist", hint=INIT)


@contextmanager
def _folder_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise OperatorError(
            f"the folder of catalog {path} cannot be used: {error.strerror}",
            hint="let the user that runs Tailrace read and write it, or set store.catalog elsewhere",
        ) from error


def _prepare_sqlite(engine: Engine, file: SqliteFile) -> None:
    @event.listens_for(engine, "connect")
    def _on_connect(connection: sqlite3.Connection, _record: Any) -> None:
        sqlite_file.prepare(connection, file)

    @event.listens_for(engine, "begin")
    def _on_begin(connection: Connection) -> None:
        writes = connection.get_execution_options().get(WRITES, False)
        connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


def _prepare_postgres(engine: Engine, schema: str) -> None:
    # insert=True: before the dialect asks for the default schema, which must be ours.
    @event.listens_for(engine, "connect", insert=True)
    def _on_connect(connection: Any, _record: Any) -> None:
        connection.autocommit = True
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT set_config('search_path', quote_ident(%s), false),"
                " CASE WHEN current_setting('synchronous_commit') IN ('off', 'local', 'remote_write')"
                " THEN set_config('synchronous_commit', 'on', false) END",
                (schema,),
            )
        connection.autocommit = False


@contextmanager
def translate_errors(catalog: Catalog) -> Iterator[None]:
    """Database errors as errors of our tree. ``from None``: the driver's error may carry the connection string."""
    try:
        yield
    except DBAPIError as error:
        translated = _translate(error, catalog)
        if translated is None:
            raise
        raise translated from None
    except PoolTimeout:
        raise TransientError(f"{catalog.label}: all connections are busy", hint="try again") from None


# What the triggers of a store that has moved say (``tailrace.eventstore.catalog.relocation``): the text begins,
# the SQLSTATE is.
MOVED_TEXT = "moved to "
MOVED_STATE = "TR001"


def _moved_error(message: str, label: str) -> Fenced:
    return Fenced(
        f"{label}: this store was {message}; nothing was written",
        hint="set store.catalog and store.segments to that",
    )


def _translate(error: DBAPIError, catalog: Catalog) -> TailraceError | None:
    label, original = catalog.label, error.orig
    message = str(original).strip().splitlines()[0] if original is not None and str(original).strip() else ""
    if isinstance(original, sqlite3.Error):
        return _translate_sqlite(message, label, catalog.file)
    return _translate_postgres(getattr(original, "sqlstate", None), error, message, label)


def _translate_sqlite(message: str, label: str, file: SqliteFile | None) -> TailraceError | None:
    if message.startswith(MOVED_TEXT):
        return _moved_error(message, label)
    lowered = message.lower()
    if "locked" in lowered or "busy" in lowered:
        return TransientError(
            f"{label}: another process held the write lock for {_BUSY_SECONDS} s", hint="try again"
        )
    if "readonly" in lowered or "unable to open" in lowered:
        if file is not None:
            file.check()
            if file.read_only:
                return file.unreadable(message)
        return OperatorError(
            f"{label} cannot be opened for writing: {message}",
            hint="let the user that runs Tailrace write the file and its folder, where SQLite keeps its own",
        )
    if "disk is full" in lowered or "disk i/o" in lowered:
        return OperatorError(f"{label}: {message}", hint="check the disk; free space")
    if "no such table" in lowered or "no such column" in lowered:
        return OperatorError(f"{label} is not a catalog of this version: {message}", hint=INIT)
    if "malformed" in lowered or "not a database" in lowered:
        return IntegrityError(f"{label} is damaged: {message}", hint="restore it from a backup")
    return None


# SQLSTATE -> what the operator does. Connection failures have none.
_OPERATOR_STATES = {
    "28000": "check user and password in store.catalog",
    "28P01": "check user and password in store.catalog",
    "3D000": "create the database or correct store.catalog",
    "42501": "grant the user of store.catalog the role it needs; to make a store, CREATE on the database",
    "25006": "the server is a read-only replica; store.catalog must name the primary",
    "42P01": INIT,
    "42703": INIT,
    "3F000": INIT,
    "53100": "free disk space on the catalog's server",
}
_TRANSIENT_CLASSES = ("08", "57", "53")  # connection, operator intervention, resources


def _translate_postgres(
    state: str | None, error: DBAPIError, message: str, label: str
) -> TailraceError | None:
    if state == MOVED_STATE:
        return _moved_error(message, label)
    if state in _OPERATOR_STATES:
        return OperatorError(f"{label}: {message}", hint=_OPERATOR_STATES[state])
    if state is None and ("authentication failed" in message or "does not exist" in message):
        return OperatorError(f"{label}: {message}", hint="check user, password and database in store.catalog")
    if state is not None and state.startswith("40"):  # a rollback: a deadlock, a serialization failure
        return TransientError(f"{label}: {message}", hint="another process was in the way: try again")
    lost = error.connection_invalidated or (
        state is None and isinstance(error, OperationalError | InterfaceError)
    )
    if lost or (state is not None and state[:2] in _TRANSIENT_CLASSES):
        return TransientError(
            f"{label} is out of reach: {message}", hint="check that its server runs; try again"
        )
    return None
