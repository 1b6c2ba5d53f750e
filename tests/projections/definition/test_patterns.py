"""A regular expression of Postgres becomes Java's of the same meaning, or is refused. What they match is compared in
``meaning``."""

from __future__ import annotations

import pytest

from tailrace.projections.definition.sql.postgres.functions.patterns import read_pattern, read_replacement
from tailrace.projections.definition.sql.postgres.refusal import NotInTable

READ = {
    "a dot is any character": ("a.c", "(?s)a.c"),
    "the end is the end": ("x$", r"(?s)x\z"),
    "a class": (r"\d+[^\s-]", r"(?s)[0-9]+[^ \t\n\x0B\f\r\-]"),
    "letters are Unicode's": ("[[:alpha:]_]", r"(?s)[\p{L}\p{M}_]"),
    "the first bracket is a character": ("[]x]", r"(?s)[\]x]"),
    "what means something to Java alone": ("a&&b#", r"(?s)a\&\&b#"),
    "a set with what means something to Java alone": ("[a&&b]", r"(?s)[a\&\&b]"),
    "the start of a word": (r"\mx", r"(?s)(?<![\p{L}\p{M}\p{Nd}_])(?=[\p{L}\p{M}\p{Nd}_])x"),
    "a repeated part": ("(?:ab){2,3}", "(?s)(?:ab){2,3}"),
}


@pytest.mark.parametrize("case", READ)
def test_a_pattern_is_read(case: str) -> None:
    pattern, java = READ[case]
    assert read_pattern(pattern).java == java


REFUSED = [
    r"(a)\1", "a**", "a*+", "*a", "{", "(?i)a", "(?<!a)b", "[[=a=]]", "[[.-.]]", "[[:foo:]]", "(a", "a)", "[a",
    r"\Q", "***=a", "(?:^.?){2}a", "((?=a)b?)*c",
]  # fmt: skip


@pytest.mark.parametrize("pattern", REFUSED)
def test_what_java_reads_otherwise_is_refused(pattern: str) -> None:
    with pytest.raises(NotInTable, match="the regular expression"):
        read_pattern(pattern)


@pytest.mark.parametrize(
    ("pattern", "exact"),
    [
        ("a|bc", True), ("a|ab", False), ("(a|b)c", True), ("[a-z]+|x", False), ("(ab)+", False), ("a+?", False),
        ("^(.*)-(.*)$", True), ("a{2,}", True), ("(?=a)b*", True),
    ],
)  # fmt: skip
def test_the_longest_match_and_the_first_are_one_or_are_said_not_to_be(pattern: str, exact: bool) -> None:
    assert read_pattern(pattern).exact is exact


@pytest.mark.parametrize(
    ("pattern", "empty"),
    [("a*", True), ("a*b", False), ("", True), ("a|b?", True), ("^", True), ("a{0,3}", True)],
)
def test_a_match_of_no_character_is_known(pattern: str, empty: bool) -> None:
    assert read_pattern(pattern).may_be_empty is empty


@pytest.mark.parametrize(
    ("text", "java"),
    [
        (r"<\1\&>", r"\<$1$0\>"), (r"\10", r"$1\0"), ("$1", r"\$1"), (r"\\", r"\\"), (r"\7x", "x"), (r"\q", r"\\q"),
    ],
)  # fmt: skip
def test_a_replacement_is_read(text: str, java: str) -> None:
    assert read_replacement(text, 2, shifted=0) == java


def test_upper_and_lower_in_a_set_are_refused_where_case_is_ignored() -> None:
    assert read_pattern("[[:upper:]]").java == r"(?s)[\p{Lu}]"
    with pytest.raises(NotInTable):
        read_pattern("[[:upper:]]", ignores_case=True)
