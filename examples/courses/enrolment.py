"""Who may enrol in what: decisions that no single stream could take, for they need a course's events and a student's.

Pure: no database, no clock.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated

from pydantic import BaseModel

from tailrace import Decider, Personal, Query, Rejected, Tag, event

COURSES_MAX = 3  # of one student


@event("student_registered")
class Registered(BaseModel, frozen=True):
    student: Annotated[str, Tag()]  # the tag student:<value>
    email: Annotated[str, Tag(), Personal(subject="student")]  # a code in the tables, until she is forgotten


@event("course_offered")
class Offered(BaseModel, frozen=True):
    course: Annotated[str, Tag()]
    places: int


@event("student_enrolled")
class Enrolled(BaseModel, frozen=True):
    course: Annotated[str, Tag()]
    student: Annotated[str, Tag()]


@dataclass(frozen=True)
class Register:
    student: str
    email: str


def register(command: Register, taken: bool) -> list[Registered]:
    if taken:
        raise Rejected("somebody has that address")
    return [Registered(student=command.student, email=command.email)]


registration = Decider(
    "student",
    False,  # whether the address is taken
    register,
    lambda taken, event: True,
    boundary=lambda command: Query(Registered, email=command.email),
)


@dataclass(frozen=True)
class Enrol:
    course: str
    student: str


@dataclass(frozen=True)
class Places:
    """Of all courses and students that the events inside a boundary are about."""

    offered: int = 0
    enrolled: frozenset[tuple[str, str]] = frozenset()


def enrol(command: Enrol, places: Places) -> list[Offered | Enrolled]:
    if (command.course, command.student) in places.enrolled:
        return []  # again: nothing changes
    if sum(course == command.course for course, _ in places.enrolled) >= places.offered:
        raise Rejected("the course is full")
    if sum(student == command.student for _, student in places.enrolled) >= COURSES_MAX:
        raise Rejected(f"{COURSES_MAX} courses are enough")
    return [Enrolled(course=command.course, student=command.student)]


def evolve(places: Places, event: Offered | Enrolled) -> Places:
    match event:
        case Offered(places=offered):
            return replace(places, offered=offered)
        case Enrolled(course=course, student=student):
            return replace(places, enrolled=places.enrolled | {(course, student)})


enrolment = Decider(
    "course",
    Places(),
    enrol,
    evolve,
    boundary=lambda command: (
        Query(Offered, course=command.course)
        | Query(Enrolled, course=command.course)
        | Query(Enrolled, student=command.student)
    ),
)
