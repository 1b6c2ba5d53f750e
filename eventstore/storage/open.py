"""From ``store.segments`` to its storage."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from tailrace.eventstore.settings import OBJECTS, ObjectStoreSettings, StoreSettings
from tailrace.eventstore.storage.base import Storage
from tailrace.eventstore.storage.encryption import Encryption
from tailrace.eventstore.storage.local import LocalStorage
from tailrace.eventstore.storage.object_store import ObjectStorage

MARKER = "log-id"  # a file beside the segments: the log that they belong to
CATALOG_MARKER = "catalog-id"  # another: the catalog that removes files there (``maintenance.files.owner``)
# What AWS' own tools look at; Arrow does not.
_ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")
_REGIONS = ("AWS_REGION", "AWS_DEFAULT_REGION")


def read_marker(storage: Storage) -> str:
    """The log that the segments there belong to. Raises MissingFile when nothing says so."""
    return bytes(storage.open(MARKER)).decode(errors="replace").strip()


def write_marker(storage: Storage, log_id: str) -> None:
    storage.write(MARKER, f"{log_id}\n".encode())


def open_storage(settings: StoreSettings, base: Path) -> Storage:
    """The storage that the settings name; a relative folder is relative to ``base``. Nothing is looked at yet."""
    return open_place(str(settings.segments), settings.s3, base)


def open_place(place: str, s3: ObjectStoreSettings, base: Path) -> Storage:
    """The storage at a place of files: ``s3://BUCKET/PREFIX`` or a folder, relative to ``base``."""
    if not place.startswith(OBJECTS):
        return LocalStorage(base / place)
    bucket, _, prefix = place.removeprefix(OBJECTS).partition("/")
    # Both go with the storage to Spark's tasks, whose environment is another.
    endpoint, region = s3.endpoint or _first_variable(_ENDPOINTS), s3.region or _first_variable(_REGIONS)
    encryption = None if s3.encryption is None else Encryption(s3.encryption, s3.kms_key)
    return ObjectStorage(bucket, prefix.strip("/"), endpoint, region, encryption)


def _first_variable(variables: Sequence[str]) -> str | None:
    """The first of these that the environment has."""
    return next(filter(None, map(os.environ.get, variables)), None)
