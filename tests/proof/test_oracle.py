"""Promise 5 and 7: after any history the log's state of every table is what Postgres' own subscriber holds."""

from __future__ import annotations

from pathlib import Path

import psycopg
import pytest

from tailrace.eventstore.model.topic import TopicId
from tests.fixtures.scale import Scale
from tests.fixtures.servers import ServerFactory
from tests.proof.compare import rows_of_database, rows_of_log
from tests.proof.rig import Rig, wait_until
from tests.proof.workload import NAMES, SCHEMA, TABLES, Workload


@pytest.mark.parametrize("seed", [1, 2])
def test_state_equals_a_native_subscriber_row_by_row(
    seed: int, database: str, postgres_server: ServerFactory, tmp_path: Path, scale: Scale
) -> None:
    subscriber = postgres_server(settings={"fsync": "off"}).dsn()
    rig = Rig(tmp_path, database, tables=TABLES, options="epoch_bytes = 65536\nlinger_ms = 20")
    workload = Workload(database, seed)
    for dsn in (database, subscriber):
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute(SCHEMA)
    workload.run(50)  # rows that the first load finds
    name = database.rsplit("/", 1)[1]
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute('CREATE PUBLICATION oracle FOR TABLES IN SCHEMA public, "Vente é"')
    with psycopg.connect(subscriber, autocommit=True) as connection:
        connection.execute(
            f"CREATE SUBSCRIPTION {name} CONNECTION '{database}' PUBLICATION oracle WITH (streaming = off)"
        )

    rig.run("init")
    with rig.running("capture") as capture:
        workload.run(scale.pick(smoke=700, full=60_000))
        rig.wait_captured(capture)
        wait_until(lambda: caught_up(database, subscriber), "the subscriber reaches the source's position")
        rig.stop(capture)

    with rig.store() as store:
        for (schema, table), key in NAMES.items():
            ours = rows_of_log(store, TopicId.table("shop", schema, table), store.cut(), key)
            theirs = rows_of_database(subscriber, schema, table, key)
            assert ours.keys() == theirs.keys(), (schema, table)
            differing = {(k, a, b) for k in ours for a, b in zip(ours[k], theirs[k], strict=True) if a != b}
            assert not differing, (schema, table)
    with psycopg.connect(subscriber, autocommit=True) as connection:
        connection.execute(f"DROP SUBSCRIPTION {name}")


def caught_up(source: str, subscriber: str) -> bool:
    with psycopg.connect(subscriber, autocommit=True) as connection:
        unready = connection.execute("SELECT 1 FROM pg_subscription_rel WHERE srsubstate <> 'r'").fetchone()
    with psycopg.connect(source, autocommit=True) as connection:
        slot = source.rsplit("/", 1)[1]
        row = connection.execute(
            "SELECT confirmed_flush_lsn >= pg_current_wal_flush_lsn() FROM pg_replication_slots WHERE slot_name = %s",
            (slot,),
        ).fetchone()
    return unready is None and row is not None and bool(row[0])
