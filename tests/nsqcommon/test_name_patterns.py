"""Patterns of names: `*` is any text, and no pattern takes long."""

from __future__ import annotations

import time

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from nsqcommon.name_patterns import is_pattern, matcher
from tests.support.globs import matches

FEW_LETTERS = st.text("ab.*", max_size=12)
SIGNS = st.text("ab.*+?()[]{}|^$-#\\\n\u00e9", max_size=12)


@pytest.mark.parametrize(
    ("pattern", "name", "expected"),
    [
        ("orders", "orders", True),
        ("orders", "orders.eu", False),
        ("*", "", True),
        ("orders*", "orders", True),
        ("orders.*", "orders", False),
        ("*.prod", "eu.prod", True),
        ("*.prod", "eu.prod.old", False),
        ("ab*ba", "aba", False),  # the pieces may not overlap
        ("ab*ba", "abba", True),
        ("*ab*ab*", "ab", False),
        ("eu.*.*.prod", "eu.shop.orders.prod", True),
        ("eu.*.*.prod", "eu.orders.prod", False),
        ("a.c", "abc", False),
        ("*#ephemeral", "x#ephemeral", True),
    ],
)
def test_a_star_is_any_text(pattern: str, name: str, expected: bool) -> None:
    assert bool(matcher(pattern)(name)) is expected


@given(FEW_LETTERS, st.text("ab.", max_size=16))
@example("*a*ab*b", "aab")
@example("**a**", "a")
def test_a_name_matches_if_there_is_a_text_for_each_star(pattern: str, name: str) -> None:
    assert bool(matcher(pattern)(name)) == matches(pattern, name)


@given(SIGNS, SIGNS)
def test_nothing_but_the_star_has_a_meaning(pattern: str, name: str) -> None:
    assert bool(matcher(pattern)(name)) == matches(pattern, name)
    assert matcher(pattern)(pattern.replace("*", name))


@pytest.mark.parametrize(
    ("pattern", "name"),
    [
        ("*a*a*a*a*a*a*b", "a" * 64),
        ("*a" * 25 + "*b", "a" * 64),
        ("*a" * 1000, "a" * 64),
        ("*ab" * 20 + "*c", "ab" * 32),
        ("eu.*.*.*.*.*.*.prod", "eu" + "." * 62),
        ("*" * 5000 + "b", "a" * 64),
    ],
)
def test_no_pattern_takes_long(pattern: str, name: str) -> None:
    assert is_pattern(pattern)
    began = time.process_time()
    found = matcher(pattern)
    for _ in range(20):
        found(name)
    assert time.process_time() - began < 2  # it takes a few milliseconds, and 30 s with a plain `.*` for each star
