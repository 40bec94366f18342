"""A drain: what is refused, what it waits for, and when it ends."""

from __future__ import annotations

import pytest
import trio
import trio.testing

from nsqd.drain import Drain, undelivered
from tests.support.node import Node

PUB = b"PUB t\n\0\0\0\1a"


class Told:
    """What nsqlookupds have heard, if there are any."""

    def __init__(self, *, are_there: bool = False) -> None:
        self.words: list[str] = []
        self.are_there = are_there

    def __call__(self, *, is_draining: bool, for_good: bool = False) -> bool:
        self.words.append("fine" if not is_draining else "draining for good" if for_good else "draining")
        return self.are_there


@pytest.fixture
def node() -> Node:
    return Node()


def test_publishing_is_refused_with_a_clear_error(node: Node) -> None:
    drain = Drain(node.broker, deadline=1.0)
    client = node.client()
    assert client.answers(PUB) == [b"OK"]
    drain.start()
    assert client.answers(PUB) == [b"E_PUB_FAILED PUB failed draining"]
    assert node.client().answers(b"MPUB e#ephemeral\n\0\0\0\x09\0\0\0\1\0\0\0\1a") == [
        b"E_MPUB_FAILED MPUB failed draining"
    ]
    assert node.client().answers(b"DPUB t 100\n\0\0\0\1a") == [b"E_DPUB_FAILED DPUB failed draining"]


def test_nsqlookupds_are_told_once(node: Node) -> None:
    told = Told()
    drain = Drain(node.broker, deadline=1.0, announce=told)
    assert drain.start()
    assert drain.start()
    assert told.words == ["draining"]
    assert not drain.start(retire=True), "it has said something else"


def test_only_what_a_consumer_can_still_get_is_waited_for(node: Node) -> None:
    node.consumer("t", "c", ready=2)
    node.consumer("t", "held", ready=2)
    node.broker.topics["t"].channel("alone")
    node.broker.topics["t"].channels["held"].pause()
    client = node.client()
    for _ in range(3):
        client.ask(PUB)
    assert undelivered(node.broker) == 3  # the first channel has two in flight, and one that waits


def test_it_ends_when_everything_is_finished(node: Node) -> None:
    consumer = node.consumer("t", "c", ready=10)
    node.client().ask(PUB)
    drain = Drain(node.broker, deadline=60.0)

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(finish_after, 3.0)
            drain.start()
            started = trio.current_time()
            await drain.wait()
            assert 3.0 <= trio.current_time() - started < 3.2

    async def finish_after(seconds: float) -> None:
        await trio.sleep(seconds)
        for message in consumer.messages():
            consumer.say(b"FIN %b\n" % message.id)

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


def test_its_deadline_ends_it_too(node: Node, caplog: pytest.LogCaptureFixture) -> None:
    node.consumer("t", "c", ready=10)
    node.client().ask(PUB)
    drain = Drain(node.broker, deadline=5.0)

    async def main() -> None:
        drain.start()
        await drain.wait()
        assert trio.current_time() - started >= 5.0

    clock = trio.testing.MockClock(autojump_threshold=0)
    started = clock.current_time()
    trio.run(main, clock=clock)
    assert "leaving 1 messages for the next start" in caplog.text


def test_a_drained_node_stays_for_readers_as_long_as_the_last_request_said(node: Node) -> None:
    drain = Drain(node.broker, deadline=5.0, stay=100.0)

    async def main() -> None:
        drain.start(stay=30.0)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(shorten, 10.0)
            await drain.wait()
        assert 20.0 <= trio.current_time() - started < 20.2

    async def shorten(seconds: float) -> None:
        await trio.sleep(seconds)
        drain.start()  # without `stay`, which leaves it as it is
        drain.start(stay=20.0)

    clock = trio.testing.MockClock(autojump_threshold=0)
    started = clock.current_time()
    trio.run(main, clock=clock)


def test_a_drain_that_is_taken_back_ends_nothing_and_can_begin_again(node: Node) -> None:
    told = Told()
    drain = Drain(node.broker, deadline=5.0, announce=told)

    async def main() -> None:
        assert drain.take_back(), "there is nothing to take back"
        drain.start(stay=3600.0)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(drain.wait)
            await trio.sleep(100.0)
            assert drain.take_back()
            assert node.broker.refusal is None
            await trio.sleep(7200.0)
            assert nursery.child_tasks, "it has not ended"
            drain.start(stay=10.0)
        assert 7310.0 <= trio.current_time() - started < 7310.5
        assert not drain.take_back(), "it is too late"

    clock = trio.testing.MockClock(autojump_threshold=0)
    started = clock.current_time()
    trio.run(main, clock=clock)
    assert told.words == ["draining", "fine", "draining"]


def test_a_drain_for_good_cannot_be_taken_back(node: Node) -> None:
    drain = Drain(node.broker, deadline=1.0)
    drain.start(retire=True)
    assert not drain.take_back()
    assert drain.is_draining


def test_a_drain_for_good_says_so_once(node: Node) -> None:
    told = Told()
    drain = Drain(node.broker, deadline=1.0, announce=told)
    assert drain.start(retire=True)
    assert drain.start(retire=True)
    assert drain.start()
    assert told.words == ["draining for good"]


def test_publishers_have_a_second_to_go_elsewhere_before_they_are_refused(node: Node) -> None:
    closed: list[float] = []
    told = Told(are_there=True)
    drain = Drain(
        node.broker, deadline=5.0, stay=60.0, announce=told, on_closed=lambda: closed.append(trio.current_time())
    )
    client = node.client()

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(drain.wait)
            drain.start()
            assert (told.words, drain.is_draining) == (["draining"], True)
            await trio.sleep(0.9)
            assert client.answers(PUB) == [b"OK"]
            assert closed == []
            await trio.sleep(0.2)
            assert client.answers(PUB) == [b"E_PUB_FAILED PUB failed draining"]
            assert len(closed) == 1
            nursery.cancel_scope.cancel()

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


def test_a_drain_that_is_taken_back_at_once_refuses_nothing(node: Node) -> None:
    drain = Drain(node.broker, deadline=5.0, announce=Told(are_there=True))

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(drain.wait)
            drain.start()
            await trio.sleep(0.5)
            drain.take_back()
            await trio.sleep(100.0)
            assert node.client().answers(PUB) == [b"OK"]
            nursery.cancel_scope.cancel()

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


def test_a_node_that_is_stopped_while_it_drains_refuses_before_it_says_goodbye(node: Node) -> None:
    drain = Drain(node.broker, deadline=5.0, announce=Told(are_there=True))
    assert not drain.end()
    drain.start()
    assert node.client().answers(PUB) == [b"OK"]
    assert drain.end()
    assert node.client().answers(PUB) == [b"E_PUB_FAILED PUB failed draining"]
