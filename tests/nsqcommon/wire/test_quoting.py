from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqcommon.wire.quoting import quote


def test_observed_sample_is_quoted_as_the_original_does() -> None:
    assert quote(bytes.fromhex("61ff01c3a92209")) == '"a\\xff\\x01é\\"\\t"'.encode()


@pytest.mark.parametrize(
    ("data", "quoted"),
    [
        (b"", '""'),
        (b"topic", '"topic"'),
        (b"\a\b\f\n\r\t\v", '"\\a\\b\\f\\n\\r\\t\\v"'),
        (b'\\ "', '"\\\\ \\""'),
        (b"\x00\x1f\x7f", '"\\x00\\x1f\\x7f"'),
        (b"\x80\xfe", '"\\x80\\xfe"'),
        (b"\xe2\x82A", '"\\xe2\\x82A"'),  # a sequence cut short
        (b"\xed\xa0\x80", '"\\xed\\xa0\\x80"'),  # a surrogate has no place in UTF-8
        (b"\xc0\xaf", '"\\xc0\\xaf"'),  # overlong
        ("\u0085".encode(), '"\\u0085"'),
        ("\u00a0".encode(), '"\\u00a0"'),
        ("\u200b".encode(), '"\\u200b"'),
        ("\ufeff".encode(), '"\\ufeff"'),
        ("\ufffd".encode(), '"\ufffd"'),
        ("\ue000".encode(), '"\\ue000"'),
        ("\U000e0001".encode(), '"\\U000e0001"'),
        ("日本 😀".encode(), '"日本 😀"'),
    ],
)
def test_what_is_not_printable_is_escaped(data: bytes, quoted: str) -> None:
    assert quote(data) == quoted.encode()


@given(st.binary())
def test_quoted_is_printable_text_on_one_line(data: bytes) -> None:
    text = quote(data).decode()
    assert text.isprintable()
    assert text[0] == text[-1] == '"'


@given(st.binary(), st.binary())
def test_different_bytes_never_look_the_same(one: bytes, other: bytes) -> None:
    assert (quote(one) == quote(other)) == (one == other)
