"""HTTP answers, as nsqd reads them from authorization servers and nsqlookupds."""

from __future__ import annotations

from contextlib import suppress
from random import Random

import httptools

from common.http_client import _ResponseParser, https_port_in
from nsqd.lookup.registration import Refused, channels_in
from tests.fuzz.fuzzing import pieces


def run(data: bytes, random: Random) -> None:
    answer = _ResponseParser()
    try:
        with suppress(httptools.HttpParserError):
            for piece in pieces(data, random):
                if answer.complete:
                    break
                answer.feed(piece)
            assert answer.ends_with_the_connection in (True, False)
            assert answer.may_be_followed in (True, False)
            answer.whole()
    finally:
        answer.close()
    https_port_in(data)
    with suppress(Refused):
        channels_in(data)
