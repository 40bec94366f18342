from __future__ import annotations

import time
from threading import Thread
from types import SimpleNamespace
from typing import Any

import pytest

from nsqjobs.addresses import parse_url
from nsqjobs.link import Subscription
from tests.support.quick import unless_quick

SECONDS = unless_quick(1.5, quick=0.3)  # of waits
LIMIT = 100.0  # seconds until they count as one that never ends


def test_a_wait_of_less_than_a_microsecond_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """A `SimpleQueue` would wait for ever in one of some ten thousand tries, each after it has had something."""
    monkeypatch.setattr("nsqjobs.link.time", SimpleNamespace(monotonic=lambda: 0.0))
    inside: Any = SimpleNamespace(endpoint=parse_url("nsq://127.0.0.1:1"), holding=SimpleNamespace(settle=lambda: None))
    token: Any = None
    subscription = Subscription("mails", 1, inside, token, lambda: None)

    def take() -> None:
        until = time.monotonic() + SECONDS
        while time.monotonic() < until:
            subscription.stop()  # which wakes a thread that takes
            assert subscription.take(1.0) is None
            assert subscription.take(2e-7) is None

    thread = Thread(target=take, daemon=True)
    thread.start()
    thread.join(LIMIT)
    assert not thread.is_alive()
