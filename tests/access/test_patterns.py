"""Glob patterns: checked against a direct definition, and against the clock for patterns made to be slow."""

from __future__ import annotations

import time
from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st

from laneway.access.patterns import compile_pattern


def matches_by_definition(pattern: str, name: str) -> bool:
    """The definition, word for word; slow, and obviously right."""

    @cache
    def match(p: int, n: int) -> bool:
        if p == len(pattern):
            return n == len(name)
        if pattern[p] == "*":
            return match(p + 1, n) or (n < len(name) and match(p, n + 1))
        return n < len(name) and pattern[p] in ("?", name[n]) and match(p + 1, n + 1)

    return match(0, 0)


# Few letters, so that patterns and names often nearly match; brackets, dots and newlines, so that nothing is special.
names = st.text("aab.[]\n\\é", max_size=12)
patterns = st.text("aab.[]\n\\é**?", max_size=10)


@given(patterns, names)
def test_matching_follows_the_definition(pattern: str, name: str) -> None:
    assert compile_pattern(pattern)(name) is matches_by_definition(pattern, name)


@given(st.text(max_size=30))
def test_a_pattern_without_wildcards_matches_itself_alone(name: str) -> None:
    plain = name.replace("*", "x").replace("?", "x")
    assert compile_pattern(plain)(plain)
    assert not compile_pattern(plain)(plain + "x")


@given(names, names, names)
def test_a_star_stands_for_any_middle(head: str, middle: str, tail: str) -> None:
    assert compile_pattern(f"{head}*{tail}")(head + middle + tail)


@pytest.mark.parametrize(
    ("pattern", "name", "expected"),
    [
        ("*", "", True),
        ("*", "anything", True),
        ("", "", True),
        ("", "a", False),
        ("orders.*", "orders.eu", True),
        ("orders.*", "orders", False),
        ("orders?", "orders1", True),
        ("orders?", "orders", False),
        ("Orders", "orders", False),
        ("ab*b", "ab", False),
        ("a*a", "a", False),
        ("[ab]", "a", False),
        ("[ab]", "[ab]", True),
        ("a.c", "abc", False),
        ("*\n*", "two\nlines", True),
    ],
)
def test_examples(pattern: str, name: str, expected: bool) -> None:
    assert compile_pattern(pattern)(name) is expected


def test_a_pattern_of_many_stars_does_not_explode() -> None:
    matches = compile_pattern("a*" * 100 + "b")
    began_at = time.perf_counter()
    assert not matches("a" * 255)
    assert time.perf_counter() - began_at < 1.0  # backtracking would take longer than the universe
