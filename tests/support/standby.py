"""Physical standbys of embedded servers, made as an operator makes them: base backups that stream."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from tailrace.embedded import PostgresServer
from tests.fixtures.servers import ServerFactory
from tests.support.capturing import execute, query, wait_until

LINK = "standby"
"""The physical slot that keeps the primary's WAL for the standby."""


def start_standby(primary: PostgresServer, start: ServerFactory, **settings: str) -> PostgresServer:
    """A standby that streams from ``primary``. It lies in the primary's folder, so it is closed before that."""
    folder = primary.data_dir.with_name("standby")
    execute(primary.dsn(), f"SELECT pg_create_physical_replication_slot('{LINK}', true)")
    subprocess.run(
        [primary.bin("pg_basebackup"), "-d", primary.dsn(), "-D", folder, "-R", "-X", "stream", "-S", LINK,
         "--checkpoint=fast", "--no-sync"],
        check=True, capture_output=True,
    )  # fmt: skip
    give(folder, primary.data_dir.stat())
    return start(data_dir=folder, settings={"hot_standby_feedback": "on", **settings})


def give(folder: Path, owner: os.stat_result) -> None:
    """As root: what we made becomes the server's."""
    for path in (folder, *folder.rglob("*")):
        shutil.chown(path, owner.st_uid, owner.st_gid)


def wait_until_replayed(primary: PostgresServer, standby: PostgresServer) -> None:
    """Wait until the standby has replayed all that the primary has flushed."""
    ((head,),) = query(primary.dsn(), "SELECT pg_current_wal_flush_lsn()::text")
    wait_until(lambda: query(standby.dsn(), f"SELECT pg_last_wal_replay_lsn() >= '{head}'") == [(True,)], 60)


def promote(standby: PostgresServer) -> None:
    ((done,),) = query(standby.dsn(), "SELECT pg_promote()")
    assert done
