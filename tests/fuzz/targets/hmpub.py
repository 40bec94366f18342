"""The body of an HMPUB over HTTP: it means the same however it is cut, and all headers in it can be decoded."""

from __future__ import annotations

from random import Random
from typing import Final

from nsqcommon.http_api import HttpError
from nsqcommon.wire.commands import HeadedPublications, Publications, SizeLimits
from nsqcommon.wire.headers import decode_headers, header_offsets
from nsqd.http.mpub_body import HeadedBody
from tests.fuzz.fuzzing import pieces

_LIMITS: Final = SizeLimits(max_message=1000, max_body=5000)
_MOST_HELD: Final = 100_000  # for such a body, whose offsets take most of it


def run(data: bytes, random: Random) -> None:
    body, whole = HeadedBody(_LIMITS), HeadedBody(_LIMITS)
    for piece in pieces(data, random):
        body.receive(piece)
        assert body.held < _MOST_HELD
    whole.receive(data)
    found = body.cut()
    assert _told(found) == _told(whole.cut())
    if isinstance(found, HeadedPublications):
        places = header_offsets(found.headers, len(found.offsets) - 1)
        assert places is not None
        for place in places[:-1]:
            decode_headers(found.headers, place)


def _told(found: Publications | HttpError) -> tuple[object, ...]:
    if isinstance(found, HttpError):
        return found.status, found.code, found.details
    headers = found.headers if isinstance(found, HeadedPublications) else b""
    return found.payload, list(found.offsets), headers
