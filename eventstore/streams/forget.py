"""Forget somebody: delete the keys of the personal values about them, and all that was made of these beside the events.

What stays is what nobody can read any more, and that it was forgotten: an event in a stream for each key, which the log
has like all others.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from tailrace.eventstore.errors import UsageError
from tailrace.eventstore.streams.blocking import finish
from tailrace.eventstore.streams.database.connection import Ask, DatabaseConnection, ask_of, in_transaction
from tailrace.eventstore.streams.database.source import SourceStreams
from tailrace.eventstore.streams.database.tagging import texts
from tailrace.eventstore.streams.inline_rows.projection import inline_projections
from tailrace.eventstore.streams.inline_rows.prove import write_row
from tailrace.eventstore.streams.models.event_types import event
from tailrace.eventstore.streams.outcomes import NO_STREAM
from tailrace.eventstore.streams.personal.sealing import (
    Key,
    hidden_tag,
    is_hidden,
    is_key_id,
    personal_values,
)
from tailrace.eventstore.streams.stream import Stream
from tailrace.eventstore.streams.writing.append import appending

FORGOTTEN: Final = "tailrace_forgotten"
"""The category of streams that say, by the ids of keys, what was forgotten. open_keys of migration 9 looks there."""
_BEGIN: Final = "SELECT tailrace.begin_forgetting()"
_ISOLATION: Final = "SELECT current_setting('transaction_isolation')"
_EVENTS: Final = """
SELECT category, stream, version, data, tags FROM tailrace.events_of_keys(CAST(%(ids)s AS text[]))
"""
_LEFT: Final = """
SELECT (SELECT count(*) FROM tailrace.subject_keys WHERE CAST(id AS text) = ANY (CAST(%(ids)s AS text[]))),
       (SELECT count(*) FROM unnest(CAST(%(ids)s AS text[])) AS i(id) WHERE NOT EXISTS (
            SELECT FROM tailrace.events e WHERE e.category = CAST(%(category)s AS text) AND e.stream = i.id)),
       (SELECT count(*) FROM tailrace.snapshots s WHERE CAST(s.state AS text) LIKE '{"$personal": ["%%'
            AND string_to_array(s.state -> '$personal' ->> 0, ',') && CAST(%(ids)s AS text[]))
"""
_FORGOTTEN_KEYS: Final = (
    "SELECT DISTINCT stream FROM tailrace.events WHERE category = CAST(%(category)s AS text) ORDER BY stream"
)
_DROP_TAGS: Final = """
SELECT tailrace.drop_tags(%(category)s, %(stream)s, CAST(%(version)s AS bigint), CAST(%(tags)s AS text[]))
"""
_DROP_DERIVED: Final = "SELECT tailrace.drop_derived(%(category)s, %(stream)s)"


class NobodyKnown(UsageError):
    """A subject without keys."""


@event(FORGOTTEN)
@dataclass(frozen=True)
class KeyForgotten:
    """That a key was forgotten, of which there were so many ``events``."""

    events: int


@dataclass(frozen=True, slots=True)
class Forgotten:
    """The receipt: the ids of the ``keys`` that were deleted; so many ``events`` of these ``streams`` had values about
    the subject; so many ``tags`` and ``snapshots`` were removed, and rows of these ``tables`` of inline projections
    written again."""

    keys: tuple[str, ...]
    streams: tuple[Stream, ...]
    events: int
    tags: int
    snapshots: int
    tables: tuple[str, ...]


def forget(connection: DatabaseConnection, subject: str) -> Forgotten:
    """Forget a subject, as ``Personal`` names it: its values read as ``Erased`` from then on, everywhere, for good.

    In the transaction of the caller, if there is one. Rows of inline projections are written again where this process
    declares them. Beside it services go on: an event about the subject is written before, or with a new key.
    ``tailrace forget`` also has projections of the log computed again.

    Raises UsageError for a subject that has no keys: it was forgotten, or never was.
    """
    return finish(forgetting(ask_of(connection), lambda: in_transaction(connection), subject))


def forget_keys(connection: DatabaseConnection, ids: Sequence[str]) -> Forgotten:
    """``forget`` of keys by their ids, as far as they are there or nothing says that they were forgotten: after a
    backup was restored; and of those that are lost."""
    wrong = next((id for id in ids if not is_key_id(id)), None)
    if wrong is not None:
        raise UsageError(
            f"{wrong!r} is no id of a key", hint="a UUID, as the error about a lost key names it"
        )
    ask = ask_of(connection)
    return finish(_forgetting_keys(ask, lambda: in_transaction(connection), ids))


def rotate_key(connection: DatabaseConnection, subject: str) -> bool:
    """Encrypt values about a subject with a new key from now on; those that are there stay readable. Whether it has any
    key."""
    return finish(SourceStreams(ask_of(connection)).keys.rotate(subject)) is not None


def keys_forgotten(connection: DatabaseConnection) -> list[str]:
    """The ids of all keys that were forgotten here."""
    return [id for (id,) in finish(ask_of(connection)(_FORGOTTEN_KEYS, {"category": FORGOTTEN}))]


async def forgetting(ask: Ask, as_one: Callable[[], Any], subject: str) -> Forgotten:
    """``forget``, where statements run."""
    async with as_one():
        keys = await SourceStreams(ask).keys.keys_of(subject)
        if not keys:
            raise NobodyKnown(
                "this subject has no keys: it was forgotten already, or there never was a value about it",
                hint="name it as Personal does: KIND:ID where the annotation has a kind, else the id alone",
            )
        return await _forget(ask, keys)


async def _forgetting_keys(ask: Ask, as_one: Callable[[], Any], ids: Sequence[str]) -> Forgotten:
    async with as_one():
        keys = SourceStreams(ask).keys
        secrets = await keys.open_keys(ids)  # of a database that was restored: its tags are to go, too
        there = await keys.forget(ids)
        rows = await ask(_FORGOTTEN_KEYS, {"category": FORGOTTEN})
        wanted = set(there) | (set(ids) - {id for (id,) in rows})
        return await _forget(ask, [Key(id, secrets.get(id) or b"") for id in sorted(wanted)])


async def _forget(ask: Ask, keys: Sequence[Key]) -> Forgotten:
    ((isolation,),) = await ask(_ISOLATION, {})
    if isolation != "read committed":
        raise UsageError(
            f"a subject cannot be forgotten under {isolation.upper()}, which may not see the latest about it",
            hint="use a transaction of READ COMMITTED",
        )
    await ask(_BEGIN, {})
    streams = SourceStreams(ask)
    ids = [key.id for key in keys]
    rows = await ask(_EVENTS, {"ids": texts(ids)})
    events = {(Stream(category, id), version): (data, tags) for category, id, version, data, tags in rows}
    tags = await _drop_tags(ask, await _tags_of(streams, keys, events))
    found = sorted({stream for stream, _ in events})
    await streams.keys.forget(ids)
    for id in ids:
        mine = sum(id in data for data, _ in events.values())
        await appending(streams, Stream(FORGOTTEN, id), [KeyForgotten(mine)], NO_STREAM, {})
    snapshots = 0
    for stream in found:
        ((dropped,),) = await ask(_DROP_DERIVED, {"category": stream.category, "stream": stream.id})
        snapshots += dropped
    tables = await _write_inline_rows(ask, found)
    return Forgotten(tuple(ids), tuple(found), len(events), tags, snapshots, tables)


async def _tags_of(
    streams: SourceStreams,
    keys: Sequence[Key],
    events: Mapping[tuple[Stream, int], tuple[str, Sequence[str] | None]],
) -> dict[tuple[Stream, int], list[str]]:
    """Personal tags about the subject, of each event: those that its values make."""
    secrets = {key.id: key.secret for key in keys if key.secret}
    found: dict[tuple[Stream, int], list[str]] = {}
    secret = b""
    for place, (data, tags) in events.items():
        hidden = [tag for tag in tags or () if is_hidden(tag)]
        if not hidden:
            continue
        secret = secret or await streams.keys.tag_secret()
        values = [value for text in personal_values(data, secrets) for value in _plain(json.loads(text))]
        names = {tag.partition("#")[0] for tag in hidden}
        mine = {hidden_tag(secret, f"{name}:{value}") for name in names for value in values}
        found[place] = [tag for tag in hidden if tag in mine]
    return {place: tags for place, tags in found.items() if tags}


def _plain(value: object) -> Iterable[object]:
    """What may be a tag."""
    if isinstance(value, list):
        for each in value:
            yield from _plain(each)
    elif value is not None and not isinstance(value, dict):
        yield value


async def _drop_tags(ask: Ask, found: Mapping[tuple[Stream, int], Sequence[str]]) -> int:
    dropped = 0
    for (stream, version), tags in found.items():
        values = {"category": stream.category, "stream": stream.id, "version": version, "tags": texts(tags)}
        ((count,),) = await ask(_DROP_TAGS, values)
        dropped += count
    return dropped


async def _write_inline_rows(ask: Ask, streams: Sequence[Stream]) -> tuple[str, ...]:
    """Rows that follow from values that are erased now."""
    written: dict[str, None] = {}
    for stream in streams:
        for each in inline_projections(stream.category):
            await write_row(ask, each, stream)
            written[each.table] = None
    return tuple(written)


def left_in_source(connection: DatabaseConnection, ids: Iterable[str]) -> list[tuple[str, str]]:
    """What a source still has of keys that were forgotten, and what to do about it."""
    values = {"ids": texts(ids), "category": FORGOTTEN}
    ((keys, untold, snapshots),) = finish(ask_of(connection)(_LEFT, values))
    again = "tailrace forget --again"
    found = [
        (keys, "keys that were forgotten are in the table of keys again", again),
        (untold, "keys are forgotten in the log alone: the source was restored to a time before", again),
        (
            snapshots,
            "snapshots are encrypted with keys that were forgotten",
            "tailrace forget --again removes them",
        ),
    ]
    return [(f"{number} {what}", remedy) for number, what, remedy in found if number]
