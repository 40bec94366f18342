"""What a destination does not know is left out of messages, and no message fails because of it."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest
import trio

from nsqclient import Unsupported
from nsqtools.passing_on import Destination


class OldProducer:
    """A producer whose nsqd is NSQ's own."""

    def __init__(self, *known: str) -> None:
        self.published: list[tuple[bytes, bool, bool]] = []
        self._known = known

    async def publish(self, topic: str, body: bytes, *, key: str | None, headers: Mapping[str, bytes] | None) -> None:
        await trio.lowlevel.checkpoint()
        if headers is not None and "headers" not in self._known:
            raise Unsupported("nsqd 127.0.0.1:4150 knows no headers: it does not grant the extension `headers`")
        if key is not None and "keys" not in self._known:
            raise Unsupported("nsqd 127.0.0.1:4150 knows no keys: it does not grant the extension `keys`")
        self.published.append((body, headers is not None, key is not None))


def pass_on(producer: Any, count: int) -> None:
    """Pass on so many messages at once."""
    destination = Destination("there", producer)

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            for number in range(count):
                message: Any = SimpleNamespace(nsqd="here", topic="t", channel="c", id=f"{number:016x}", headers={})
                nursery.start_soon(destination.pass_on, message, "u", b"%d" % number)

    trio.run(main)


@pytest.mark.parametrize("known", [(), ("keys",), ("headers",), ("headers", "keys")])
@pytest.mark.parametrize("count", [1, 2, 5])
def test_however_many_are_under_way_each_is_published_with_what_the_destination_knows(
    known: tuple[str, ...], count: int
) -> None:
    producer = OldProducer(*known)
    pass_on(producer, count)
    expected = [(b"%d" % number, "headers" in known, "keys" in known) for number in range(count)]
    assert sorted(producer.published) == expected


def test_what_is_left_out_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    pass_on(OldProducer(), 5)
    assert [record.getMessage() for record in caplog.records] == [
        "there knows no headers: those of messages are left out",
        "there knows no keys: after a crash of this tool, messages may come twice",
    ]
