"""A Postgres database that is captured."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, SecretStr, model_validator

from tailrace.eventstore.model.event_schema import EVENTS_SCHEMA, is_schema_name
from tailrace.eventstore.settings.base import MIB, Frozen
from tailrace.eventstore.settings.column_policies import ColumnPolicies, HashKey, require_hash_key

# A description by the DDL trigger of a table with 1,600 columns takes 2.3 MB where each name needs the most escaping.
MESSAGE_BYTES_MIN = 4 * MIB


class PersonalTable(Frozen):
    """A table with columns about somebody, which `tailrace forget` erases from the log."""

    subject: Annotated[str, Field(min_length=1, description="The column that says whom a row is about.")]
    columns: Annotated[
        tuple[str, ...], Field(min_length=1, description="The columns about them, none of the key.")
    ]
    kind: Annotated[
        str, Field(description="Tells subjects of different tables apart: they are called KIND:ID.")
    ] = ""

    def id_of(self, subject: str) -> str | None:
        """What the column says where a row is about a subject; None for one of another kind."""
        if not self.kind:
            return subject
        return subject.removeprefix(f"{self.kind}:") if subject.startswith(f"{self.kind}:") else None


def _events_schema(name: str) -> str:
    if not is_schema_name(name):
        raise ValueError("must be a schema of its own: small letters, digits and _, as in shop_events")
    return name


class PostgresSourceSettings(Frozen):
    """One Postgres database that is captured."""

    kind: Annotated[Literal["postgres"], Field(description="Kind of the database.")] = "postgres"
    dsn: Annotated[SecretStr, Field(description="Connection string of the database, as libpq reads it.")]
    tables: Annotated[
        tuple[str, ...],
        Field(description="Tables to capture: patterns SCHEMA.TABLE with * and ?. ! begins an exclusion."),
    ] = ("public.*",)
    columns: ColumnPolicies = {}
    hash_key: HashKey = None
    personal: Annotated[
        dict[str, PersonalTable],
        Field(description="Columns that `tailrace forget` erases from the log, by table, SCHEMA.TABLE."),
    ] = {}
    events_schema: Annotated[
        str,
        AfterValidator(_events_schema),
        Field(description="Schema of the tables of domain events. There is nothing else in it."),
    ] = EVENTS_SCHEMA
    epoch_bytes: Annotated[int, Field(ge=1024, description="An epoch ends when it has this size.")] = 32 * MIB
    epoch_changes: Annotated[int, Field(ge=1, description="An epoch ends when it has this many changes.")] = (
        200_000
    )
    linger_ms: Annotated[
        int,
        Field(
            ge=0,
            le=60_000,
            description="Milliseconds that an epoch waits for more transactions. Where appends are slow, twice as long"
            " as the last one took, up to three times this.",
        ),
    ] = 30
    queue_bytes: Annotated[
        int, Field(ge=1024, description="Memory for received frames that wait for the decoder.")
    ] = 64 * MIB
    message_bytes: Annotated[
        int,
        Field(
            ge=MESSAGE_BYTES_MIN,
            description="Size above which a logical message is skipped and counted, not captured.",
        ),
    ] = MESSAGE_BYTES_MIN
    load_workers: Annotated[
        int, Field(ge=1, le=64, description="Connections that read tables side by side in the first load.")
    ] = 2
    load_chunk_rows: Annotated[
        int, Field(ge=1, description="Most rows in a chunk of a table that is loaded beside the stream.")
    ] = 50_000
    load_rows_per_second: Annotated[
        int | None,
        Field(ge=1, description="Most rows a second in loads beside the stream. Default: no limit."),
    ] = None
    protocol: Annotated[
        Literal[1, 2],
        Field(
            description="Version of the replication protocol. 2: the server streams large transactions before their"
            " commit, and capture keeps them on its disk."
        ),
    ] = 1

    @model_validator(mode="after")
    def _policies_can_be_kept(self) -> Self:
        require_hash_key(self.columns, self.hash_key)
        return self
