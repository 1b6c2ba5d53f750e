"""Where the log lives, and how it is kept."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Literal, Self
from urllib.parse import parse_qsl, urlsplit

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from tailrace.eventstore.model.event_schema import is_schema_name
from tailrace.eventstore.model.retention import FORMS, Retention, seconds_of
from tailrace.eventstore.settings.base import MIB, Frozen, Name

PARTITIONS_MAX = 1024
OBJECTS = "s3://"
# Bucket names as S3 has them; prefixes of what needs no escaping anywhere.
_OBJECTS = re.compile(r"s3://[a-z0-9][a-z0-9.\-]{1,61}[a-z0-9](/[A-Za-z0-9_.\-=]+)*/?")


class UpkeepSettings(Frozen):
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


class ObjectStoreSettings(Frozen):
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


def _key_url(text: str) -> str:
    if not text.startswith(("postgresql://", "postgres://", "file:/")):
        raise ValueError("must be postgresql://… or file:/PATH")
    for name, value in parse_qsl(urlsplit(text).query):
        if name == "schema" and not is_schema_name(value):
            raise ValueError(f"{value!r} is no schema for domain events")
    return text


def _retention(value: object) -> object:
    if isinstance(value, Retention):
        return value
    if not isinstance(value, str):
        raise ValueError(f"must be {FORMS}")
    return Retention.parse(value)


def _duration(value: object) -> object:
    return seconds_of(value) if isinstance(value, str) else value


Seconds = Annotated[float, BeforeValidator(_duration), Field(ge=0)]


class TopicSettings(Frozen):
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


class StoreSettings(Frozen):
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
    keys: Annotated[
        dict[Name, Annotated[str, AfterValidator(_key_url)]],
        Field(
            description="Where keys of a source's personal values are, by source: file:PATH or postgresql://…, with"
            " ?schema=NAME where they are not in schema `tailrace`."
        ),
    ] = {}
    s3: Annotated[ObjectStoreSettings, Field(description="The object store, where segments are in one.")] = (
        ObjectStoreSettings()
    )

    @property
    def in_objects(self) -> bool:
        """Whether the segments are in an object store, where every machine sees them."""
        return str(self.segments).startswith(OBJECTS)
