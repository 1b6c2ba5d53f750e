"""The replication protocol as values: bytes in, messages out. No socket, driver, clock or thread in here."""

from __future__ import annotations
