"""Plain calls: what the thread of a producer or consumer does when its caller is interrupted."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio

from nsqclient import sync


def test_ctrl_c_while_it_opens_ends_the_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    was_cancelled = threading.Event()

    @asynccontextmanager
    async def opening_for_ever() -> AsyncIterator[None]:
        try:
            await trio.sleep_forever()
        except trio.Cancelled:
            was_cancelled.set()
            raise
        yield

    def interrupted(self: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(sync._TrioThread, "opened", interrupted)

    def open_it() -> None:
        with pytest.raises(KeyboardInterrupt), sync._in_thread(opening_for_ever):
            pass

    script = threading.Thread(target=open_it, daemon=True)
    script.start()
    script.join(10)
    assert not script.is_alive()
    assert was_cancelled.is_set()
