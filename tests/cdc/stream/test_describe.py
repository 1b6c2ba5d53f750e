"""What a session learns of a relation that it does not know, from a real server's catalog."""

from __future__ import annotations

from pathlib import Path

import pytest

from tailrace.cdc.columnar.relations import UNCAPTURED
from tailrace.cdc.postgres.connect import Address
from tailrace.cdc.stream.describe import Describer
from tailrace.cdc.topics import Topics, TopicsChanged
from tailrace.cdc.wire.pgoutput import Relation
from tests.support.capturing import SOURCE, Site, execute, query


def test_a_table_ends_a_session_only_if_the_next_one_would_load_it(database: str, store_dir: Path) -> None:
    """A partition may have the name of an incomplete topic. It is read as part of its root: to each session that began
    because of it, it would be as new as to the one before."""
    execute(
        database,
        "CREATE TABLE people (id int PRIMARY KEY)",
        "CREATE TABLE everybody (id int PRIMARY KEY) PARTITION BY RANGE (id)",
    )
    site = Site.at(store_dir, database)
    site.init()
    execute(
        database,
        "DROP TABLE people",
        "CREATE TABLE people (id int PRIMARY KEY)",
        "ALTER TABLE everybody ATTACH PARTITION people FOR VALUES FROM (0) TO (100)",
    )
    ((relid,),) = query(database, "SELECT 'people'::regclass::oid::bigint")
    people = Relation(relid, "public", "people", "d", ())
    with site.open() as store:
        source = store.source(SOURCE)
        assert source is not None
        describe = Describer(store, source, Topics.read(store, SOURCE), Address.parse(database))
        described = describe(people)
        assert described is not None and described.version == UNCAPTURED
        execute(
            database,
            "ALTER TABLE everybody DETACH PARTITION people",
            "ALTER PUBLICATION acme_shop ADD TABLE people",
        )
        with pytest.raises(
            TopicsChanged, match=r"public\.people has a table that this session does not know"
        ):
            describe(people)
