"""Checksums of pieces give that of the whole."""

from __future__ import annotations

from google_crc32c import value as crc32c
from hypothesis import given
from hypothesis import strategies as st

from nsqcommon.remote.checksums import joined_crc


@given(st.binary(), st.binary())
def test_the_checksum_of_two_pieces_is_that_of_their_bytes(first: bytes, second: bytes) -> None:
    assert joined_crc(crc32c(first), crc32c(second), len(second)) == crc32c(first + second)


def test_lengths_may_be_those_of_whole_files() -> None:
    megabyte = bytes(range(256)) * 4096
    crc = crc32c(megabyte)
    for _ in range(3):
        crc = joined_crc(crc, crc, len(megabyte))
        megabyte += megabyte
        assert crc == crc32c(megabyte)
