"""One of many writers of streams, for ``test_stream_writers.py``: appends until it is killed. Arguments: dsn, name."""

from __future__ import annotations

import random
import sys
from uuid import uuid4

import psycopg
from pydantic import BaseModel

from tailrace import ANY, AppendTo, Conflict, Stream, append, append_all, event, load

HOT, COLD = 3, 200


@event("proof_wrote")
class Wrote(BaseModel, frozen=True):
    writer: str
    number: int
    size: int


def main(dsn: str, name: str) -> None:
    number = 0
    with psycopg.connect(dsn, autocommit=True) as connection:
        while True:
            hot = random.random() < 0.5
            stream = Stream(
                "proof_stream", f"hot{random.randrange(HOT)}" if hot else f"cold{random.randrange(COLD)}"
            )
            size = random.choice((1, 1, 1, 2, 5))
            events = [Wrote(writer=name, number=number, size=size)] * size
            way = random.random()
            if way < 0.3:
                append(connection, stream, events)
            elif way < 0.5:
                append(connection, stream, events, event_ids=[uuid4() for _ in events])
            elif way < 0.7:
                other = Stream("proof_stream", f"other{random.randrange(COLD)}")
                append_all(connection, [AppendTo(stream, events), AppendTo(other, events, ANY)])
            else:
                with connection.transaction():
                    version = len(load(connection, stream))
                    done = append(connection, stream, events, expected=version)
                    if isinstance(done, Conflict) and random.random() < 0.5:
                        append(connection, stream, events)
                    if random.random() < 0.1:
                        raise psycopg.Rollback
            number += 1


if __name__ == "__main__":
    main(*sys.argv[1:])
