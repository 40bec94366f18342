"""The part of the load (`traffic.py`) that consumes over HTTP."""

from __future__ import annotations

import random
import time

from nsqcommon.wire.message import Message
from tests.support.http_consumer import HttpConsumer
from tests.support.promises import Channel, Ledger


def answer_over_http(
    consumer: HttpConsumer,
    channel: Channel,
    ledger: Ledger,
    chance: random.Random,
    messages: list[Message],
    longest_delay: int,
) -> None:
    """Finish most messages in one request, requeue some, and leave a few leased. What is answered holds."""
    numbers = {message.id: ledger.arrived(channel, message) for message in messages}
    finished = [it for it in numbers if chance.random() < 0.9]
    if finished:
        for it in finished:
            ledger.finishing(channel, numbers[it])
        refused = consumer.refused("fin", finished)
        for it in set(finished) - refused.keys():
            ledger.finish_answered(channel, numbers[it])
    for it in numbers.keys() - {*finished}:
        if chance.random() < 0.8:
            delay = chance.choice((0, chance.randrange(longest_delay)))
            requeue = ledger.requeueing(channel, numbers[it], delay / 1000)
            if not consumer.refused("req", [it], f"defer={delay}"):
                requeue.heeded_at = time.monotonic()
