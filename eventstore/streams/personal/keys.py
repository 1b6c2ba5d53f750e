"""Where keys are kept: in the database that events are appended to, in a file, or wherever a user has them kept."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Protocol, runtime_checkable

from tailrace.eventstore.errors import IntegrityError
from tailrace.eventstore.streams.personal.sealing import Key, hidden_tag


@runtime_checkable
class KeyStore(Protocol):
    """Keeps the keys of subjects. One that blocks never waits in its coroutines.

    A key is forgotten once and for all: neither a backup that is restored nor another process brings it back, as far as
    the store can tell; beyond that it is told of all that were forgotten (``forget_again``)."""

    async def seal_keys(self, subjects: Sequence[str]) -> Mapping[str, Key]:
        """For each subject the key that values are encrypted with now; made where there is none."""

    async def open_keys(self, ids: Sequence[str]) -> Mapping[str, bytes | None]:
        """Keys by their ids; None for one that was forgotten. One that is not there is left out."""

    async def tag_secret(self) -> bytes:
        """What personal tags are hidden with: always the same, made at the first call."""

    async def rotate(self, subject: str) -> Key | None:
        """Encrypt with a new key from now on; earlier ones go on to decrypt. None for a subject without keys."""

    async def keys_of(self, subject: str) -> Sequence[Key]:
        """All of a subject, the current one first; nobody is given another meanwhile, where this is a transaction."""

    async def forget(self, ids: Iterable[str]) -> Sequence[str]:
        """Delete keys, for good. Gives the ids of those that were there."""


class _Chosen:
    store: KeyStore | None = None


def use_keys(store: KeyStore | None) -> None:
    """Keep the keys of this process's events in ``store``; None: in the database that they are appended to, which is
    the default."""
    _Chosen.store = store


def chosen_keys() -> KeyStore | None:
    return _Chosen.store


async def opening_keys(store: KeyStore, ids: Iterable[str]) -> Mapping[str, bytes | None]:
    """All of these. Raises IntegrityError for one that is not there, and was not forgotten either."""
    wanted = sorted(ids)
    found = await store.open_keys(wanted) if wanted else {}
    lost = [id for id in wanted if id not in found]
    if lost:
        more = f" and {len(lost) - 1} more" if len(lost) > 1 else ""
        raise IntegrityError(
            f"key {lost[0]}{more} of personal values is lost: the key store does not have it, and nobody forgot it",
            hint=f"restore the key store from its backup; if there is none: tailrace forget --key {lost[0]}",
        )
    return found


async def hide_tags(store: KeyStore, tags: Sequence[str], names: Collection[str]) -> tuple[str, ...]:
    """Tags as they are stored: those of these names as codes."""
    if not any(tag.partition(":")[0] in names for tag in tags):
        return tuple(tags)
    secret = await store.tag_secret()
    return tuple(hidden_tag(secret, tag) if tag.partition(":")[0] in names else tag for tag in tags)
