"""One environment's settings: its store, sources, sinks and projections."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, SecretStr, Tag

from tailrace.eventstore.disclosure import password_of
from tailrace.eventstore.settings.base import MIB, Frozen, Name
from tailrace.eventstore.settings.destinations import AnyDestination
from tailrace.eventstore.settings.kafka_source import KafkaSourceSettings
from tailrace.eventstore.settings.postgres_source import PostgresSourceSettings
from tailrace.eventstore.settings.publication import KafkaDestinationSettings, PublicationSettings
from tailrace.eventstore.settings.store import StoreSettings, TopicSettings

SourceKind = Literal["postgres", "kafka"]
SOURCE_KINDS: Mapping[SourceKind, type[PostgresSourceSettings | KafkaSourceSettings]] = {
    "postgres": PostgresSourceSettings,
    "kafka": KafkaSourceSettings,
}


def _kind_of(source: Any) -> Any:
    """What decides which settings a source's table has."""
    if isinstance(source, dict):
        return source.get("kind", "postgres")
    return getattr(source, "kind", None)


SourceSettings = PostgresSourceSettings | KafkaSourceSettings
_AnySource = Annotated[
    Annotated[PostgresSourceSettings, Tag("postgres")] | Annotated[KafkaSourceSettings, Tag("kafka")],
    Discriminator(_kind_of),
]

SinkKind = Literal["postgres", "redis", "search", "parquet"]
# Which setting says where a sink of each kind is.
SINK_ADDRESS: Mapping[SinkKind, Literal["dsn", "url", "path"]] = {
    "postgres": "dsn",
    "redis": "url",
    "search": "path",
    "parquet": "path",
}


class SinkSettings(Frozen):
    """One place that projections write to. Each kind has one address (``SINK_ADDRESS``)."""

    kind: Annotated[SinkKind, Field(description="Kind of the sink.")]
    dsn: Annotated[
        SecretStr | None,
        Field(description="Address of a postgres sink: a connection string, as libpq reads it."),
    ] = None
    url: Annotated[
        SecretStr | None, Field(description="Address of a redis sink: redis://HOST:PORT/DB or rediss://…")
    ] = None
    path: Annotated[Path | None, Field(description="Address of a search or parquet sink: a folder.")] = None
    cluster: Annotated[bool, Field(description="Whether a redis server is one of a cluster.")] = False


EngineChoice = Literal["spark", "auto", "sail"]


class SparkSettings(Frozen):
    """The Spark session that computes projections."""

    engine: Annotated[
        EngineChoice,
        Field(
            description="What computes projections: spark; or, of those whose rows Sail is proved to give as Spark "
            "does, by Sail (extra sail) what is small (auto) or everything but first builds (sail)."
        ),
    ] = "spark"
    small_bytes: Annotated[
        int,
        Field(
            ge=0,
            description="Inputs that together take less memory are small: they are read once for all projections, into "
            "temporary files, and what is computed of them is compared without tasks. Sail's operators may take four "
            "times as much, and 256 MiB at least.",
        ),
    ] = 256 * MIB

    master: Annotated[
        str,
        Field(
            description="Where Spark's tasks run: local[N], a cluster's URL, or a server of Spark Connect (extra "
            "connect): sc://HOST:PORT."
        ),
    ] = "local[*]"
    driver_memory: Annotated[
        str,
        Field(
            description="Heap of the driver's JVM. With a local master joins broadcast tables of up to a 256th of "
            "it, where that is more than Spark's 10 MiB."
        ),
    ] = "2g"
    shuffle_partitions: Annotated[int, Field(ge=1, description="Partitions of a shuffle.")] = 8


OnUnfollowed = Literal["warn", "error"]


class ProjectionSettings(Frozen):
    """Which projections there are, and how they are refreshed."""

    modules: Annotated[
        tuple[str, ...],
        Field(description="Python modules with projections, found from the folder of the configuration."),
    ] = ()
    sql: Annotated[
        tuple[str, ...],
        Field(description="Files and folders of projections in SQL, below the folder of the configuration."),
    ] = ()
    sink_modules: Annotated[
        tuple[str, ...],
        Field(
            description="Python modules with sinks of your own, for commands that load no definitions. Only these and "
            "modules are imported for a sink that the catalog names."
        ),
    ] = ()
    on_unfollowed: Annotated[
        OnUnfollowed,
        Field(
            description="A query in SQL from which it does not follow which keys its inputs affect: warn (check says "
            "the line to write; it is computed in full) or error (refused)."
        ),
    ] = "warn"
    poll_seconds: Annotated[
        float, Field(gt=0, description="Seconds between two checks of the log by tailrace run.")
    ] = 1.0
    incremental_bytes: Annotated[
        int,
        Field(
            ge=0, description="Most memory for the inputs of an incremental refresh. More: a full refresh."
        ),
    ] = 48 * MIB
    kept_rows_bytes: Annotated[
        int,
        Field(
            ge=0,
            description="Most disk for the rows of one large table that tailrace run keeps, so that refreshes of sums "
            "find those that changed; of a table with more they are looked up in the log each time. The same for the "
            "inputs of several first builds, which are read once while they are not larger.",
        ),
    ] = 4096 * MIB

    @property
    def sinks_from(self) -> tuple[str, ...]:
        """The modules that may be imported for the class of a user's own sink."""
        return (*self.sink_modules, *self.modules)


class MetricsSettings(Frozen):
    """Where ``tailrace capture``, ``run`` and ``publish`` serve metrics. Without a port they serve none."""

    port: Annotated[
        int | None, Field(ge=0, le=65535, description="Port of capture. 0: one that is free.")
    ] = None
    projections_port: Annotated[
        int | None, Field(ge=0, le=65535, description="Port of run. 0: one that is free.")
    ] = None
    publications_port: Annotated[
        int | None, Field(ge=0, le=65535, description="Port of publish. 0: one that is free.")
    ] = None
    address: Annotated[str, Field(description="IP address that they listen on.")] = "127.0.0.1"


class Settings(Frozen):
    """One environment's settings after overlays and ``${VAR}`` expansion."""

    store: Annotated[StoreSettings, Field(description="Where the log lives.")] = StoreSettings()
    sources: Annotated[dict[Name, _AnySource], Field(description="What is captured.")] = {}
    topics: Annotated[dict[str, TopicSettings], Field(description="How long rows of topics are kept.")] = {}
    sinks: Annotated[dict[Name, SinkSettings], Field(description="Places that projections write to.")] = {}
    destinations: Annotated[dict[Name, AnyDestination], Field(description="Where publications send to.")] = {}
    publish: Annotated[
        dict[Name, PublicationSettings], Field(description="Topics that are published to other systems.")
    ] = {}
    projections: Annotated[
        ProjectionSettings, Field(description="Which projections there are, and how they are refreshed.")
    ] = ProjectionSettings()
    spark: Annotated[SparkSettings, Field(description="The Spark session that computes projections.")] = (
        SparkSettings()
    )
    metrics: Annotated[MetricsSettings, Field(description="Where metrics are served.")] = MetricsSettings()
    protected: Annotated[
        bool,
        Field(
            description="Whether commands that destroy something ask first, and passwords are refused here."
        ),
    ] = False

    def secrets(self) -> frozenset[str]:
        """What must not leave the process: addresses with a password, these passwords, keys of hashes."""
        sources = self.sources.values()
        given = [source.dsn for source in sources if isinstance(source, PostgresSourceSettings)]
        given += [address for sink in self.sinks.values() for address in (sink.dsn, sink.url) if address]
        kafka = [source for source in sources if isinstance(source, KafkaSourceSettings)]
        given += [source.catalog_dsn for source in kafka if source.catalog_dsn]
        texts = {address.get_secret_value() for address in given} | {self.store.catalog}
        passwords = {text: password_of(text) for text in texts}
        sent_to = self.destinations.values()
        clusters = [*kafka, *(each for each in sent_to if isinstance(each, KafkaDestinationSettings))]
        bare = [secret for each in clusters for secret in (each.password, each.certificate_key_password)]
        bare += [each.registry.password for each in kafka if each.registry]
        bare += [each.hash_key for each in sources]
        bare += [
            secret
            for each in sent_to
            if not isinstance(each, KafkaDestinationSettings)
            for secret in each.secrets()
        ]
        keys = {secret.get_secret_value() for secret in bare if secret}
        kept = {part for text, password in passwords.items() if password for part in (text, password)}
        return frozenset(kept | keys)
