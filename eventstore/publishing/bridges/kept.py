"""How far a publication is, and which keys wait, in our catalog: for destinations that cannot keep it.

Each publisher begins a term of its own, and commits only while it has the last one. A publisher that was fenced may
still have a message under way; the receiver knows it by its id.
"""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Connection, and_, delete, insert, select, update
from sqlalchemy.exc import IntegrityError as Duplicate

from tailrace.eventstore import failpoints
from tailrace.eventstore.catalog import tables
from tailrace.eventstore.catalog.database import Catalog
from tailrace.eventstore.errors import Fenced
from tailrace.eventstore.publishing.parked import ParkedKey
from tailrace.eventstore.publishing.position import Position

PLACE = "the catalog's table publications"
_TABLE = tables.publications
_PARKED = tables.parked_keys


class Kept:
    """What one publisher may change, until another one begins."""

    def __init__(self, catalog: Catalog, publication: str) -> None:
        self._catalog = catalog
        self._name = publication
        self._term = _begin(catalog, publication)

    def state(self) -> tuple[Position | None, list[ParkedKey]]:
        return shown_state(self._catalog, self._name)

    def require(self) -> None:
        """Raises Fenced when another publisher began."""
        query = select(_TABLE.c.term).where(_TABLE.c.name == self._name)
        with self._catalog.read() as connection:
            if connection.scalar(query) != self._term:
                raise self._fenced()

    def commit(self, position: Position, parked: Sequence[ParkedKey], released: Sequence[ParkedKey]) -> None:
        """All of it or nothing. Raises Fenced, and TransientError when it is not known whether it was committed."""
        mine = and_(_TABLE.c.name == self._name, _TABLE.c.term == self._term)
        with self._catalog.write() as connection:
            stored = update(_TABLE).where(mine).values(position=position.to_json().decode())
            if connection.execute(stored).rowcount != 1:
                raise self._fenced()
            for each in released:
                key = _PARKED.c.topic == each.topic, _PARKED.c.hash == each.hash
                connection.execute(delete(_PARKED).where(_PARKED.c.publication == self._name, *key))
            if parked:
                connection.execute(insert(_PARKED), [_values(self._name, each) for each in parked])
            failpoints.hit("publication_committing")

    def _fenced(self) -> Fenced:
        return Fenced(
            f"publication {self._name}: another process publishes it now", hint="let one process publish it"
        )


def shown_state(catalog: Catalog, publication: str) -> tuple[Position | None, list[ParkedKey]]:
    """What is committed, also beside a running publisher, and when nothing ever was."""
    with catalog.read() as connection:
        text = connection.scalar(select(_TABLE.c.position).where(_TABLE.c.name == publication))
        parked = _parked(connection, publication)
    return None if text is None else Position.from_json(text.encode(), PLACE), parked


def _parked(connection: Connection, publication: str) -> list[ParkedKey]:
    query = select(_PARKED).where(_PARKED.c.publication == publication)
    return [
        ParkedKey(row.topic, row.hash, row.partition, row.row_offset, row.after_epoch, row.reason)
        for row in connection.execute(query.order_by(_PARKED.c.topic, _PARKED.c.after_epoch, _PARKED.c.hash))
    ]


def _values(publication: str, parked: ParkedKey) -> dict[str, object]:
    return {
        "publication": publication,
        "topic": parked.topic,
        "hash": parked.hash,
        "partition": parked.partition,
        "row_offset": parked.offset,
        "after_epoch": parked.after_epoch,
        "reason": parked.reason,
    }


def _begin(catalog: Catalog, publication: str) -> int:
    """A new term; the one before has ended."""
    raised = update(_TABLE).where(_TABLE.c.name == publication).values(term=_TABLE.c.term + 1)
    try:
        with catalog.write() as connection:
            term = connection.execute(raised.returning(_TABLE.c.term)).scalar_one_or_none()
            if term is None:
                connection.execute(insert(_TABLE).values(name=publication, term=1))
            return 1 if term is None else int(term)
    except Duplicate:  # another one began at the same moment
        return _begin(catalog, publication)
