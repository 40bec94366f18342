from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqcommon.wire import names
from nsqcommon.wire.names import decode_name, is_ephemeral, is_valid_name

VALID = ["t", "a.b-c_D9", "." * 64, "t#ephemeral", "a" * 54 + "#ephemeral"]
INVALID = [
    "",
    "a" * 65,
    "a" * 55 + "#ephemeral",
    "#ephemeral",
    "t#ephemeral#ephemeral",
    "t#other",
    "t#",
    "a b",
    "t\n",
    "t#ephemeral\n",
    "\nt",
    "t\x00",
    "é",
    "٣",  # a digit outside ASCII
    "\u212a",  # the Kelvin sign, which becomes a k in lower case
]


@pytest.mark.parametrize("name", VALID)
def test_name_of_allowed_characters_is_valid(name: str) -> None:
    assert is_valid_name(name)
    assert decode_name(name.encode()) == name


@pytest.mark.parametrize("name", INVALID)
def test_anything_else_is_no_name(name: str) -> None:
    assert not is_valid_name(name)
    assert decode_name(name.encode()) is None


@pytest.mark.parametrize("raw", [b"\xff", b"t\xff", b"\xc3", b"t\x80"])
def test_bytes_that_are_no_text_are_no_name(raw: bytes) -> None:
    assert decode_name(raw) is None


def test_only_the_whole_suffix_makes_a_name_ephemeral() -> None:
    assert is_ephemeral("t#ephemeral")
    assert not is_ephemeral("ephemeral")
    assert not is_ephemeral("t#ephemeralx")


@given(st.binary(max_size=70))
def test_decoding_agrees_with_the_rule(raw: bytes) -> None:
    valid = 1 <= len(raw) <= 64 and re.fullmatch(rb"[.a-zA-Z0-9_-]+(#ephemeral)?", raw)
    assert decode_name(raw) == (raw.decode() if valid else None)


def test_decoding_twice_gives_the_same_text() -> None:
    assert decode_name(b"orders") is decode_name(bytes(bytearray(b"orders")))


def test_cache_is_bounded_and_keeps_no_invalid_names() -> None:
    cache = names._NameCache()
    for number in range(3 * names._CACHE_SIZE):
        assert cache[b"topic%d" % number] == f"topic{number}"
        assert cache[b"no topic%d" % number] is None
        assert len(cache) <= names._CACHE_SIZE
