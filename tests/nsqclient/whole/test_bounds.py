"""What a hostile nsqd cannot do to its clients. The core is the same for trio, asyncio and threads."""

from __future__ import annotations

import logging
import ssl
import struct
from functools import partial
from pathlib import Path

import pytest

from nsqclient import Config, Disconnected, events
from nsqclient.core.connection import IdentifyDefaults, NsqdConnection
from nsqclient.shell.log import logging_events
from nsqcommon.streams.tls import TlsLayer
from nsqcommon.wire.frames import response_frame
from tests.support.certificates import make_certificates
from tests.support.upgraded import trusting


class Opened(NsqdConnection):
    def _opened(self, now: float) -> None: ...

    def _response(self, content: bytes, now: float) -> None: ...

    def _error(self, error: object, now: float) -> None: ...


def opened(config: Config) -> Opened:
    connection = Opened(
        "nsqd:4150",
        config,
        IdentifyDefaults("host", "agent"),
        make_tls=None,
        wake=lambda: None,
        emit=lambda event: None,
    )
    connection.receive(response_frame(b"OK"), 0.0)
    assert connection.is_open
    return connection


@pytest.mark.parametrize(
    ("config", "largest"),
    [(Config(), 17 << 20), (Config(max_msg_size=1000), 1000), (Config(max_msg_size=0), 2**31 - 1)],
)
def test_a_frame_that_is_too_large_ends_the_connection_before_it_comes(config: Config, largest: int) -> None:
    opened(config).receive(struct.pack(">ii", largest, 2), 0.0)
    if largest < 2**31 - 1:
        with pytest.raises(Disconnected, match=f"size {largest + 1} exceeds configured maximum"):
            opened(config).receive(struct.pack(">ii", largest + 1, 2), 0.0)


def test_an_nsqd_that_ends_tls_and_leaves_the_socket_open_is_gone(tmp_path: Path) -> None:
    certificates = make_certificates(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates.certificate, certificates.key)
    nsqd = TlsLayer(context, server_side=True)
    connection = Opened(
        "nsqd:4150",
        Config(tls="require"),
        IdentifyDefaults("host", "agent"),
        make_tls=partial(TlsLayer, trusting(certificates), server_side=False, server_hostname="localhost"),
        wake=lambda: None,
        emit=lambda event: None,
    )
    connection.bytes_to_send()
    connection.receive(response_frame(b'{"tls_v1": true}'), 0.0)
    while not nsqd.handshake(connection.bytes_to_send()):
        connection.receive(nsqd.pending(), 0.0)
    connection.receive(nsqd.pending() + nsqd.encode(response_frame(b"OK")), 0.0)
    assert connection.is_open
    with pytest.raises(Disconnected, match="closed by nsqd"):
        connection.receive(nsqd.encode(response_frame(b"_heartbeat_")) + nsqd.goodbye(), 0.0)
    assert b"NOP\n" in nsqd.decode(connection.bytes_to_send())  # what came before the end was handled
    connection.is_closed = True
    connection.receive(b"", 0.0)  # we have ended it ourselves, so there is nothing to say


def test_a_storm_of_errors_is_a_few_lines_and_a_count(caplog: pytest.LogCaptureFixture) -> None:
    log = logging_events(logging.getLogger("storm"), "")
    with caplog.at_level(logging.INFO, "storm"):
        for number in range(1000):
            log(events.LateResponse(f"{number:016x}", "a:1", "E_FIN_FAILED FIN ..."))
        log(events.LateResponse("0" * 16, "b:1", "E_FIN_FAILED FIN ..."))
        log(events.Disconnected("a:1", "EOF", 1))
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 10 + 1 + 2
    assert lines[-2] == "(a:1) 990 more lines about messages suppressed"


def test_an_nsqlookupd_that_fails_for_the_same_reason_is_one_line_a_minute(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    monkeypatch.setattr("nsqclient.shell.log.monotonic", lambda: now[0])
    log = logging_events(logging.getLogger("wrong"), "")
    refused, timed_out = events.LookupFailed("l:4160", "refused"), events.LookupFailed("l:4160", "timed out")

    def lines_of(*happened: events.Event) -> int:
        caplog.clear()
        with caplog.at_level(logging.INFO, "wrong"):
            for event in happened:
                log(event)
        return len(caplog.records)

    assert lines_of(refused, refused, events.DiscoveryRound(0, 1), refused) == 1
    assert lines_of(timed_out) == 1
    now[0] = 61.0
    assert lines_of(refused, refused) == 1
    assert lines_of(events.DiscoveryRound(1, 0), refused) == 1
