"""A process manager that follows a log, for ``test_processes.py``: arguments are the store's folder and the source."""

from __future__ import annotations

import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

from pydantic import BaseModel
from sqlalchemy import create_engine, make_url

from tailrace import Decider, Do, Due, End, ProcessManager, Refused, Store, Timer, event
from tailrace.eventstore.settings import StoreSettings


@event("proof_asked")
class Asked(BaseModel, frozen=True):
    id: str
    number: int
    last: bool = False


@event("proof_done")
class Done(BaseModel, frozen=True):
    what: str


work: Decider[str, int, Done] = Decider(
    "proof_work", 0, lambda what, n: [Done(what=what)], lambda n, _: n + 1
)


def react(input: Asked | Due | Refused, state: None) -> list[Do | Timer | End]:
    match input:
        case Asked(id=id, number=number, last=last):
            soon = datetime.now(UTC) + timedelta(milliseconds=20 * (number % 5))
            wanted: list[Do | Timer | End] = [Do(work, id, f"asked {number}"), Timer(f"timer {number}", soon)]
            return [*wanted, End()] if last else wanted
        case Due(name=name, key=id):
            return [Do(work, id, name)]
    return []


manager: ProcessManager[Asked | Due | Refused, None] = ProcessManager(
    "proof_process", None, react, key={Asked: "id"}
)


def main(folder: str, dsn: str) -> None:
    engine = create_engine(make_url(dsn).set(drivername="postgresql+psycopg"))
    with Store.open(StoreSettings(name="test"), root=Path(folder)) as store:
        store.process(manager, engine, ["test.proof_start"], member="pod").run(timeout=3)


if __name__ == "__main__":
    main(*sys.argv[1:])
