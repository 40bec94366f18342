from __future__ import annotations

import time
from collections.abc import Callable
from threading import Thread
from typing import Any, cast

from nsqjobs.django.queue import Queue
from nsqjobs.link import Link
from tests.support.quick import unless_quick

SECONDS = unless_quick(1.5, quick=0.3)  # of waits
LIMIT = 100.0  # seconds until they count as one that never ends


class NothingArrives:
    """Stands for a link and its subscription."""

    has_arrived = False
    wake: Callable[[], object]

    def subscribe(self, topic: str, *, prefetch: int, wake: Callable[[], object]) -> Any:
        self.wake = wake
        return self


def test_a_wait_of_less_than_a_microsecond_ends() -> None:
    """A `SimpleQueue` would wait for ever in one of some ten thousand tries, each after it has had something."""
    link = NothingArrives()
    queue = Queue(cast(Link, link), "mails", concurrency=1, has_priorities=False)

    def take() -> None:
        until = time.monotonic() + SECONDS
        while time.monotonic() < until:
            link.wake()
            assert queue.take(1.0) is None
            assert queue.take(2e-7) is None

    thread = Thread(target=take, daemon=True)
    thread.start()
    thread.join(LIMIT)
    assert not thread.is_alive()
