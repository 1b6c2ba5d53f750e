"""Where the log's files are: a folder of this machine, or an object store that speaks S3."""

from tailrace.eventstore.storage.base import Storage, StoredFile
from tailrace.eventstore.storage.local import PARTIAL, LocalStorage
from tailrace.eventstore.storage.memory import MemoryStorage
from tailrace.eventstore.storage.object_store import ObjectStorage

__all__ = [
    "PARTIAL",
    "LocalStorage",
    "MemoryStorage",
    "ObjectStorage",
    "Storage",
    "StoredFile",
]
