"""Expressions mean what they mean to RE2, and take time proportional to the length of the name."""

from __future__ import annotations

import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqd.auth.expressions import Expression, ExpressionError


@pytest.mark.parametrize(
    ("text", "found", "not_found"),
    [
        ("", ["", "a"], []),
        ("^$", [""], ["a"]),
        ("^t$", ["t"], ["", "tt", "t\n"]),
        ("b", ["abc"], ["ac"]),
        (".*", ["", "x"], []),
        ("^a.c$", ["abc", "a.c"], ["ac", "abbc"]),
        (r"^a\.c$", ["a.c"], ["abc"]),
        ("^(orders|invoices)$", ["orders", "invoices"], ["order", "ordersinvoices"]),
        ("^orders(_v[0-9]+)?$", ["orders", "orders_v12"], ["orders_v"]),
        ("^[^a-c]+$", ["xyz", "-"], ["xaz", ""]),
        ("^[]a]$", ["]", "a"], ["b"]),
        ("^[a-]$", ["-", "a"], ["b"]),
        (r"^[\d_.-]+$", ["1_2.3-4"], ["a"]),
        ("^[[:alpha:]][[:^digit:]]$", ["ab", "a-"], ["a1", "1a"]),
        (r"^\w\W\d\D\s\S$", ["a-1b b"], ["a-1bbb"]),
        (r"^\pL\p{N}\P{L}\p{^L}\p{Lu}\p{Latin}$", ["a1--Zz"], ["a1--zz"]),
        ("^a{2,3}$", ["aa", "aaa"], ["a", "aaaa"]),
        ("^a{2}$", ["aa"], ["a", "aaa"]),
        ("^a{2,}$", ["aa", "a" * 40], ["a"]),
        ("^a{0}b$", ["b"], ["ab"]),
        ("^a{,2}$", ["a{,2}"], ["aa"]),
        ("^{a}$", ["{a}"], ["a"]),
        ("^a+?b*?c??$", ["aab", "ac", "a"], ["b"]),
        ("(?i)^ABC$", ["abc", "aBc"], ["abd"]),
        ("(?i)^[a-c]+$", ["AbC"], ["d"]),
        ("(?i)^[[:^upper:]]+$", ["1_"], ["a", "A"]),  # as in Go: both cases are upper, so neither is not upper
        ("(?i)^[^[:^upper:]]+$", ["aA"], ["1", "_"]),
        ("^(?i:a)b$", ["ab", "Ab"], ["AB"]),
        ("^(?i)a(?-i)b$", ["Ab"], ["AB"]),
        ("^(?P<name>a)(?<other>b)(?:c)$", ["abc"], ["ab"]),
        ("(?s)^.$", ["\n", "a"], [""]),
        ("^.$", ["a"], ["\n"]),
        ("(?m)^b$", ["a\nb\nc"], ["abc"]),
        (r"\Aa\z", ["a"], ["a\n", "ba"]),
        (r"\bcat\b", ["cat", "a-cat."], ["cats", "_cat"]),
        (r"\Bcat\B", ["scats"], ["cat", "cats"]),
        (r"^\Qa.b*\E+$", ["a.b*", "a.b**"], ["aab"]),
        (r"^\Q[(", ["[("], ["("]),
        (r"^a\_b$", ["a_b"], ["ab", "a-b"]),
        (r"^\x41\x{42}\103\n\.\-$", ["ABC\n.-"], []),
        ("^é?a$", ["a"], ["é"[:0] + "b"]),
        ("^(|a)+$", ["", "aa"], ["b"]),
        ("^(a*)*$", ["", "aaa"], ["ab"]),
        ("(?U)a+", ["a"], ["b"]),
        ("a||b", ["", "x"], []),
    ],
)
def test_what_is_found(text: str, found: list[str], not_found: list[str]) -> None:
    expression = Expression(text)
    assert [name for name in found if not expression.found_in(name)] == []
    assert [name for name in not_found if expression.found_in(name)] == []


@pytest.mark.parametrize(
    "text",
    [
        "(", ")", "(a", "a)", "[", "[a", "[]", "[^", "*", "+a", "?", "a**", "a+*", "a{2}{3}", "|*", "^(*)", "\\", "a\\",
        r"\1", r"\8", r"\Z", r"\h", r"\x", r"\xg0", r"\x{}", r"\x{110000}", r"\p", r"\p{", r"\p{l}", "[z-a]", "[[:what:]]",
        r"[\Z]", "(?", "(?a)", "(?=a)", "(?!a)", "(?<=a)", "(?<!a)", "(?>a)", "(?P=name)", "(?P<>a)", "(?P<a b>c)", "(?#a)",
        "(?i", "(?-)", "(?i-)a", "a{1001}", "a{3,2}", "(a{1000}){1000}", "((a{100}){100}){100}", "(" * 5000 + ")" * 5000,
    ],
)  # fmt: skip
def test_what_is_none(text: str) -> None:
    with pytest.raises(ExpressionError):
        Expression(text)


@pytest.mark.parametrize(
    "text", ["(a+)+$", "(a|a)*$", "(a*)*b", "(.*a){20}", ".*.*.*.*.*.*x", "(a?){60}a{60}$", "(x+x+)+y"]
)
def test_what_would_take_re_for_ever_takes_no_time(text: str) -> None:
    expression = Expression(text)
    began = time.process_time()
    for name in ("a" * 64 + "!", "x" * 64):
        expression.found_in(name)
    assert time.process_time() - began < 1.0


def patterns() -> st.SearchStrategy[str]:
    """Generate expressions that RE2 and Python read alike."""
    atoms = st.sampled_from(["a", "b", "-", ".", "[ab]", "[^a]", r"\w", r"\d", r"\.", "1", "(?:)"])
    places = st.sampled_from([r"\b", "^"])  # Python does not allow repeating them
    times = st.sampled_from(["", "", "", "*", "+", "?", "{2}", "{1,2}", "{0}", "*?"])

    def combined(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
        group = inner.map(lambda it: f"(?:{it})")
        several = st.lists(st.builds(str.__add__, atoms | group, times) | places, max_size=4).map("".join)
        return several | st.lists(several, min_size=1, max_size=3).map("|".join)

    return st.recursive(atoms, combined, max_leaves=8)


@given(patterns(), st.text("ab-.1_", max_size=8))
def test_it_finds_what_re_finds(text: str, name: str) -> None:
    assert Expression(text).found_in(name) == (re.search(text, name, re.ASCII) is not None)


@given(st.text("ab()[]{}|*+?\\^$.-:=<>!pPdQEx01,i", max_size=12))
def test_any_text_is_an_expression_or_is_refused(text: str) -> None:
    try:
        Expression(text).found_in("ab1-")
    except ExpressionError:
        pass
