"""Typed settings: what ``tailrace.toml`` holds, as frozen values. Reading the file is ``tailrace.config.load``'s
work."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal, Self
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SecretStr,
    model_validator,
)

from tailrace.eventstore.disclosure import password_of
from tailrace.eventstore.model.retention import FORMS, Retention, seconds_of

Name = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,30}$")]
HASH_KEY_BYTES_MIN = 16
MIB = 1 << 20
PARTITIONS_MAX = 1024
# A description by the DDL trigger of a table with 1,600 columns takes 2.3 MB where each name needs the most escaping.
MESSAGE_BYTES_MIN = 4 * MIB
OBJECTS = "s3://"
# Bucket names as S3 has them; prefixes of what needs no escaping anywhere.
_OBJECTS = re.compile(r"s3://[a-z0-9][a-z0-9.\-]{1,61}[a-z0-9](/[A-Za-z0-9_.\-=]+)*/?")


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


def _policy(text: str) -> str:
    if not re.fullmatch(r"plain|drop|hash|truncate:[1-9][0-9]{0,5}", text):
        raise ValueError('must be "drop", "hash", "truncate:N" or "plain"')
    return text


def _hash_key(secret: SecretStr) -> SecretStr:
    if len(secret.get_secret_value().encode()) < HASH_KEY_BYTES_MIN:
        raise ValueError(f"must have {HASH_KEY_BYTES_MIN} bytes or more, random ones: openssl rand -hex 32")
    return secret


class UpkeepSettings(_Frozen):
    """How a running capture keeps the log in order: it seals small epochs, merges small files and removes files that
    nobody needs."""

    every_seconds: Annotated[
        float, Field(ge=0, description="Seconds between two checks for work by a running capture. 0: never.")
    ] = 60.0
    # 512 small epochs are as good as a file to a reader: they are one page of it.
    seal_epochs: Annotated[int, Field(ge=1, description="Number of new epochs that are worth a round.")] = 512
    keep_seconds: Annotated[
        float,
        Field(ge=0, description="Seconds that a replaced file stays for readers that have begun to read it."),
    ] = 600.0
    keep_epochs: Annotated[
        int,
        Field(
            ge=1, description="Number of latest epochs that stay rows of the catalog. Older ones go to files."
        ),
    ] = 100_000
    memory_bytes: Annotated[int, Field(ge=MIB, description="Memory for the decoded rows of a merge.")] = (
        96 * MIB
    )
    # Below that a run would save little.
    state_bytes: Annotated[
        int, Field(ge=0, description="New bytes of a table that are worth a state run. 0: never.")
    ] = 32 * MIB


def _endpoint(text: str) -> str:
    parts = urlsplit(text)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.username or parts.path.strip("/"):
        raise ValueError("must be http://HOST:PORT or https://HOST, without a user")
    return text.rstrip("/")


class ObjectStoreSettings(_Frozen):
    """The object store of ``segments = "s3://BUCKET/PREFIX"``. Credentials come from the environment."""

    endpoint: Annotated[
        str | None,
        AfterValidator(lambda text: text if text is None else _endpoint(text)),
        Field(
            description="URL of a store that is not AWS. Default: AWS_ENDPOINT_URL_S3, else AWS_ENDPOINT_URL."
        ),
    ] = None
    region: Annotated[str | None, Field(description="Region of the bucket. Default: AWS_REGION.")] = None
    encryption: Annotated[
        Literal["AES256", "aws:kms", "aws:kms:dsse"] | None,
        Field(description="Encryption that uploads request. Default: the bucket's own."),
    ] = None
    kms_key: Annotated[
        str | None, Field(description="Id or ARN of the KMS key. Default: the account's key for S3.")
    ] = None

    @model_validator(mode="after")
    def _check_key(self) -> Self:
        if self.kms_key is not None and not (self.encryption or "").startswith("aws:kms"):
            raise ValueError('kms_key goes with encryption = "aws:kms" (or "aws:kms:dsse")')
        return self


def _files_place(place: str | Path) -> str | Path:
    text = str(place)
    if isinstance(place, str) and text.startswith(OBJECTS):
        if not _OBJECTS.fullmatch(text):
            raise ValueError(
                "must be s3://BUCKET or s3://BUCKET/PREFIX (credentials come from the environment)"
            )
        return text.rstrip("/")
    if "://" in text:
        raise ValueError("must be a folder or s3://BUCKET/PREFIX")
    return Path(place)


def _retention(value: object) -> object:
    if isinstance(value, Retention):
        return value
    if not isinstance(value, str):
        raise ValueError(f"must be {FORMS}")
    return Retention.parse(value)


def _duration(value: object) -> object:
    return seconds_of(value) if isinstance(value, str) else value


Seconds = Annotated[float, BeforeValidator(_duration), Field(ge=0)]


class TopicSettings(_Frozen):
    """How long rows of topics are kept. A table's name is a topic's name or a pattern with * and ?. A name goes before
    patterns, and a later pattern before an earlier one."""

    retention: Annotated[
        Retention, BeforeValidator(_retention), Field(description=f"Which rows are kept: {FORMS}.")
    ] = Retention()
    compact_after: Annotated[
        Seconds, Field(description="Age below which compaction leaves rows alone: seconds, or a text as 7d.")
    ] = 86_400.0
    tombstones: Annotated[
        Seconds,
        Field(description="Time that compaction keeps a delete for readers: seconds, or a text as 7d."),
    ] = 7 * 86_400.0
    archive: Annotated[
        str | Path | None,
        AfterValidator(lambda place: place if place is None else _files_place(place)),
        Field(
            description="Where files are copied before retention removes them: a folder, or s3://BUCKET/PREFIX."
        ),
    ] = None

    @model_validator(mode="after")
    def _has_what_it_is_for(self) -> Self:
        if self.archive is not None and self.retention.keeps_all:
            raise ValueError("archive is for rows that retention removes, which this does not")
        for name in ("compact_after", "tombstones"):
            if name in self.model_fields_set and not self.retention.compact:
                raise ValueError(f'{name} is for retention = "compact", which this is not')
        return self


class StoreSettings(_Frozen):
    """Where the log lives."""

    name: Annotated[
        Name,
        Field(description="Name of the store. Names of slots, publications and generations begin with it."),
    ] = "tailrace"
    catalog: Annotated[
        str, Field(description="URL of the catalog's database: sqlite:///PATH, or postgresql://…")
    ] = "sqlite:///.tailrace/catalog.db"
    segments: Annotated[
        str | Path,
        AfterValidator(_files_place),
        Field(description="Where the log's files are: a folder, or s3://BUCKET/PREFIX."),
    ] = Path(".tailrace/segments")
    partitions: Annotated[
        int,
        Field(
            ge=1, le=PARTITIONS_MAX, description="Partitions of a new topic. Rows of a key share a partition."
        ),
    ] = 4
    inline_bytes: Annotated[
        int, Field(ge=0, description="Largest epoch that is a row of the catalog until it is sealed.")
    ] = MIB
    shared_path: Annotated[
        bool, Field(description="Whether every Spark worker sees the segments folder at this path.")
    ] = False
    upkeep: Annotated[UpkeepSettings, Field(description="How a running capture keeps the log in order.")] = (
        UpkeepSettings()
    )
    topics: Annotated[
        dict[str, TopicSettings],
        Field(description="Retention by topic. In the file these are tables of their own: [topics.NAME]."),
    ] = {}
    s3: Annotated[ObjectStoreSettings, Field(description="The object store, where segments are in one.")] = (
        ObjectStoreSettings()
    )

    @property
    def in_objects(self) -> bool:
        """Whether the segments are in an object store, where every machine sees them."""
        return str(self.segments).startswith(OBJECTS)


class SourceSettings(_Frozen):
    """One Postgres database that is captured."""

    kind: Annotated[Literal["postgres"], Field(description="Kind of the database.")] = "postgres"
    dsn: Annotated[SecretStr, Field(description="Connection string of the database, as libpq reads it.")]
    tables: Annotated[
        tuple[str, ...],
        Field(description="Tables to capture: patterns SCHEMA.TABLE with * and ?. ! begins an exclusion."),
    ] = ("public.*",)
    columns: Annotated[
        dict[str, Annotated[str, AfterValidator(_policy)]],
        Field(
            description="What capture makes of columns' values: by pattern SCHEMA.TABLE.COLUMN, one of drop, hash,"
            " truncate:N and plain."
        ),
    ] = {}
    hash_key: Annotated[
        Annotated[SecretStr, AfterValidator(_hash_key)] | None,
        Field(description=f"Secret of the policy hash, {HASH_KEY_BYTES_MIN} bytes or more."),
    ] = None
    epoch_bytes: Annotated[int, Field(ge=1024, description="An epoch ends when it has this size.")] = 32 * MIB
    epoch_changes: Annotated[int, Field(ge=1, description="An epoch ends when it has this many changes.")] = (
        200_000
    )
    linger_ms: Annotated[
        int, Field(ge=0, le=60_000, description="Milliseconds that an epoch waits for more transactions.")
    ] = 100
    queue_bytes: Annotated[
        int, Field(ge=1024, description="Memory for received frames that wait for the decoder.")
    ] = 64 * MIB
    message_bytes: Annotated[
        int,
        Field(
            ge=MESSAGE_BYTES_MIN,
            description="Size above which a logical message is skipped and counted, not captured.",
        ),
    ] = MESSAGE_BYTES_MIN
    load_workers: Annotated[
        int, Field(ge=1, le=64, description="Connections that read tables side by side in the first load.")
    ] = 2
    load_chunk_rows: Annotated[
        int, Field(ge=1, description="Most rows in a chunk of a table that is loaded beside the stream.")
    ] = 50_000
    load_rows_per_second: Annotated[
        int | None,
        Field(ge=1, description="Most rows a second in loads beside the stream. Default: no limit."),
    ] = None
    protocol: Annotated[
        Literal[1, 2],
        Field(
            description="Version of the replication protocol. 2: the server streams large transactions before their"
            " commit, and capture keeps them on its disk."
        ),
    ] = 1

    @model_validator(mode="after")
    def _policies_can_be_kept(self) -> Self:
        if self.hash_key is None and "hash" in self.columns.values():
            raise ValueError('a column has the policy "hash", which needs hash_key = "${VAR}" or "${file:…}"')
        return self


SinkKind = Literal["postgres", "redis", "search", "parquet"]
# Which setting says where a sink of each kind is.
SINK_ADDRESS: Mapping[SinkKind, Literal["dsn", "url", "path"]] = {
    "postgres": "dsn",
    "redis": "url",
    "search": "path",
    "parquet": "path",
}


class SinkSettings(_Frozen):
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


class SparkSettings(_Frozen):
    """The Spark session that computes projections."""

    master: Annotated[str, Field(description="Where Spark's tasks run: local[N], or a cluster's URL.")] = (
        "local[*]"
    )
    driver_memory: Annotated[str, Field(description="Heap of the driver's JVM.")] = "1g"
    shuffle_partitions: Annotated[int, Field(ge=1, description="Partitions of a shuffle.")] = 8


OnUnfollowed = Literal["warn", "error"]


class ProjectionSettings(_Frozen):
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

    @property
    def sinks_from(self) -> tuple[str, ...]:
        """The modules that may be imported for the class of a user's own sink."""
        return (*self.sink_modules, *self.modules)


class MetricsSettings(_Frozen):
    """Where ``tailrace capture`` and ``tailrace run`` serve metrics. Without a port they serve none."""

    port: Annotated[
        int | None, Field(ge=0, le=65535, description="Port of capture. 0: one that is free.")
    ] = None
    projections_port: Annotated[
        int | None, Field(ge=0, le=65535, description="Port of run. 0: one that is free.")
    ] = None
    address: Annotated[str, Field(description="IP address that both listen on.")] = "127.0.0.1"


class Settings(_Frozen):
    """One environment's settings after overlays and ``${VAR}`` expansion."""

    store: Annotated[StoreSettings, Field(description="Where the log lives.")] = StoreSettings()
    sources: Annotated[dict[Name, SourceSettings], Field(description="Databases that are captured.")] = {}
    topics: Annotated[dict[str, TopicSettings], Field(description="How long rows of topics are kept.")] = {}
    sinks: Annotated[dict[Name, SinkSettings], Field(description="Places that projections write to.")] = {}
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
        given = [source.dsn for source in self.sources.values()]
        given += [address for sink in self.sinks.values() for address in (sink.dsn, sink.url) if address]
        texts = {address.get_secret_value() for address in given} | {self.store.catalog}
        passwords = {text: password_of(text) for text in texts}
        keys = {source.hash_key.get_secret_value() for source in self.sources.values() if source.hash_key}
        kept = {part for text, password in passwords.items() if password for part in (text, password)}
        return frozenset(kept | keys)
