"""The tool of ``make mutants``: it makes the mutants it says, finds the survivor, and its lists fit the code."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.mutants.__main__ import Candidate, candidates, draw, equivalents, killed_before, run
from tests.mutants.mutations import mutations
from tests.mutants.table import AREAS, Area, matching
from tests.mutants.trial import Outcome

MODULE = b'''\
"""1 < 2"""


def allowed(age: int, known: bool = False) -> bool:
    """Whether, if age < 3."""
    if age < 8 and not known:
        raise ValueError(age < 1)
    return ask("SELECT 1 WHERE a IS NULL AND b")
'''


def test_each_mutant_differs_in_one_place() -> None:
    made = [(each.line, each.was, each.becomes) for each in mutations("rules.py", MODULE)]
    condition, query = "if age < 8 and not known:", 'return ask("SELECT 1 WHERE a IS NULL AND b")'
    assert made == [
        (6, condition, "if age <= 8 and not known:"),
        (6, condition, "if age < 7 and not known:"),
        (6, condition, "if age < 9 and not known:"),
        (6, condition, "if age < 8 or not known:"),
        (6, condition, "if age < 8 and (known):"),
        (7, "raise ValueError(age < 1)", "pass"),
        (8, query, "return None"),
        (8, query, query.replace("IS NULL", "IS NOT NULL")),
        (8, query, query.replace("AND", "OR")),
    ]
    assert {each.function for each in mutations("rules.py", MODULE)} == {"allowed"}


def test_a_mutation_is_the_same_one_after_its_lines_moved() -> None:
    moved = MODULE.replace(b"\n\n\n", b"\n\n\nFIRST = 1\n\n\n").replace(b"if age < 8 and", b"if  age < 8 and")
    assert [each.identity for each in mutations("rules.py", moved)] == [
        each.identity for each in mutations("rules.py", MODULE)
    ]


def test_the_mutant_that_no_test_notices_survives(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = b"class Age:\n    FULL = 8\n\n\ndef grown_up(age):\n    return age >= 8\n"
    tree = tmp_path / "tree"
    tree.mkdir()
    (tree / "rules.py").write_bytes(source)
    (tree / "pytest.ini").write_text("[pytest]\n")
    (tree / "conftest.py").write_text('def pytest_addoption(parser):\n    parser.addoption("--scale")\n')
    (tree / "test_rules.py").write_text(
        "import gc\nimport pytest\nfrom rules import Age, grown_up\n\n\n"
        "def test_ages():\n    assert grown_up(9) and not grown_up(7)\n"
        "    gc.disable()\n    gc.collect()\n    assert sum(map(grown_up, range(1000))) > 0\n"
        "    assert gc.collect() < 1000, 'what is measured has none of what records it'\n"
        "\n\n@pytest.mark.parametrize('limit', [Age.FULL])\ndef test_limit(limit):\n    assert limit == 8\n"
    )
    made = [
        each
        for each in mutations("rules.py", source)
        if each.becomes in ("return age > 8", "return None", "FULL = 9")
    ]
    drawn = [Candidate("rules", each, ("test_rules.py",)) for each in made]
    outcomes = {
        each.candidate.mutation.becomes: each.outcome
        for each in run(tree, drawn, workers=1, imported=(), kept=tmp_path / "kept.jsonl")
    }
    killed = {"FULL = 9": Outcome.KILLED, "return None": Outcome.KILLED}  # a test is named after the one
    assert outcomes == {"return age > 8": Outcome.SURVIVED} | killed
    assert (tree / "rules.py").read_bytes() == source

    def again() -> str:
        capsys.readouterr()
        (killed,) = run(tree, drawn[:1], workers=1, imported=(), kept=tmp_path / "kept.jsonl")
        assert killed.outcome is outcomes[killed.candidate.mutation.becomes]
        return capsys.readouterr().out

    assert killed_before(tmp_path / "kept.jsonl") == set() and again() == "", (
        "it is known how long tests take"
    )
    with (tree / "test_rules.py").open("a") as file:
        file.write("# another\n")
    assert again().startswith("without a mutation 1/1")


@pytest.fixture(scope="module")
def found() -> list[Candidate]:
    return candidates()


def test_a_seed_draws_the_same_mutants_evenly_from_all_areas(found: list[Candidate]) -> None:
    drawn = draw(found, seed=7, sample=40)
    assert drawn == draw(found, seed=7, sample=40) != draw(found, seed=8, sample=40)
    counts = [sum(each.area == name for each in drawn) for name in {area.name for area in AREAS}]
    assert max(counts) - min(counts) <= 1


@pytest.mark.parametrize("area", AREAS, ids=lambda area: area.modules[0])
def test_modules_and_tests_of_the_table_are_there(area: Area) -> None:
    for patterns in (area.modules[:1], *((each,) for each in area.tests)):
        assert matching(patterns), patterns


def test_every_equivalent_has_a_reason_and_is_one_mutant(found: list[Candidate]) -> None:
    known = equivalents()
    assert all(why.strip() for why in known.values())
    made = Counter(each.mutation.identity for each in found)
    assert {identity: made[identity] for identity in known} == dict.fromkeys(known, 1)
