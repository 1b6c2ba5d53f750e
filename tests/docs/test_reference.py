"""The reference pages say what the code says, of every setting, command, option, metric and error."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from docs.generate import FOLDER, PAGES, Undescribed, described, options


@pytest.mark.parametrize("name", PAGES)
def test_a_page_of_the_reference_is_as_the_code_makes_it(name: str) -> None:
    current = (FOLDER / name).read_text(encoding="utf-8")
    assert current == PAGES[name](), "run make reference"


def test_there_is_no_page_that_nothing_writes() -> None:
    assert {path.name for path in FOLDER.iterdir()} == set(PAGES)


@dataclass
class Half:
    first: int
    """It has one."""
    other: int = 0


def test_what_has_no_description_is_named() -> None:
    with pytest.raises(Undescribed, match=r"Half\.other"):
        options(Half)
    with pytest.raises(Undescribed, match="a setting"):
        described(" ", "a setting")
