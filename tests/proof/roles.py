"""Processes of a soak, to be killed: ``python -m tests.proof.roles ROLE FOLDER NAME`` does its work until SIGTERM.

``record GROUP.MEMBER`` consumes at least once, and tells the test what it was given before it commits; ``effects
GROUP.MEMBER`` consumes exactly once, into a database of its own; ``upkeep -`` does one round after another.
"""

from __future__ import annotations

import hashlib
import signal
import socket
import struct
import sys
import threading
from pathlib import Path

import numpy as np
from sqlalchemy import (
    Column,
    Connection,
    Engine,
    Integer,
    MetaData,
    Table,
    bindparam,
    create_engine,
    insert,
    select,
    update,
)

from tailrace.config.load import load_settings
from tailrace.eventstore.errors import TailraceError, TransientError
from tailrace.eventstore.store import Store
from tailrace.eventstore.subscriptions.batch import Batch
from tailrace.eventstore.subscriptions.group import Group
from tailrace.eventstore.subscriptions.member import Member
from tests.proof.counting import Ints, follow_on

EFFECTS = "effects.db"
HEAD = struct.Struct("<16sqq")  # group, partition, first offset; accounts and numbers follow
BATCH_ROWS = 4000  # a datagram holds that many
LEASE = 60.0  # one that is only slow is not taken for dead; who comes back under its name takes over at once
balances = Table(
    "balances", MetaData(), Column("account", Integer, primary_key=True), Column("n", Integer, nullable=False)
)


def address_of(folder: Path) -> str:
    """Of the test's socket: a name of no folder, for those are too long."""
    return f"\0tailrace-{hashlib.sha256(str(folder).encode()).hexdigest()}"


def columns_of(batch: Batch) -> tuple[Ints, Ints]:
    """Accounts and numbers, in offset order."""
    after = batch.rows["after"].combine_chunks()
    return after.field("id").to_numpy().astype(np.int64), after.field("n").to_numpy().astype(np.int64)


def record(store: Store, folder: Path, name: str) -> None:
    group, _, member = name.partition(".")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as told:
        told.connect(address_of(folder))
        with until_stopped(store.group(group), member) as joined:
            for batch in joined:
                accounts, numbers = columns_of(batch)
                head = HEAD.pack(group.encode(), batch.partition, batch.first_offset)
                told.send(head + accounts.tobytes() + numbers.tobytes())
                batch.commit()


def effects(store: Store, folder: Path, name: str) -> None:
    group, _, member = name.partition(".")
    engine = effects_in(folder)
    with until_stopped(store.group(group), member, engine) as joined:
        for batch in joined:
            with engine.begin() as transaction:
                apply(transaction, *columns_of(batch))
                batch.commit(transaction)
    engine.dispose()


def apply(transaction: Connection, accounts: Ints, numbers: Ints) -> None:
    """Every balance must be one less than the event says."""
    seen = np.full(int(accounts.max()) + 1, -1, np.int64)
    known = select(balances).where(balances.c.account <= int(accounts.max()))
    for account, n in transaction.execute(known):
        seen[account] = n
    new = np.unique(accounts[seen[accounts] < 0])
    changed = np.setdiff1d(accounts, new)
    follow_on(seen, accounts, numbers)
    if len(new):
        transaction.execute(insert(balances), [{"account": int(a), "n": int(seen[a])} for a in new])
    if len(changed):
        statement = update(balances).where(balances.c.account == bindparam("of")).values(n=bindparam("to"))
        transaction.execute(statement, [{"of": int(a), "to": int(seen[a])} for a in changed])


def effects_in(folder: Path) -> Engine:
    engine = create_engine(f"sqlite:///{folder / EFFECTS}")
    balances.metadata.create_all(engine)
    return engine


def upkeep(store: Store, folder: Path, name: str) -> None:
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    while not stop.wait(0.2):
        try:
            store.maintain()
        except TransientError as error:  # busy: the database, or somebody else
            print(error, flush=True)


def until_stopped(group: Group, name: str, engine: Engine | None = None) -> Member:
    member = group.join(name, effects=engine, batch_rows=BATCH_ROWS, lease=LEASE)
    signal.signal(signal.SIGTERM, lambda *_: member.stop())
    return member


ROLES = {"record": record, "effects": effects, "upkeep": upkeep}


def main() -> int:
    role, folder, name = sys.argv[1], Path(sys.argv[2]), sys.argv[3]
    try:
        with Store.open(load_settings(folder / "tailrace.toml").store) as store:
            ROLES[role](store, folder, name)
    except TailraceError as error:
        print(f"{type(error).__name__}: {error}")
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
