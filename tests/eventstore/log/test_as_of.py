"""What a text says of a position of the log."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from tailrace.eventstore.errors import UsageError
from tailrace.eventstore.log.as_of import absolute


def test_a_position_that_depends_on_now_or_on_a_zone_has_a_form_that_does_not() -> None:
    assert absolute("2026-05-01 12:00") == absolute("2026-05-01T14:00+02:00") == "2026-05-01T12:00:00Z"
    assert absolute(datetime(2026, 5, 1, 12, tzinfo=UTC)) == "2026-05-01T12:00:00Z"
    assert [absolute(text) for text in ("42", "0/16B3748", "shop=0/16B3748")] == [
        "42", "0/16B3748", "shop=0/16B3748",
    ]  # fmt: skip
    today = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    assert absolute("today") in [f"{day:%Y-%m-%dT%H:%M:%S}Z" for day in (today, today + timedelta(days=1))]
    assert absolute("yesterday") < absolute("today")
    before = datetime.now(UTC)
    for text, ago in (("-1h", 3600), ("90min ago", 5400), ("-1.5d", 129_600), ("2w", 1_209_600)):
        found = datetime.fromisoformat(absolute(text)) + timedelta(seconds=ago)
        assert before <= found <= datetime.now(UTC), text


@pytest.mark.parametrize("text", ["tomorrow", "-1", "-", "1 fortnight", "ago", "-1h30", "yesterday 12:00"])
def test_what_is_no_position_is_refused_with_the_forms_there_are(text: str) -> None:
    with pytest.raises(UsageError, match="is not a position of the log") as refused:
        absolute(text)
    assert "-1h" in refused.value.hint and "yesterday" in refused.value.hint
