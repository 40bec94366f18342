from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqcommon.wire.message import Message, decode_message, encode_message

SAMPLE = bytes.fromhex("18e9e33bdd808c850002") + b"18a269aee2269000hello"


def test_sample_of_the_layout_decodes() -> None:
    message = decode_message(SAMPLE)
    assert message == Message(0x18E9E33BDD808C85, 2, b"18a269aee2269000", b"hello")


def test_sample_of_the_layout_encodes() -> None:
    assert encode_message(Message(0x18E9E33BDD808C85, 2, b"18a269aee2269000", b"hello")) == SAMPLE


def test_attempts_wrap_as_sixteen_bits() -> None:
    assert decode_message(encode_message(Message(0, 65536, b"0" * 16, b"x"))).attempts == 0


@pytest.mark.parametrize("length", range(26))
def test_data_shorter_than_a_header_are_refused(length: int) -> None:
    with pytest.raises(ValueError, match=f"message too short {length} < 26"):
        decode_message(SAMPLE[:length])


@given(
    st.integers(-(2**63), 2**63 - 1), st.integers(0, 65535), st.binary(min_size=16, max_size=16), st.binary(max_size=50)
)
def test_what_was_encoded_decodes_to_the_same(timestamp: int, attempts: int, message_id: bytes, body: bytes) -> None:
    message = Message(timestamp, attempts, message_id, body)
    assert decode_message(encode_message(message)) == message


def test_records_of_different_kinds_are_not_equal() -> None:
    assert Message(1, 1, b"0" * 16, b"") != "a message"
    assert "attempts=1" in repr(Message(1, 1, b"0" * 16, b""))
