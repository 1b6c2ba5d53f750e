"""Helpers that tests of several rooms share."""

import pytest

pytest.register_assert_rewrite("tests.support.capturing")
