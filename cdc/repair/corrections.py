"""The rows that make a topic equal to its table.

Both sides are texts as Postgres prints them, and are compared as two 64-bit hashes a row. The table comes chunk by
chunk from a snapshot; of the topic only hashes are in memory. A row of the topic that no chunk had is deleted only when
the snapshot does not have its key.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from tailrace.cdc.columnar.rows import deleted_rows
from tailrace.cdc.columnar.values import LoadStamp, loaded_rows
from tailrace.cdc.policy.policies import Policies
from tailrace.cdc.repair.digests import Digests, digest, keys_of
from tailrace.cdc.repair.redactions import ErasedCells
from tailrace.cdc.wire.replication import UNIX_EPOCH_MICROS
from tailrace.eventstore.model.schema import TopicSchema
from tailrace.eventstore.model.topic import TopicId

Mask = np.ndarray[Any, np.dtype[np.bool_]]
Texts = Sequence[pa.Array]


class Correction:
    """Compares one table with its topic. ``log``: digests of the topic's rows, whose keys are all different. ``erased``
    cells are not compared and stay erased in what is written."""

    def __init__(
        self,
        topic: TopicId,
        schema: TopicSchema,
        policies: Policies,
        log: Digests,
        erased: ErasedCells,
        stamp: LoadStamp,
    ) -> None:
        self._topic = topic
        self._policies = policies
        self._schema = schema
        self._log = log
        self._erased = erased
        self._seen = np.zeros(len(log), np.bool_)
        self._stamp = stamp
        self._ordinal = 0
        self.key_at = tuple(at for at, column in enumerate(schema.columns) if column.key)
        self.rows = self.added = self.changed = self.deleted = 0

    def chunk(self, texts: Texts) -> pa.Table | None:
        """Compare rows of the table, given as texts per column of the schema. Returns those that the topic does not
        have, or has otherwise, as rows of the topic; None when there is none."""
        protected = self._erased.hide(self._policies.texts(self._schema.columns, texts))
        key, row = digest(protected, self.key_at)
        self.rows += len(key)
        at = np.minimum(np.searchsorted(self._log.key, key), max(len(self._log) - 1, 0))
        known: Mask = self._log.key[at] == key if len(self._log) else np.zeros(len(key), np.bool_)
        same: Mask = known.copy()
        same[known] = self._log.row[at[known]] == row[known]
        self._seen[at[known]] = True
        self.added += int((~known).sum())
        self.changed += int((known & ~same).sum())
        if same.all():
            return None
        wanted = pa.array(~same)
        return self._rows([cells.filter(wanted) for cells in texts])

    def _rows(self, texts: Texts) -> pa.Table:
        first = self._ordinal
        self._ordinal += len(texts[0])
        rows = loaded_rows(texts, self._schema, self._policies, replace(self._stamp, first_ordinal=first))
        return self._erased.erase(rows, self._schema)

    def superfluous(
        self,
        log: Callable[[], Iterable[Texts]],
        exists: Callable[[Sequence[tuple[str, ...]]], set[tuple[str, ...]]],
    ) -> Iterator[pa.Table]:
        """Deletes of the topic's rows that no chunk had. ``log`` reads the topic's rows again for their keys;
        ``exists`` says which of some keys the table has."""
        unseen = self._log.key[~self._seen]
        if not len(unseen):
            return
        for texts in log():
            keys = [tuple(map(str, key)) for key in keys_of(texts, self.key_at, unseen.tolist()).values()]
            confirmed = sorted(set(keys) - exists(keys)) if keys else []
            if confirmed:
                self.deleted += len(confirmed)
                yield self._deletes(confirmed)

    def _deletes(self, keys: Sequence[tuple[str, ...]]) -> pa.Table:
        rows: list[list[bytes | None]] = []
        for key in keys:
            cells: list[bytes | None] = [None] * len(self._schema.columns)
            for at, text in zip(self.key_at, key, strict=True):
                cells[at] = text.encode()
            rows.append(cells)
        stamps = range(self._ordinal, self._ordinal + len(keys))
        self._ordinal += len(keys)
        transaction = (self._stamp.lsn, 0, (self._stamp.commit_ts or 0) - UNIX_EPOCH_MICROS)
        return deleted_rows(self._topic, self._schema, self._policies, rows, stamps, transaction).rows
