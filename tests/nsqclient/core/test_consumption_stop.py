"""A consumer that stops while messages still arrive, or while it waits after failures."""

from __future__ import annotations

from random import Random
from struct import pack

from nsqclient import Config
from nsqclient.core.backoff import Signal
from nsqclient.core.connection import IdentifyDefaults
from nsqclient.core.consumption import Consumption
from nsqcommon.wire.frames import FrameType, response_frame


def message_frame(id: bytes) -> bytes:
    data = pack(">qH16s", 1, 1, id) + b"body"
    return pack(">ii", 4 + len(data), FrameType.MESSAGE) + data


def consumption_of(config: Config) -> Consumption:
    return Consumption(
        "t",
        "c",
        config,
        IdentifyDefaults("host", "agent"),
        clock=lambda: 0.0,
        notify=lambda: None,
        emit=lambda event: None,
        random=Random(1),
    )


def test_message_that_was_delivered_twice_is_requeued_once() -> None:
    """As after a suspension: the first delivery has timed out, and both are read together."""
    consumption = consumption_of(Config())
    connection = consumption.connect("nsqd:4150", make_tls=None, wake=lambda: None)
    connection.receive(response_frame(b"OK") * 2, 0.0)
    connection.bytes_to_send()
    consumption.stop()
    id = b"0" * 16
    connection.receive(message_frame(id) * 2, 1.0)
    assert connection.bytes_to_send().count(b"REQ %b 0\n" % id) == 1
    assert not connection.in_flight


def test_a_pause_after_failures_ends_with_a_stop() -> None:
    consumption = consumption_of(Config())
    consumption.signal(Signal.FAILED)
    assert consumption.stats().backing_off_for > 0
    consumption.stop()
    assert consumption.stats().backing_off_for == 0
    assert not consumption.needs_tick
