"""Where the log's files are: a folder of this machine, or an object store that speaks S3."""

from eventstore.storage.base import Storage, StoredFile
from eventstore.storage.folder import PARTIAL, LocalStorage
from eventstore.storage.memory import MemoryStorage
from eventstore.storage.objects import ObjectStorage

__all__ = [
    "PARTIAL",
    "LocalStorage",
    "MemoryStorage",
    "ObjectStorage",
    "Storage",
    "StoredFile",
]
