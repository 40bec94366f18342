"""How trio reaches an nsqd, and for how long it tries to."""

from __future__ import annotations

import pytest
import trio

from nsqclient import Config, ConnectError
from nsqclient._trio import dial
from tests.support.jumping import jumping


class Silent:
    """Stands for an nsqd whose machine answers no attempt to connect."""

    def __str__(self) -> str:
        return "nsqd:4150"

    async def connect(self) -> trio.abc.Stream:
        await trio.sleep_forever()
        raise AssertionError


@jumping
async def test_a_connect_takes_no_longer_than_dial_timeout() -> None:
    began = trio.current_time()
    with pytest.raises(ConnectError, match="dial nsqd:4150: i/o timeout"):
        await dial(Silent(), Config(dial_timeout=3))
    assert trio.current_time() - began == 3
