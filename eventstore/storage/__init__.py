"""How do bytes get into a folder or an object store, and stay there?

May import settings, and what is below it.
"""

from tailrace.eventstore.storage.base import Storage, StoredFile
from tailrace.eventstore.storage.local import PARTIAL, LocalStorage
from tailrace.eventstore.storage.object_store import ObjectStorage

__all__ = [
    "PARTIAL",
    "LocalStorage",
    "ObjectStorage",
    "Storage",
    "StoredFile",
]
