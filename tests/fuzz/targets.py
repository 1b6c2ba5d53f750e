"""What is fuzzed, by name."""

from __future__ import annotations

from tailrace.cdc.columnar import decode, relations, scan
from tailrace.cdc.wire import buffer, pgoutput
from tests.fuzz import batches, decoders, envelopes, reference, transactions
from tests.fuzz.fuzzing import Target

STREAM = Target(
    "stream",
    decoders.words_of,
    decoders.seeds,
    (decode, relations, scan, buffer, pgoutput, reference),
    bytes((0, 1, 2, 7, 8, 11, 0x7F, 0x80, 0xFF, *b"BCIUDTMRYOAKNtnub")),
)
TARGETS = {target.name: target for target in (STREAM, batches.TARGET, envelopes.TARGET, transactions.TARGET)}
