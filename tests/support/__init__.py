"""Helpers that tests of several rooms share."""

from pathlib import Path

import pytest

pytest.register_assert_rewrite("tests.support.capturing")

REPOSITORY = Path(__file__).parents[2]
