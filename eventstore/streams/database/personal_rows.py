"""Stored rows and snapshots as they were before their personal values were encrypted, and snapshots on their way in.

A snapshot is encrypted whole, with the keys of all values that it follows from: it ends with the first of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tailrace.eventstore.streams.personal.keys import KeyStore, opening_keys
from tailrace.eventstore.streams.personal.sealing import (
    key_ids,
    keys_of_state,
    seal_state,
    unseal,
    unseal_state,
)
from tailrace.eventstore.streams.rows import Row, Snapshot


async def opened_rows(store: KeyStore, rows: Sequence[Row]) -> Sequence[Row]:
    """With the values of subjects that were forgotten erased. Raises IntegrityError for a key that is lost."""
    ids = key_ids(row.data for row in rows)
    if not ids:
        return rows
    keys = await opening_keys(store, ids)
    return [opened_row(row, keys) for row in rows]


def opened_row(row: Row, keys: Mapping[str, bytes | None]) -> Row:
    """With keys by their ids; None for one that was forgotten."""
    ids = key_ids([row.data])
    there = frozenset(id for id in ids if keys[id] is not None)
    return row._replace(data=unseal(row.data, keys), keys=there, erased=len(there) < len(ids))


async def opened_snapshot(store: KeyStore, snapshot: Snapshot) -> Snapshot | None:
    """None when a subject of it was forgotten, or a key of it is lost."""
    ids = keys_of_state(snapshot.state)
    if not ids:
        return snapshot
    keys = {id: secret for id, secret in (await store.open_keys(sorted(ids))).items() if secret is not None}
    if len(keys) < len(ids):
        return None
    return Snapshot(snapshot.version, unseal_state(snapshot.state, keys), ids)


async def sealed_snapshot(store: KeyStore, snapshot: Snapshot) -> Snapshot | None:
    """None when a subject of it was forgotten meanwhile."""
    if not snapshot.keys:
        return snapshot
    found = await store.open_keys(sorted(snapshot.keys))
    keys = {id: secret for id, secret in found.items() if secret is not None}
    if len(keys) < len(snapshot.keys):
        return None
    return Snapshot(snapshot.version, seal_state(keys, snapshot.state))
