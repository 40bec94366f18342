"""HTTP answers, as nsqd reads them from authorization servers and nsqlookupds."""

from __future__ import annotations

from contextlib import suppress
from random import Random

from nsqcommon.http_client import https_port_in
from nsqcommon.wire.http_exchange import BadResponse, ResponseReader
from nsqd.lookup.registration import RegistrationRefused, channels_in
from tests.fuzz.fuzzing import pieces


def run(data: bytes, random: Random) -> None:
    with suppress(BadResponse), ResponseReader(most=16 << 20) as reader:
        for piece in (*pieces(data, random), b""):
            if reader.is_complete:
                break
            reader.receive(piece)
        assert reader.is_reusable in (True, False)
        reader.answer()
    https_port_in(data)
    with suppress(RegistrationRefused):
        channels_in(data)
