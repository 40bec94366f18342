"""TLS of a connection: what it has to say by itself is sent at once."""

from __future__ import annotations

from random import Random

from nsqclient import Config
from nsqclient.core.connection import IdentifyDefaults
from nsqclient.core.consumption import Consumption
from nsqcommon.wire.frames import response_frame


class FakeTLS:
    """Encrypts nothing. The test says what TLS itself has to send."""

    has_more = ended = False
    version = cipher_suite = peer_common_name = ""

    def __init__(self) -> None:
        self.own = b"<client hello>"

    def handshake(self, data: bytes) -> bool:
        if data:
            self.own = b"<finished>"
        return bool(data)

    def pending(self) -> bytes:
        own, self.own = self.own, b""
        return own

    def goodbye(self) -> bytes:
        return b""

    def encode(self, data: bytes) -> bytes:
        return data

    def decode(self, data: bytes) -> bytes:
        return data


def test_what_tls_itself_sends_wakes_the_writer() -> None:
    wakes: list[None] = []
    consumption = Consumption(
        "t",
        "c",
        Config(tls="require"),
        IdentifyDefaults("host", "agent"),
        clock=lambda: 0.0,
        notify=lambda: None,
        emit=lambda event: None,
        random=Random(1),
    )
    tls = FakeTLS()
    connection = consumption.connect("nsqd:4150", make_tls=lambda: tls, wake=lambda: wakes.append(None))
    connection.bytes_to_send()
    connection.receive(response_frame(b'{"tls_v1": true}'), 0.0)
    assert connection.bytes_to_send() == b"<client hello>"
    wakes.clear()
    connection.receive(b"<server hello>", 0.0)
    assert len(wakes) == 1
    assert connection.bytes_to_send() == b"<finished>"
    connection.receive(response_frame(b"OK"), 0.0)
    connection.bytes_to_send()
    wakes.clear()
    tls.own = b"<new key>"
    connection.receive(b"", 0.0)
    assert len(wakes) == 1
    assert connection.bytes_to_send() == b"<new key>"
