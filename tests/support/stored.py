"""What a topic has stored, read from its log."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Final

from tests.support.process import Nsqd

_AT_ONCE: Final = 50_000  # messages
_END: Final = b"the end of what is read"
_PATIENCE: Final = 120.0  # seconds


def stored_bodies(nsqd: Nsqd, topic: str) -> Iterator[bytes]:
    """Yield all bodies in the topic's log.

    You can only read synced messages, and nsqd syncs up to two seconds after an OK. So this publishes a last message, and
    reads until it finds that one.
    """
    nsqd.post(f"/pub?topic={topic}", _END)
    place, deadline = 0, time.monotonic() + _PATIENCE
    while True:
        answer = nsqd.http("GET", f"/topic/read?topic={topic}&from={place}&to={place + _AT_ONCE}", timeout=60)
        *messages, end = map(json.loads, answer.body.splitlines())
        for message in messages:
            assert "gap" not in message, message
            if message["body"] == _END.decode():
                return
            yield message["body"].encode()
        if end["next"] == place:
            assert time.monotonic() < deadline, "messages are not synced"
            time.sleep(0.05)  # another process gives no event to wait for
        place = end["next"]
