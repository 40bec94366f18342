"""Which destination a message is passed on to, and what is left out there because it is not known."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest
import trio

from nsqclient import ConnectError, Requeue, Unsupported
from nsqtools.nsq_to_nsq import Forwarder, Options
from nsqtools.passing_on import NsqdDestination, with_origin


class OldProducer:
    """A producer whose nsqd is NSQ's own."""

    def __init__(self, *known: str, fails: bool = False) -> None:
        self._fails = fails
        self.published: list[tuple[bytes, bool, bool]] = []
        self._known = known

    async def publish(self, topic: str, body: bytes, *, key: str | None, headers: Mapping[str, bytes] | None) -> None:
        await trio.lowlevel.checkpoint()
        if self._fails:
            raise ConnectError("connection refused")
        if headers is not None and "headers" not in self._known:
            raise Unsupported("nsqd 127.0.0.1:4150 knows no headers: it does not grant the extension `headers`")
        if key is not None and "keys" not in self._known:
            raise Unsupported("nsqd 127.0.0.1:4150 knows no keys: it does not grant the extension `keys`")
        self.published.append((body, headers is not None, key is not None))


def pass_on(producer: Any, count: int) -> None:
    """Pass on so many messages at once."""
    destination = NsqdDestination("there", producer)

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
        "there doesn't support headers: forwarding messages without them",
        "there doesn't support keys: a crash of this tool may duplicate messages",
    ]


def forwarded(mode: str, *addresses: str, failing: str = "", groups: int = 0) -> dict[str, set[bytes]]:
    """Forward 60 messages, by default without a group, and return what has come to each destination.

    A second try follows a failure.
    """
    producers = {address: OldProducer("headers", "keys", fails=address == failing) for address in addresses}
    options = Options(topic=("t",), mode=mode, destination_nsqd_tcp_address=addresses)

    async def main() -> None:
        handle = Forwarder(options, list[Any](producers.values())).handler("t")
        for number in range(60):
            message: Any = SimpleNamespace(
                nsqd="here",
                topic="t",
                channel="c",
                id=f"{number:016x}",
                headers={},
                group=f"{number % groups}" if groups else None,
                body=b"%d" % number,
            )
            for _ in range(2):
                try:
                    await handle(message)
                except Requeue:
                    continue
                break

    trio.run(main)
    return {address: {body for body, *_ in it.published} for address, it in producers.items()}


@pytest.mark.parametrize("mode", ["hostpool", "round-robin"])
def test_a_message_goes_to_the_same_destination_whatever_their_order(mode: str) -> None:
    before = forwarded(mode, "a:4150", "b:4150", "c:4150")
    assert forwarded(mode, "c:4150", "a:4150", "b:4150") == before
    assert min(map(len, before.values())) > 5


@pytest.mark.parametrize("mode", ["hostpool", "round-robin"])
def test_only_the_messages_of_a_destination_that_fails_go_to_others(mode: str) -> None:
    before = forwarded(mode, "a:4150", "b:4150", "c:4150")
    during = forwarded(mode, "a:4150", "b:4150", "c:4150", failing="a:4150")
    assert during["a:4150"] == set()
    assert during["b:4150"] > before["b:4150"]
    assert during["c:4150"] > before["c:4150"]
    assert during["b:4150"] | during["c:4150"] == {b"%d" % number for number in range(60)}


@pytest.mark.parametrize("mode", ["hostpool", "round-robin"])
def test_a_group_stays_together(mode: str) -> None:
    found = forwarded(mode, "a:4150", "b:4150", "c:4150", groups=6)
    for group in range(6):
        assert sum(any(int(body) % 6 == group for body in bodies) for bodies in found.values()) == 1
    assert set.union(*found.values()) == {b"%d" % number for number in range(60)}


def test_a_group_that_nsqd_ignores_is_not_passed_on() -> None:
    assert with_origin({"n": b"1", "nsq-group": b"\xff"}, "here") == {"n": b"1", "nsq-origin": b"here"}
    assert with_origin({"nsq-group": b"ana"}, "here") == {"nsq-group": b"ana", "nsq-origin": b"here"}
