"""Encoded headers, of one message and of several: they mean something, or are refused."""

from __future__ import annotations

from random import Random

from common.wire.headers import BadHeaders, decode_headers, encode_headers, end_of_headers, header_offsets


def run(data: bytes, random: Random) -> None:
    at = random.choice((0, 0, 0, len(data) // 2))
    try:
        headers = decode_headers(data, at)
        assert encode_headers(headers) == data[at : end_of_headers(data, at)]
    except BadHeaders:
        pass
    places = header_offsets(data, random.choice((1, 2, 1000)))
    assert places is None or places[-1] == len(data)
