"""Producers whose nsqds come and go as nsqlookupds say, on trio and on asyncio. Real sockets."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack
from functools import partial
from typing import Any, Final

import pytest
import trio

import nsqclient
from nsqclient import Config, ConfigError, ConnectError, PublishRejected, aio, quorum, sync
from tests.nsqclient.whole.reach import SocketLookupd, SocketNsqd, entry

LIMIT: Final = 200.0
PATIENCE: Final = 100.0  # seconds for a single publish, and for any wait
SOON: Final = 800  # publishes, with 2 ms between them: what an idle machine publishes in two seconds
QUICK: Final = Config(lookupd_poll_interval=0.1, lookupd_poll_jitter=0, drain_timeout=1)

Script = Callable[["Run"], Awaitable[None]]


class Run:
    """What a script needs, whatever its loop."""

    def __init__(self, producer: Any, sleep: Callable[[float], Awaitable[object]]) -> None:
        self.producer = producer
        self.sleep = sleep

    async def publish_until(self, condition: Callable[[], object], seconds: float = PATIENCE) -> int:
        """Publish until the condition is true; return how many publishes that took, which a busy machine slows as well."""
        began = time.monotonic()
        number = 0
        while not condition():
            assert time.monotonic() - began < seconds, "too late"
            await self.producer.publish("t", b"until %d" % number, timeout=PATIENCE)
            number += 1
            await self.sleep(0.002)
        return number

    async def wait_until(self, condition: Callable[[], object], seconds: float = PATIENCE) -> None:
        began = time.monotonic()
        while not condition():
            assert time.monotonic() - began < seconds, "too late"
            await self.sleep(0.005)

    async def kill(self, nsqd: SocketNsqd) -> None:
        """Kill an nsqd while nothing is in flight there, and return when the producer knows."""
        nsqd.kill()
        await self.wait_until(lambda: nsqd.address not in {node.address for node in self.producer._roster.active})

    async def publish(self, count: int) -> None:
        for number in range(count):
            await self.producer.publish("t", b"%d" % number, timeout=PATIENCE)

    def addresses(self) -> set[str]:
        return {node.address for node in self.producer.stats().nodes}


def on_trio(script: Script, *addresses: str, **options: Any) -> None:
    async def main() -> None:
        with trio.fail_after(LIMIT):
            async with nsqclient.open_producer(addresses, **options) as producer:
                await script(Run(producer, trio.sleep))

    trio.run(main)


def on_asyncio(script: Script, *addresses: str, **options: Any) -> None:
    async def main() -> None:
        async with asyncio.timeout(LIMIT), aio.open_producer(addresses, **options) as producer:
            await script(Run(producer, asyncio.sleep))

    asyncio.run(main())


both_loops = pytest.mark.parametrize("loop", [on_trio, on_asyncio])
Loop = Callable[..., None]


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def started(stack: ExitStack, count: int) -> list[SocketNsqd]:
    return [stack.enter_context(SocketNsqd()) for _ in range(count)]


def lookup_of(stack: ExitStack, *nsqds: SocketNsqd, can_wait: bool = True) -> SocketLookupd:
    return stack.enter_context(SocketLookupd(*nsqds, can_wait=can_wait))


@both_loops
@pytest.mark.parametrize("can_wait", [True, False])
def test_nodes_come_and_go(loop: Loop, can_wait: bool, stack: ExitStack) -> None:
    one, two, three = started(stack, 3)
    lookupd = lookup_of(stack, one, two, can_wait=can_wait)

    async def script(run: Run) -> None:
        await run.publish_until(lambda: one.bodies and two.bodies)
        lookupd.lists(one, two, three)
        assert await run.publish_until(lambda: three.bodies) < SOON
        await run.kill(two)
        lookupd.lists(one, three)
        await run.publish(20)
        await run.wait_until(lambda: run.addresses() == {one.address, three.address})

    loop(script, lookupd=lookupd.address, config=QUICK)
    if can_wait:
        assert "/nodes" in lookupd.asked
        assert "/nodes?wait=60s&index=1" in lookupd.asked


@both_loops
def test_an_nsqlookupd_that_lists_nobody_or_is_dead_or_lies_removes_nobody(loop: Loop, stack: ExitStack) -> None:
    one, two = started(stack, 2)
    lookupd = lookup_of(stack, one, two)

    async def script(run: Run) -> None:
        await run.publish_until(lambda: one.bodies and two.bodies)
        for body in (b'{"producers": []}', b"<html>", b"{}", json.dumps({"producers": [1] * 1001}).encode()):
            asked = len(lookupd.asked)
            lookupd.says(body)
            await run.publish_until(partial(asked_again, lookupd, asked))
        asked = len(lookupd.asked)
        lookupd.says(b"", "HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/nodes")
        await run.publish_until(lambda: len(lookupd.asked) > asked)
        lookupd.kill()
        one.bodies.clear()
        two.bodies.clear()
        await run.publish(40)
        assert min(len(one.bodies), len(two.bodies)) >= 10
        await run.kill(one)
        one.start()  # and it is found again, though nobody lists it
        one.bodies.clear()
        await run.publish_until(lambda: one.bodies)

    loop(script, lookupd=[lookupd.address], config=QUICK)


@both_loops
@pytest.mark.parametrize("state", ["draining", "full", "unhealthy"])
def test_a_node_with_a_state_gets_no_new_publishes(loop: Loop, state: str, stack: ExitStack) -> None:
    one, two = started(stack, 2)
    lookupd = lookup_of(stack, one, two)

    async def script(run: Run) -> None:
        await run.publish_until(lambda: one.bodies and two.bodies)
        lookupd.lists(entry(one, state=state), two)
        await run.wait_until(lambda: len(run.producer._roster.active) == 1)
        before = len(one.bodies)
        await run.publish(20)
        assert len(one.bodies) == before
        lookupd.lists(entry(one, state=state), entry(two, state=state))  # then any is better than none
        await run.publish_until(lambda: len(one.bodies) > before)
        lookupd.lists(one, entry(two, state=state))
        await run.wait_until(lambda: len(run.producer._roster.active) == 1)
        before = len(two.bodies)
        await run.publish(20)
        assert len(two.bodies) == before

    loop(script, lookupd=lookupd.address, config=QUICK)


@both_loops
def test_what_one_refuses_goes_to_another(loop: Loop, stack: ExitStack) -> None:
    one, two = started(stack, 2)
    lookupd = lookup_of(stack, one, two)

    async def script(run: Run) -> None:
        await run.wait_until(lambda: [node.connected for node in run.producer.stats().nodes] == [True, True])
        # This one also hangs up, so it is often not connected.
        one.refusal = "E_PUB_FAILED PUB failed: the disk is full"
        await run.publish(50)
        assert len(two.bodies) == 50
        two.refusal = one.refusal
        with pytest.raises(PublishRejected, match="disk is full"):
            await run.publish(1)
        one.refusal = two.refusal = "E_BAD_TOPIC"
        before = len(one.commands) + len(two.commands)
        with pytest.raises(PublishRejected, match="E_BAD_TOPIC"):
            await run.publish(1)
        assert len(one.commands) + len(two.commands) == before + 1  # the message is wrong, not the nsqd

    loop(script, lookupd=lookupd.address, config=QUICK)


@both_loops
def test_what_may_be_stored_is_repeated_at_the_same_node_even_if_nobody_lists_it(loop: Loop, stack: ExitStack) -> None:
    one, two = started(stack, 2)
    lookupd = lookup_of(stack, one)

    async def script(run: Run) -> None:
        await run.publish(1)
        one.dies_before_answer = 1
        came_back: list[bool] = []

        async def publish() -> None:
            await run.producer.publish("t", b"once", timeout=PATIENCE)
            assert came_back

        async def come_back() -> None:
            await run.wait_until(lambda: not one.connections)
            lookupd.lists(two)
            await run.wait_until(lambda: [it.address for it in run.producer._roster.active] == [two.address])
            await run.publish_until(lambda: two.bodies)
            assert one.address in {node.address for node in run.producer._nodes}
            came_back.append(True)
            one.start()

        await together(loop, publish, come_back)
        assert one.bodies.count(b"once") == 1
        assert two.bodies.count(b"once") == 0
        await run.wait_until(lambda: run.addresses() == {two.address})  # and then it is dropped

    loop(script, lookupd=lookupd.address, config=QUICK)


def asked_again(lookupd: SocketLookupd, asked: int) -> bool:
    return len(lookupd.asked) > asked


async def together(loop: Loop, *works: Callable[[], Awaitable[None]]) -> None:
    if loop is on_trio:
        async with trio.open_nursery() as nursery:
            for work in works:
                nursery.start_soon(work)
    else:
        await asyncio.gather(*(work() for work in works))


@both_loops
def test_contradictory_lookups_and_one_that_hangs(loop: Loop, stack: ExitStack) -> None:
    one, two, three = started(stack, 3)
    first, second = lookup_of(stack, one, two), lookup_of(stack, three)
    hung = stack.enter_context(SocketNsqd())  # accepts, and never answers HTTP

    async def script(run: Run) -> None:
        await run.publish_until(lambda: one.bodies and two.bodies and three.bodies)
        await run.kill(two)
        second.lists(three, two)
        first.lists(one)
        await run.publish(20)
        two.start()
        two.bodies.clear()
        assert await run.publish_until(lambda: two.bodies) < SOON

    loop(script, lookupd=[first.address, hung.address, second.address, "127.0.0.1:1"], config=QUICK)


@both_loops
def test_nsqds_that_are_given_are_used_whatever_nsqlookupd_says(loop: Loop, stack: ExitStack) -> None:
    given, listed = started(stack, 2)
    lookupd = lookup_of(stack, listed)

    async def script(run: Run) -> None:
        await run.publish_until(lambda: given.bodies and listed.bodies)

    loop(script, given.address, lookupd=lookupd.address, config=QUICK)


@both_loops
def test_without_any_nsqd_a_publish_fails_after_a_while(
    loop: Loop, stack: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nsqclient.shell.producer._PATIENCE", 0.6)
    lookupd = lookup_of(stack)

    async def script(run: Run) -> None:
        failed: list[float] = []
        naps = 0  # of 20 ms, as its loop counts them: on a busy machine that is as late as everything else here

        async def publish() -> None:
            with pytest.raises(ConnectError, match="nsqlookupd lists no nsqd"):
                await run.publish(1)
            failed.append(time.monotonic())

        async def count() -> None:
            nonlocal naps
            while not failed:
                await run.sleep(0.02)
                naps += 1

        began = time.monotonic()
        await together(loop, publish, count)
        assert failed[0] - began > 0.4
        assert naps < 90
        with pytest.raises(ConnectError):
            await run.producer.cancel("t", "key")  # to ask nobody is no answer

    loop(script, lookupd=lookupd.address, config=QUICK)

    async def nobody(run: Run) -> None:
        pytest.fail("it should not open")

    with pytest.raises(ConnectError, match="no nsqlookupd could be asked"):
        loop(nobody, lookupd="127.0.0.1:1", connect="require")
    with pytest.raises(ConfigError):
        loop(nobody)
    with pytest.raises(ConfigError, match="missing port"):
        loop(nobody, lookupd="lookupd")


@both_loops
def test_the_former_name_of_lookupd_works_and_warns(loop: Loop, stack: ExitStack) -> None:
    (one,) = started(stack, 1)
    lookupd = lookup_of(stack, one)
    with pytest.warns(DeprecationWarning, match="now called lookupd=") as warned:
        loop(partial(Run.publish, count=1), nsqlookupd=lookupd.address, config=QUICK)
    assert one.bodies == [b"0"]
    assert [it.filename for it in warned] == [__file__]  # the line to change


@both_loops
def test_both_names_of_lookupd_at_once_are_refused(loop: Loop) -> None:
    with pytest.raises(ConfigError, match="former name of lookupd=: give lookupd= alone"):
        loop(partial(Run.publish, count=1), lookupd="127.0.0.1:1", nsqlookupd="127.0.0.1:1")


@both_loops
def test_a_publish_waits_for_the_first_nsqd(loop: Loop, stack: ExitStack) -> None:
    (one,) = started(stack, 1)
    lookupd = lookup_of(stack)

    async def script(run: Run) -> None:
        async def later() -> None:
            await run.wait_until(lambda: lookupd.asked)
            lookupd.lists(one)

        await together(loop, lambda: run.publish(1), later)
        assert one.bodies == [b"0"]

    loop(script, lookupd=lookupd.address, config=QUICK)


@both_loops
def test_to_all_and_to_a_quorum(loop: Loop, stack: ExitStack) -> None:
    one, two, three = started(stack, 3)
    lookupd = lookup_of(stack, one, two)

    async def to_all(run: Run) -> None:
        await run.wait_until(
            lambda: run.producer.stats().nodes[1:] and all(n.connected for n in run.producer.stats().nodes)
        )
        await run.publish(5)
        assert len(one.bodies) == len(two.bodies) == 5
        lookupd.lists(one, two, three)
        await run.wait_until(lambda: len(run.producer._roster.active) == 3)
        await run.publish(5)
        assert [len(nsqd.bodies) for nsqd in (one, two, three)] == [10, 10, 5]

    async def to_two(run: Run) -> None:
        await run.wait_until(lambda: len(run.producer._roster.active) == 3)
        three.refusal = "E_PUB_FAILED"
        await run.publish(5)

    loop(to_all, lookupd=lookupd.address, config=QUICK, strategy="all")
    loop(to_two, lookupd=lookupd.address, config=QUICK, strategy=quorum(2))


@both_loops
def test_the_nearest_and_then_the_next(loop: Loop, stack: ExitStack) -> None:
    far, near, here = started(stack, 3)
    lookupd = lookup_of(stack)
    lookupd.lists(
        entry(far, topology_region="r2", topology_zone="z1"),
        entry(near, topology_region="r1", topology_zone="z2"),
        entry(here, topology_region="r1", topology_zone="z1"),
    )
    config = Config(lookupd_poll_interval=0.1, drain_timeout=1, topology_region="r1", topology_zone="z1")

    async def script(run: Run) -> None:
        await run.wait_until(lambda: len(run.producer._roster.active) == 3)
        await run.publish(10)
        assert [len(nsqd.bodies) for nsqd in (far, near, here)] == [0, 0, 10]
        await run.kill(here)
        await run.publish(10)
        assert [len(nsqd.bodies) for nsqd in (far, near, here)] == [0, 10, 10]

    loop(script, lookupd=lookupd.address, config=config, strategy="near")


@both_loops
def test_a_key_goes_to_the_same_nsqd_whoever_publishes_it(loop: Loop, stack: ExitStack) -> None:
    one, two, three = started(stack, 3)

    async def publish(run: Run) -> None:
        for number in range(30):  # the first ones come before all are connected
            await run.producer.publish("t", b"%d" % number, key=f"order-{number}", timeout=PATIENCE)

    def connected(run: Run) -> int:
        return sum(node.connected for node in run.producer.stats().nodes)

    async def publish_without_one(run: Run) -> None:
        await run.wait_until(lambda: connected(run) == 3)
        one.kill()
        await run.wait_until(lambda: connected(run) == 2)
        await publish(run)

    loop(publish, lookupd=lookup_of(stack, one, two, three).address, config=QUICK, strategy="by_key")
    before = [[*one.bodies], [*two.bodies], [*three.bodies]]
    assert min(map(len, before)) > 0
    loop(publish, *(it.address for it in (three, one, two)), config=QUICK, strategy="by_key")
    assert [one.bodies, two.bodies, three.bodies] == before  # they remember the keys
    lookupd = lookup_of(stack, three, two, one)
    loop(publish_without_one, lookupd=lookupd.address, config=QUICK, strategy="by_key")
    assert sorted(two.bodies + three.bodies, key=int) == [b"%d" % number for number in range(30)]


@both_loops
def test_the_one_with_the_fewest_in_flight(loop: Loop, stack: ExitStack) -> None:
    slow, quick = started(stack, 2)
    lookupd = lookup_of(stack, slow, quick)

    async def script(run: Run) -> None:
        await run.wait_until(lambda: [node.connected for node in run.producer.stats().nodes] == [True, True])
        slow.hangs = True
        while not any(command.startswith("PUB") for command in slow.commands):
            await run.producer.submit("t", b"m")
            await run.sleep(0.005)
        await run.publish(50)  # none of them waits behind the one that hangs
        assert len(quick.bodies) >= 50
        slow.kill()

    loop(script, lookupd=lookupd.address, config=QUICK, strategy="fewest_in_flight")


def test_plain_scripts(stack: ExitStack, caplog: pytest.LogCaptureFixture) -> None:
    one, two = started(stack, 2)
    lookupd = lookup_of(stack, one, two)
    lookupd.lists(one, two, {"broadcast_address": "169.254.169.254", "tcp_port": 80})
    caplog.set_level(logging.INFO, "nsqclient")
    with sync.producer(lookupd=lookupd.address, config=QUICK) as producer:
        deadline = time.monotonic() + PATIENCE
        while not (one.bodies and two.bodies):
            assert time.monotonic() < deadline
            producer.publish("t", b"x", timeout=PATIENCE)
        lookupd.kill()
        for _ in range(300):
            producer.publish("t", b"x", timeout=PATIENCE)
        time.sleep(1.5)  # some more tries
    warnings = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert len([text for text in warnings if "169.254.169.254" in text]) == 1
    assert len([text for text in warnings if "error querying nsqlookupd" in text]) <= 2


@both_loops
def test_publishes_that_find_no_nsqd_leave_nothing_behind(
    loop: Loop, stack: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nsqclient.shell.producer._PATIENCE", 0.01)
    lookupd = lookup_of(stack)

    async def script(run: Run) -> None:
        for _ in range(3):
            with pytest.raises(ConnectError):
                await run.producer.publish("t", b"x")
        assert not len(run.producer._first_nodes)

    loop(script, lookupd=lookupd.address, config=QUICK)


@both_loops
def test_an_nsqlookupd_that_never_waits_is_not_asked_without_end(loop: Loop, stack: ExitStack) -> None:
    """As one of ours with --max-lookup-wait=0, or a faulty one."""
    (one,) = started(stack, 1)
    lookupd = lookup_of(stack, one)
    lookupd.is_hasty = True

    async def script(run: Run) -> None:
        await run.publish(1)
        began = time.monotonic()
        before = len(lookupd.asked)
        await run.wait_until(lambda: len(lookupd.asked) >= before + 10)
        assert time.monotonic() - began > 5 * QUICK.lookupd_poll_interval

    loop(script, lookupd=lookupd.address, config=QUICK)
