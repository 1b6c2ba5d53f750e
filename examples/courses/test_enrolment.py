"""What the school demands: no database, no mocks.

python -m pytest examples/courses
"""

from __future__ import annotations

from examples.courses.enrolment import Enrol, Enrolled, Offered, Register, Registered, enrolment, registration
from tailrace.testing import given

ALGEBRA = Offered(course="algebra", places=1)
BO = Enrolled(course="algebra", student="Bo")


def test_an_address_is_one_students() -> None:
    story = given(registration).when(Register("Ada", "ada@example.org"))
    registered = Registered(student="Ada", email="ada@example.org")
    story.then(registered).when(Register("Bo", "ada@example.org")).then_rejected("has that address")
    given(registration, registered).when(Register("Bo", "bo@example.org")).then(
        Registered(student="Bo", email="bo@example.org")
    )


def test_a_course_has_so_many_places() -> None:
    story = given(enrolment, ALGEBRA).when(Enrol("algebra", "Bo")).then(BO)
    story.when(Enrol("algebra", "Bo")).then()
    story.when(Enrol("algebra", "Ada")).then_rejected("full")


def test_a_student_has_so_many_courses() -> None:
    others = [Enrolled(course=course, student="Ada") for course in ("botany", "chess", "drawing")]
    given(enrolment, ALGEBRA, *others).when(Enrol("algebra", "Ada")).then_rejected("enough")
    given(enrolment, ALGEBRA, *others).when(Enrol("algebra", "Bo")).then(BO)
