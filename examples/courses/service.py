"""A service that decides across streams: nobody gets a place that is not there, whoever asks at the same time.

python -m examples.courses.service [DSN]     without a DSN an embedded server is started
"""

from __future__ import annotations

import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import psycopg

from examples.courses.enrolment import Enrol, Enrolled, Offered, Register, enrolment, registration
from tailrace import Query, Rejected, Stream, append, event_tables, handle, load_boundary
from tailrace.embedded.postgres import PostgresServer

STUDENTS = [f"student {number}" for number in range(8)]


def register(dsn: str, student: str, email: str) -> str:
    with psycopg.connect(dsn) as connection:
        try:
            handle(connection, registration, student, Register(student, email))
        except Rejected as refused:
            return f"no: {refused}"
    return "registered"


def enrol(dsn: str, course: str, student: str) -> str:
    with psycopg.connect(dsn) as connection:
        try:
            done = handle(connection, enrolment, course, Enrol(course, student))
        except Rejected as refused:
            return f"no: {refused}"
    return "enrolled" if done.events else "enrolled already"


def main(dsn: str | None) -> None:
    with ExitStack() as stack:
        server = dsn or stack.enter_context(PostgresServer()).dsn()
        event_tables.install(server)  # `tailrace init --events` does this too
        with psycopg.connect(server) as connection:
            for course in ("algebra", "botany", "chess", "drawing"):
                append(connection, Stream("course", course), [Offered(course=course, places=3)])
        print("Ada:", register(server, "Ada", "ada@example.org"))
        print("Bo, with her address:", register(server, "Bo", "ada@example.org"))
        with ThreadPoolExecutor(len(STUDENTS)) as pool:
            answers = Counter(pool.map(lambda student: enrol(server, "algebra", student), STUDENTS))
        print(
            "eight at once:",
            *(f"{times} × {answer}" for answer, times in sorted(answers.items())),
            sep="\n  ",
        )
        for course in ("botany", "botany", "chess", "drawing", "algebra"):
            print(f"Ada, {course}:", enrol(server, course, "Ada"))
        with psycopg.connect(server) as connection:
            found = load_boundary(connection, Query(Enrolled, student="Ada"))
        print("Ada's:", [recorded.data.course for recorded in found.events])


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else None)
