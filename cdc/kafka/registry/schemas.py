"""The schemas that records in Avro name: each is asked for once, and checked before it is used."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import pyarrow as pa

from tailrace.cdc.kafka.decoding.avro.schema import AvroSchema, SchemaProblem, parse_schema
from tailrace.cdc.kafka.decoding.avro.values import Schemas, schema_numbers
from tailrace.cdc.kafka.registry.client import RegistryClient
from tailrace.eventstore.settings import RegistrySettings

TYPES_MAX = 400_000
"""In all schemas that are remembered."""
REFUSED_MAX = 64
"""Schemas in one batch of records that the registry does not have. Each takes a question, and what writes so many is no
connector."""
_REFUSED_SECONDS = 30.0  # then it is asked again: a schema may be registered late, or reach its replica late
_REFUSED_KEPT = 10_000
_TOO_MANY = (
    f"more than {REFUSED_MAX} schemas of this batch are not in the registry, so this one was not asked for"
)
_ZERO = (
    "; records with numbers of eight bytes, as older ones of Apicurio, look so: let its converter write"
    " those of Confluent (apicurio.registry.as-confluent=true)"
)


@dataclass(slots=True)
class SchemaRegistry:
    """``known``: those used last are last. ``refused``: why, and until when that counts."""

    client: RegistryClient
    clock: Callable[[], float] = time.monotonic
    types_max: int = TYPES_MAX
    known: OrderedDict[int, AvroSchema] = field(default_factory=OrderedDict)
    refused: OrderedDict[int, tuple[str, float]] = field(default_factory=OrderedDict)

    @classmethod
    def of(cls, settings: RegistrySettings) -> SchemaRegistry:
        return cls(RegistryClient(settings))

    def schemas_of(self, records: pa.Table) -> Schemas:
        """Those that keys, values and headers of records name. Raises TransientError and OperatorError, as the
        client."""
        return self.schemas(schema_numbers(records))

    def schemas(self, numbers: Iterable[int]) -> Schemas:
        found: dict[int, AvroSchema | str] = {}
        asked = 0
        for number in sorted(numbers):
            schema = self._remembered(number)
            if schema is None and asked >= REFUSED_MAX:
                schema = _TOO_MANY
            elif schema is None:
                schema = self._ask(number)
                asked += isinstance(schema, str)
            found[number] = schema
        return found

    def _remembered(self, number: int) -> AvroSchema | str | None:
        schema = self.known.get(number)
        if schema is not None:
            self.known.move_to_end(number)
            return schema
        reason, until = self.refused.get(number, ("", 0.0))
        return reason if self.clock() < until else None

    def _ask(self, number: int) -> AvroSchema | str:
        answer = self.client.schema(number)
        if answer.text is None:
            return self._refuse(number, answer.refused + (_ZERO if number == 0 else ""))
        try:
            schema = parse_schema(answer.text)
        except SchemaProblem as problem:
            return self._refuse(number, f"schema {number} of the registry: {problem}")
        self.known[number] = schema
        while len(self.known) > 1 and sum(each.root.nodes for each in self.known.values()) > self.types_max:
            self.known.popitem(last=False)
        return schema

    def _refuse(self, number: int, reason: str) -> str:
        self.refused[number] = reason, self.clock() + _REFUSED_SECONDS
        self.refused.move_to_end(number)
        while len(self.refused) > _REFUSED_KEPT:
            self.refused.popitem(last=False)
        return reason


def schemas_of(registry: SchemaRegistry | None, records: pa.Table) -> Schemas | None:
    """None where there is no registry."""
    return None if registry is None else registry.schemas_of(records)
