"""Expressions that are names, or begin or end as names do, cost no steps."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqd.auth.expressions import Expression
from nsqd.auth.expressions.expression import literal_of
from nsqd.auth.expressions.parser import ExpressionParser
from nsqd.auth.expressions.program import Program


@pytest.mark.parametrize(
    "text", ["", "orders", "^orders$", "^orders.*", ".*_v2$", ".*", r"^a\.b$", "^.*a$", "t#ephemeral"]
)
def test_a_name_needs_no_program(text: str) -> None:
    assert Expression(text).steps == 0


@pytest.mark.parametrize("text", ["a|b", "a.b", "[a]", "(a)", "a.*b", "a*", "^^a", "a$b", r"\d"])
def test_anything_else_does(text: str) -> None:
    assert literal_of(text) is None
    assert Expression(text).steps > 0


@given(
    st.sampled_from(["", "^"]),
    st.sampled_from(["", ".*"]),
    st.sampled_from(["", "a", "ab", r"a\.b"]),
    st.sampled_from(["", ".*"]),
    st.sampled_from(["", "$"]),
    st.text("ab.", max_size=5),
)
def test_a_literal_finds_what_a_program_finds(
    starts: str, before: str, name: str, after: str, ends: str, searched: str
) -> None:
    text = starts + before + name + after + ends
    literal = literal_of(text)
    assert literal is not None
    assert literal.found_in(searched) == Program(ExpressionParser(text).parse()).found_in(searched)
