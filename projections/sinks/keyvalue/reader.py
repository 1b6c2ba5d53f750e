"""Looking rows up in what ``tailrace.projections.sinks.keyvalue.sink`` wrote."""

from __future__ import annotations

import json
from collections.abc import Sequence

from tailrace.projections.sinks.keys import key_name
from tailrace.projections.sinks.keyvalue.sink import Meta, Transactions
from tailrace.projections.sinks.reader import (
    Hit,
    KeyReader,
    Row,
    SeenGeneration,
    cannot_search,
    nothing_live_error,
    python_rows,
)
from tailrace.projections.sinks.rows import from_objects, schema_from_text


class KeyValueReader(KeyReader):
    """Looks keys up in the live generation, each call in one transaction."""

    def __init__(self, transactions: Transactions, store: str, projection: str) -> None:
        self._begin, self._name, self._projection = transactions, f"{store}/{projection}", projection
        self._followed = SeenGeneration(projection)

    def many(self, keys: Sequence[object]) -> list[Row | None]:
        seen = self._followed.seen
        with self._begin() as texts:
            live = texts.get(f"{self._name}/live")
            place = f"{self._name}/{live}"
            text = texts.get(place)
            if live is None or text is None:
                raise nothing_live_error(self._projection)
            self._followed.reads(int(live), seen)
            meta = Meta.from_text(text)
            schema = schema_from_text(meta.schema)
            names = [key_name(key, meta.key, schema, self._projection)[1] for key in keys]
            found = [texts.get(f"{place}/row/{name}") for name in names]
        rows = iter(python_rows(from_objects([json.loads(row) for row in found if row is not None], schema)))
        return [None if row is None else next(rows) for row in found]

    def search(self, query: str, limit: int = 10) -> list[Hit]:
        raise cannot_search(self._projection, "read it by key, or add a projection into a search index")

    def close(self) -> None:
        """Nothing is held."""
