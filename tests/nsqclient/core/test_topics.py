"""The decisions of a consumer over all of its topics."""

from __future__ import annotations

from random import Random

from nsqclient.core.config import Config
from nsqclient.core.connection import IdentifyDefaults
from nsqclient.core.consumption import Consumption, Together
from nsqclient.core.topics import SeveralTopics
from nsqcommon.wire.frames import response_frame


def two_topics(config: Config) -> SeveralTopics:
    """Return a consumer of two topics, each of them with a connection to an nsqd."""

    def make(number: int, *, together: Together) -> Consumption:
        return Consumption(
            f"t{number}",
            "c",
            Config(max_in_flight=0),
            IdentifyDefaults("host", "agent"),
            clock=lambda: 0.0,
            notify=lambda: None,
            emit=lambda event: None,
            random=Random(1),
            together=together,
        )

    topics = SeveralTopics([1, 1], config, make, clock=lambda: 0.0, random=Random(1))
    for part in topics.parts:
        connection = part.connect("nsqd:4150", make_tls=None, wake=lambda: None)
        connection.receive(response_frame(b"OK") * 2, 0.0)
    return topics


def test_a_consumer_that_drains_does_not_ask_for_ticks_that_change_nothing() -> None:
    topics = two_topics(Config(max_in_flight=2))
    topics.stop()
    ticks, now = 0, topics.next_tick()
    while now < 30 and ticks < 100:
        topics.tick(now)
        ticks, now = ticks + 1, topics.next_tick()
    assert ticks < 100
