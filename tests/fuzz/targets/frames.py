"""Frames, as a client reads what an nsqd sends."""

from __future__ import annotations

from contextlib import suppress
from random import Random

from nsqclient import Config, NSQError
from nsqclient.core.connection import IdentifyDefaults, NsqdConnection
from tests.fuzz.fuzzing import pieces


class Opened(NsqdConnection):
    def _opened(self, now: float) -> None: ...

    def _response(self, content: bytes, now: float) -> None: ...

    def _error(self, error: object, now: float) -> None: ...


def run(data: bytes, random: Random) -> None:
    config = Config(compression=random.choice(("none", "snappy", "deflate")), auth_secret="secret")
    connection = Opened(
        "nsqd:4150",
        config,
        IdentifyDefaults("host", "agent"),
        make_tls=None,
        wake=lambda: None,
        emit=lambda event: None,
    )
    with suppress(NSQError):
        for piece in pieces(data, random):
            connection.receive(piece, 0.0)
            connection.bytes_to_send()
