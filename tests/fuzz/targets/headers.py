"""Encoded headers, of one message and of several: they mean something, or are refused, and the quick look agrees."""

from __future__ import annotations

from random import Random

from nsqcommon.wire.headers import (
    BadHeaders,
    check_headers,
    decode_headers,
    encode_headers,
    end_of_headers,
    header_offsets,
)


def run(data: bytes, random: Random) -> None:
    at = random.choice((0, 0, 0, len(data) // 2))
    try:
        headers = decode_headers(data, at)
        expected = end_of_headers(data, at)
        assert encode_headers(headers) == data[at:expected]
    except BadHeaders:
        expected = -1
    assert _checked(data, at) == expected
    places = header_offsets(data, random.choice((1, 2, 1000)))
    assert places is None or places[-1] == len(data)


def _checked(data: bytes, at: int) -> int:
    """Return where the headers end; -1: they are refused. What was looked through before may make it quicker."""
    try:
        return check_headers(data, at, len(data))
    except BadHeaders:
        return -1
