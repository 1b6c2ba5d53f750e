"""An invoice for each deposit, exactly once: python examples/invoicing.py (needs tailrace[capture,embedded]).

Two members of one group share the work; effects and position are one transaction in the service's own database.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import threading
from decimal import Decimal
from pathlib import Path

import psycopg
from pydantic import BaseModel
from sqlalchemy import Engine, create_engine, text

from tailrace import Store, Stream, append, event, event_tables, load_settings
from tailrace.embedded import PostgresServer

CONFIG = '[sources.shop]\ndsn = "{dsn}"\n'


@event("deposited")
class Deposited(BaseModel):
    amount: Decimal


def invoice(folder: Path, engine: Engine, member: str) -> None:
    """One pod of the service. It ends here when nothing came for two seconds; a real one runs for ever."""
    with Store.open(load_settings(folder / "tailrace.toml").store, root=folder) as store:
        group = store.group("invoicing", topics=["shop.account"], start="earliest")
        with group.join(member=member, effects=engine, lease=10) as mine:
            for batch in mine.batches(timeout=2):
                with engine.begin() as transaction:
                    for each in batch.events(Deposited):
                        values = {"account": each.stream.id, "amount": each.data.amount}
                        transaction.execute(text("INSERT INTO invoices VALUES (:account, :amount)"), values)
                    batch.commit(transaction)


with PostgresServer() as server, tempfile.TemporaryDirectory() as name:
    folder = Path(name)
    (folder / "tailrace.toml").write_text(CONFIG.format(dsn=server.dsn()))
    with psycopg.connect(server.dsn(), autocommit=True) as db:
        event_tables.install(server.dsn())
        db.execute("CREATE TABLE invoices (account text, amount numeric(12, 2))")
        for account in range(100):
            with db.transaction():
                append(db, Stream("account", str(account)), [Deposited(amount=Decimal(account))])
        for arguments in (["init"], ["capture", "--until-idle"]):
            subprocess.run([sys.executable, "-m", "tailrace", *arguments], cwd=folder, check=True)
        engine = create_engine(server.dsn().replace("postgresql:", "postgresql+psycopg:"))
        pods = [threading.Thread(target=invoice, args=(folder, engine, f"pod-{n}")) for n in (1, 2)]
        for pod in pods:
            pod.start()
        for pod in pods:
            pod.join()
        engine.dispose()
        print(db.execute("SELECT count(*), sum(amount) FROM invoices").fetchone())
    subprocess.run([sys.executable, "-m", "tailrace", "group", "show", "invoicing"], cwd=folder, check=True)
