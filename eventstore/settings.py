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

from tailrace.eventstore.addresses import password_of
from tailrace.eventstore.model.retention import FORMS, Retention, seconds_of

Name = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,30}$")]
HASH_KEY_BYTES_MIN = 16
MIB = 1 << 20
PARTITIONS_MAX = 1024
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
    """How the log is kept in order: small epochs sealed, small files merged, files nobody needs removed."""

    every_seconds: Annotated[
        float, Field(ge=0, description="a running capture looks so often whether there is work; 0 = never")
    ] = 60.0
    # 512 small epochs are as good as a file to a reader: they are one page of it.
    seal_epochs: Annotated[int, Field(ge=1, description="so many new epochs are worth a round")] = 512
    keep_seconds: Annotated[
        float,
        Field(ge=0, description="a file that was replaced stays so long for those who began to read it"),
    ] = 600.0
    keep_epochs: Annotated[
        int, Field(ge=1, description="the newest epochs stay rows of the catalog, older ones go to files")
    ] = 100_000
    memory_bytes: Annotated[int, Field(ge=MIB, description="decoded rows a merge may hold")] = 96 * MIB
    # Below that a run would save little.
    state_bytes: Annotated[
        int, Field(ge=0, description="so many new bytes of a table are worth a state run; 0 = never")
    ] = 32 * MIB


def _endpoint(text: str) -> str:
    parts = urlsplit(text)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.username or parts.path.strip("/"):
        raise ValueError("must be http://HOST:PORT or https://HOST, without a user")
    return text.rstrip("/")


class ObjectStoreSettings(_Frozen):
    """The object store that ``segments = "s3://BUCKET/PREFIX"`` is in. Credentials come from the environment."""

    endpoint: Annotated[
        str | None,
        AfterValidator(lambda text: text if text is None else _endpoint(text)),
        Field(description="of a store that is not AWS; default: AWS_ENDPOINT_URL_S3, AWS_ENDPOINT_URL"),
    ] = None
    region: Annotated[str | None, Field(description="of the bucket; default: AWS_REGION")] = None
    encryption: Annotated[
        Literal["AES256", "aws:kms", "aws:kms:dsse"] | None,
        Field(description="what uploads ask of the server; default: the bucket's own"),
    ] = None
    kms_key: Annotated[str | None, Field(description="id or ARN; default: the account's for S3")] = None

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
    """How long rows of topics are kept. Keys of the table are names of topics, or patterns with * and ?; a name goes
    before patterns, a later pattern before an earlier one."""

    retention: Annotated[Retention, BeforeValidator(_retention)] = Retention()
    compact_after: Annotated[Seconds, Field(description="compact leaves rows alone that are younger")] = (
        86_400.0
    )
    tombstones: Annotated[
        Seconds, Field(description="so long after it a delete stays in what compact leaves to readers")
    ] = 7 * 86_400.0
    archive: Annotated[
        str | Path | None,
        AfterValidator(lambda place: place if place is None else _files_place(place)),
        Field(
            description="files are copied there before retention removes them: a folder, or s3://BUCKET/PREFIX"
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
    """Where the log lives. ``name`` prefixes slots, publications, generations and buckets."""

    name: Name = "tailrace"
    catalog: str = "sqlite:///.tailrace/catalog.db"
    segments: Annotated[
        str | Path, AfterValidator(_files_place), Field(description="a folder, or s3://BUCKET/PREFIX")
    ] = Path(".tailrace/segments")
    partitions: Annotated[int, Field(ge=1, le=PARTITIONS_MAX)] = 4
    inline_bytes: Annotated[int, Field(ge=0, description="epochs up to this size are one catalog row")] = MIB
    shared_path: Annotated[
        bool, Field(description="every Spark worker has the segments folder at this path")
    ] = False
    upkeep: UpkeepSettings = UpkeepSettings()
    topics: Annotated[
        dict[str, TopicSettings], Field(description="in the file they are tables of their own: [topics.NAME]")
    ] = {}
    s3: ObjectStoreSettings = ObjectStoreSettings()

    @property
    def in_objects(self) -> bool:
        """Whether the segments are in an object store, where every machine sees them."""
        return str(self.segments).startswith(OBJECTS)


class SourceSettings(_Frozen):
    """One Postgres database. ``tables`` are patterns SCHEMA.TABLE with * and ?, an exclusion starts with ``!``.
    ``columns`` are patterns SCHEMA.TABLE.COLUMN and what capture makes of those columns' values."""

    kind: Literal["postgres"] = "postgres"
    dsn: SecretStr
    tables: tuple[str, ...] = ("public.*",)
    columns: dict[str, Annotated[str, AfterValidator(_policy)]] = {}
    hash_key: Annotated[SecretStr, AfterValidator(_hash_key)] | None = None
    epoch_bytes: Annotated[int, Field(ge=1024)] = 32 * MIB
    epoch_changes: Annotated[int, Field(ge=1)] = 200_000
    linger_ms: Annotated[int, Field(ge=0, le=60_000)] = 100
    queue_bytes: Annotated[int, Field(ge=1024, description="frames waiting for the decoder")] = 64 * MIB
    load_workers: Annotated[int, Field(ge=1, le=64)] = 2
    load_chunk_rows: Annotated[
        int, Field(ge=1, description="a chunk of a table added later has at most so many rows")
    ] = 50_000
    load_rows_per_second: Annotated[
        int | None,
        Field(ge=1, description="limit for loads of tables added later; none = as fast as it goes"),
    ] = None
    protocol: Annotated[
        Literal[1, 2],
        Field(description="2: large transactions are streamed before their commit, and kept here"),
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
    """One place projections write to, with what ``SINK_ADDRESS`` says that its kind needs."""

    kind: SinkKind
    dsn: SecretStr | None = None
    url: SecretStr | None = None
    path: Path | None = None
    cluster: Annotated[bool, Field(description="of redis: the server is one of a cluster")] = False


class SparkSettings(_Frozen):
    master: str = "local[*]"
    driver_memory: str = "1g"
    shuffle_partitions: Annotated[int, Field(ge=1)] = 8


class ProjectionSettings(_Frozen):
    modules: tuple[str, ...] = ()
    sql: Annotated[
        tuple[str, ...], Field(description=".sql files, and folders of them, beside the configuration")
    ] = ()
    poll_seconds: Annotated[float, Field(gt=0)] = 1.0
    incremental_bytes: Annotated[
        int, Field(ge=0, description="rows of inputs that an incremental refresh may hold; more: a full one")
    ] = 48 * MIB


class MetricsSettings(_Frozen):
    """Where a capture that runs until it is stopped serves metrics, and where a runner of projections does. Without a
    port they do not."""

    port: Annotated[int | None, Field(ge=0, le=65535, description="of capture; 0 = one that is free")] = None
    projections_port: Annotated[int | None, Field(ge=0, le=65535, description="of run; 0 = as above")] = None
    address: str = "127.0.0.1"


class Settings(_Frozen):
    """One environment's settings after overlays and ``${VAR}`` expansion. ``protected`` makes destructive verbs ask."""

    store: StoreSettings = StoreSettings()
    sources: dict[Name, SourceSettings] = {}
    topics: dict[str, TopicSettings] = {}
    sinks: dict[Name, SinkSettings] = {}
    projections: ProjectionSettings = ProjectionSettings()
    spark: SparkSettings = SparkSettings()
    metrics: MetricsSettings = MetricsSettings()
    protected: bool = False

    def secrets(self) -> frozenset[str]:
        """What must not leave the process: addresses with a password, these passwords, keys of hashes."""
        given = [source.dsn for source in self.sources.values()]
        given += [address for sink in self.sinks.values() for address in (sink.dsn, sink.url) if address]
        texts = {address.get_secret_value() for address in given} | {self.store.catalog}
        passwords = {text: password_of(text) for text in texts}
        keys = {source.hash_key.get_secret_value() for source in self.sources.values() if source.hash_key}
        kept = {part for text, password in passwords.items() if password for part in (text, password)}
        return frozenset(kept | keys)
