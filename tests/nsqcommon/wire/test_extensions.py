from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqcommon.wire.commands import CommandReader, LineCommand, SizeLimits
from nsqcommon.wire.extensions import (
    MOST_OF_KEY,
    MOST_OF_REASON,
    bury,
    clean_reason,
    decode_reason,
    granted,
    is_valid_key,
    req_free,
)

ID = b"0123456789abcdef"


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        (None, ()),
        ((), ()),
        (("bury",), ("bury",)),
        (("nonsense", "bury", "bury", ""), ("bury",)),
        (("bury", "keys"), ("keys", "bury")),
        (("BURY",), ()),
    ],
)
def test_what_is_offered_and_asked_for_is_granted(asked: tuple[str, ...] | None, expected: tuple[str, ...]) -> None:
    assert granted(asked, ("keys", "bury")) == expected


@pytest.mark.parametrize("byte", range(256))
def test_a_key_may_have_printable_ascii_without_spaces(byte: int) -> None:
    is_right = re.fullmatch(rb"[!-~]", bytes([byte])) is not None
    assert is_valid_key(bytes([byte])) == is_valid_key(b"ab%bc" % bytes([byte])) == is_right


@pytest.mark.parametrize("length", [0, 1, MOST_OF_KEY, MOST_OF_KEY + 1])
def test_a_key_has_1_to_64_bytes(length: int) -> None:
    assert is_valid_key(b"k" * length) == (1 <= length <= 64)


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ([], ""),
        ([b""], ""),
        ([b"no", b"such", b"", b"order"], "no such  order"),
        ([b"\xff\xfe", b"x"], "\ufffd\ufffd x"),
        ([b"a\tb\rc\x00d\x1b[31m\x7f"], "a b c d [31m "),
        ("a\u0085b\u2028c\u2029d".encode().split(b" "), "a b c d"),
        ([b"x" * 300], "x" * MOST_OF_REASON),
        (["é".encode() * 200], "é" * 128),
        ([b"x" + "é".encode() * 200], "x" + "é" * 127),
    ],
)
def test_reason_is_one_short_line_of_text(words: list[bytes], reason: str) -> None:
    assert decode_reason(words) == reason


@given(st.lists(st.binary(max_size=400).filter(lambda word: b" " not in word), max_size=4))
def test_any_bytes_become_a_reason_that_stays_as_it_is(words: list[bytes]) -> None:
    reason = decode_reason(words)
    assert len(reason.encode()) <= MOST_OF_REASON
    assert clean_reason(reason) == reason
    assert reason.splitlines() in ([], [reason])


@given(st.text(st.characters(exclude_categories=()), max_size=400))
def test_what_a_client_sends_is_one_command_with_the_same_reason(text: str) -> None:
    reader = CommandReader(SizeLimits(), lambda params: None)
    reader.receive(bury(ID, text) + req_free(ID, 5))
    command = reader.next_command()
    assert isinstance(command, LineCommand)
    assert command.params[:2] == [b"BURY", ID]
    assert decode_reason(command.params[2:]) == clean_reason(text)
    assert reader.next_command() == LineCommand([b"REQ", ID, b"5", b"free"])
    assert reader.idle
