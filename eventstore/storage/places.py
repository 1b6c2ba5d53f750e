"""From ``store.segments`` to its storage."""

from __future__ import annotations

import os
from pathlib import Path

from eventstore.settings import OBJECTS, ObjectStoreSettings, StoreSettings
from eventstore.storage.base import Storage
from eventstore.storage.folder import LocalStorage
from eventstore.storage.objects import ObjectStorage

MARKER = "log-id"  # a file beside the segments: the log that they belong to
# What AWS' own tools look at; Arrow does not.
_ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")


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
    endpoint = s3.endpoint or next(filter(None, map(os.environ.get, _ENDPOINTS)), None)
    return ObjectStorage(bucket, prefix.strip("/"), endpoint, s3.region)
