"""A producer and nsqds in memory."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack

import pytest
import trio
import trio.lowlevel
import trio.testing

from nsqclient import (
    Config,
    ConfigError,
    ConnectError,
    OutcomeUnknown,
    Producer,
    PublishError,
    PublishRejected,
    PublishUnknown,
    PublishUnsent,
    Stopped,
    Unsupported,
    events,
    open_producer,
    quorum,
)
from nsqclient.testing import MemoryNSQD
from nsqcommon.wire.faults import Fault, ProtocolError
from tests.support.jumping import jumping


def deaf_to(*words: str) -> Callable[[int, str], bytes | None]:
    return lambda connection, command: b"" if command.split(" ")[0] in words else None


# One nsqd


@jumping
async def test_publishing() -> None:
    async with MemoryNSQD() as server, open_producer(server, retry="unsent") as producer:
        assert not producer.connected
        await producer.publish("t", b"one")
        await producer.publish_many("t", [b"two", b"three"])
        await producer.publish("t", b"later", delay=60)
        receipt = await producer.submit("t", b"four")
        assert (await receipt.wait()).error is None
        assert server.bodies("t") == [b"one", b"two", b"three", b"later", b"four"]
        assert server.said() == ["IDENTIFY", "PUB t", "MPUB t", "DPUB t 60000", "PUB t"]
        stats = producer.stats()
        assert (producer.connected, stats.published, stats.failed, stats.nodes[0].pending) == (True, 5, 0, 0)


@pytest.mark.parametrize(
    ("topic", "body", "delay"), [("x$", b"a", None), ("t", b"", None), ("t", b"a", -1), ("t", b"a", float("nan"))]
)
@jumping
async def test_what_no_nsqd_takes_is_refused_here(topic: str, body: bytes, delay: float | None) -> None:
    async with MemoryNSQD() as server, open_producer(server) as producer:
        with pytest.raises(ValueError):
            await producer.publish(topic, body, delay=delay)
        assert server.said() == []


@jumping
async def test_many_are_split_where_nsqd_would_refuse_them() -> None:
    async with MemoryNSQD() as server, open_producer(server, retry="unsent") as producer:
        bodies = [bytes([65 + number]) * 1_000_000 for number in range(12)]
        await producer.publish_many("t", bodies)
        assert server.said(None, "MPUB") == ["MPUB t"] * 3
        assert server.bodies("t") == bodies
        await producer.publish_many("t", [])


@jumping
async def test_what_was_cut_off_on_its_way_may_be_published_again() -> None:
    """nsqd drops a connection that stalls in the middle of a body: nothing is stored, and the publish was not wrong."""
    cuts = iter([True, True])

    def cut(connection: int, command: str) -> bytes | None:
        if command == "MPUB t" and next(cuts, False):
            raise ProtocolError(Fault.BAD_MESSAGE, "MPUB failed to read message body")
        return None

    async with MemoryNSQD(on_command=cut) as server:
        async with open_producer(server, retry="never") as producer:
            with pytest.raises(PublishUnsent, match="failed to read"):
                await producer.publish_many("t", [b"1", b"2"])
        async with open_producer(server, retry="unsent") as producer:
            await producer.publish_many("t", [b"1", b"2"])
        assert server.bodies("t") == [b"1", b"2"]


@jumping
async def test_an_error_is_the_oldest_ones_and_the_outcome_of_the_younger_ones_is_unknown() -> None:
    refusals = iter([True])

    def refuse(connection: int, command: str) -> bytes | None:
        if command == "PUB t" and next(refusals, False):
            raise ProtocolError(Fault.BAD_TOPIC, "PUB topic")
        return None

    async with MemoryNSQD(on_command=refuse) as server, open_producer(server, retry="unsent") as producer:
        await producer.probe_write()
        receipts = [await producer.submit("t", b"%d" % number) for number in range(3)]
        errors = [(await receipt.wait()).error for receipt in receipts]
        assert isinstance(errors[0], PublishRejected)
        assert (errors[0].code, errors[0].text) == ("E_BAD_TOPIC", "E_BAD_TOPIC PUB topic")
        assert [type(error) for error in errors[1:]] == [PublishUnknown, PublishUnknown]
        await producer.publish("t", b"again")
        assert server.bodies("t") == [b"again"]


@jumping
async def test_a_publish_that_is_cancelled_leaves_its_place_to_its_reply() -> None:
    held: list[str] = []

    def slow(connection: int, command: str) -> bytes | None:
        if command == "PUB slow":
            held.append(command)
            return b""
        return None

    async with MemoryNSQD(on_command=slow) as server, open_producer(server, retry="unsent") as producer:
        happened = producer.events()
        with trio.move_on_after(1) as scope:
            await producer.publish("slow", b"one")
        assert scope.cancelled_caught
        receipt = await producer.submit("quick", b"two")
        await trio.sleep(1)
        assert not receipt.done  # this OK was for the previous publish
        server.send(b"\0\0\0\x06\0\0\0\0OK")
        await receipt.wait()
        assert receipt.error is None
        assert isinstance(await anext(happened), events.Connected)
        assert await anext(happened) == events.LatePublish("slow", None)


@jumping
async def test_a_publish_has_its_time() -> None:
    async with MemoryNSQD(on_command=deaf_to("PUB")) as server, open_producer(server, config=SHORT) as producer:
        with pytest.raises(trio.TooSlowError):
            await producer.publish("t", b"one", timeout=3)
        assert trio.current_time() == pytest.approx(3)


SHORT = Config(drain_timeout=1)


@jumping
async def test_who_comes_when_there_is_no_room_waits() -> None:
    async with MemoryNSQD(on_command=deaf_to("PUB")) as server:
        async with open_producer(server, max_pending=2, config=SHORT) as producer:
            await producer.submit("t", b"one")
            await producer.submit("t", b"two")
            with trio.move_on_after(5) as scope:
                await producer.submit("t", b"three")
            assert scope.cancelled_caught
            assert producer.stats().nodes[0].pending == 2
            async with trio.open_nursery() as nursery:
                nursery.start_soon(producer.submit, "t", b"four")
                await trio.sleep(1)
                server.send(b"\0\0\0\x06\0\0\0\0OK")
            assert producer.stats().nodes[0].pending == 2


@jumping
async def test_a_lost_connection_is_made_anew_by_the_next_publish_or_by_itself() -> None:
    async with MemoryNSQD() as server, open_producer(server) as producer:
        await producer.publish("t", b"one")
        server.break_connections()
        await trio.testing.wait_all_tasks_blocked()
        await producer.publish("t", b"two")
        server.break_connections()
        await trio.sleep(1)
        assert producer.connected
        assert server.bodies("t") == [b"one", b"two"]


@jumping
async def test_an_nsqd_that_is_down_fails_the_publish_that_asks_for_it() -> None:
    async with MemoryNSQD() as server, open_producer(server) as producer:
        server.is_up = False
        with pytest.raises(ConnectError, match="connection refused"):
            await producer.publish("t", b"one")
        server.is_up = True
        await producer.publish("t", b"two")


@jumping
async def test_who_requires_a_connection_hears_that_there_is_none() -> None:
    async with MemoryNSQD() as server:
        server.is_up = False
        with pytest.raises(ConnectError):
            async with open_producer(server, connect="require"):
                pass


@jumping
async def test_what_was_sent_without_an_answer_is_unknown() -> None:
    async with MemoryNSQD(on_command=deaf_to("PUB")) as server, open_producer(server) as producer:
        sent = await producer.submit("t", b"one")
        await trio.testing.wait_all_tasks_blocked()
        server.break_connections()
        await sent.wait()
        assert type(sent.error) is OutcomeUnknown


@jumping
async def test_what_is_certainly_not_published_is_tried_again_if_asked() -> None:
    async with MemoryNSQD() as server:
        server.is_up = False
        async with open_producer(server, retry="unsent") as producer, trio.open_nursery() as nursery:
            nursery.start_soon(producer.publish, "t", b"one")
            await trio.sleep(0.001)
            server.is_up = True
        assert server.bodies("t") == [b"one"]


@jumping
async def test_what_may_be_published_is_tried_again_only_if_asked() -> None:
    def cut(connection: int, command: str) -> bytes | None:
        if command == "PUB t" and connection == 1:
            server.break_connections()
        return None

    async with MemoryNSQD(on_command=cut) as server, open_producer(server, retry="unsent") as producer:
        with pytest.raises(PublishUnknown):
            await producer.publish("t", b"one")
    # NSQ's own nsqd knows no keys.
    old = MemoryNSQD(on_command=cut, extensions=())
    async with old as server, open_producer(server) as producer:
        with pytest.raises(PublishUnknown):
            await producer.publish("t", b"one")
    async with MemoryNSQD(on_command=cut, extensions=()) as server, open_producer(server, retry="anywhere") as producer:
        await producer.publish("t", b"one")
        assert server.bodies("t") == [b"one", b"one"]


Publish = Callable[[Producer], Awaitable[None]]


@pytest.mark.parametrize("publish", [
    lambda producer: producer.publish("t", b"one"),
    lambda producer: producer.publish("t", b"one", delay=1),
    lambda producer: producer.publish_many("t", [b"one", b"two"]),
])  # fmt: skip
@pytest.mark.parametrize("is_stored", [True, False])
@jumping
async def test_what_may_be_published_is_published_once(publish: Publish, is_stored: bool) -> None:
    """The connection is lost twice before the answer, with the message stored the first time or not."""

    def cut(connection: int, command: str) -> bytes | None:
        if "PUB" in command and connection <= 2:
            server.break_connections()
            return None if is_stored else b""
        return None

    async with MemoryNSQD(on_command=cut) as server, open_producer(server) as producer:
        await publish(producer)
        await producer.publish("t", b"last")
        assert server.bodies("t").count(b"one") == 1
        said = [command for command in server.said() if "PUB" in command]
        assert len(said) == 4
        assert said[0] == said[1] == said[2]


@jumping
async def test_it_is_repeated_at_the_same_nsqd_until_that_is_back() -> None:
    def cut(connection: int, command: str) -> bytes | None:
        if command.startswith("PUB"):
            here.is_up = False
            here.break_connections()
        return None

    async with MemoryNSQD(on_command=cut) as here, MemoryNSQD() as there:
        async with open_producer([here, there], strategy="first") as producer, trio.open_nursery() as nursery:
            nursery.start_soon(producer.publish, "t", b"one")
            await trio.sleep(20)
            assert there.bodies("t") == []
            here._on_command = None
            here.is_up = True
        assert (here.bodies("t"), there.bodies("t")) == ([b"one"], [])


@jumping
async def test_after_a_while_the_caller_gets_the_key() -> None:
    def cut(connection: int, command: str) -> bytes | None:
        if command.startswith("PUB"):
            server.is_up = False
            server.break_connections()
        return None

    async with MemoryNSQD(on_command=cut) as server:
        async with open_producer(server, retry_timeout=10) as producer:
            began = trio.current_time()
            with pytest.raises(OutcomeUnknown) as caught:
                await producer.publish("t", b"one", key="mine")
            assert caught.value.key == "mine"
            assert trio.current_time() - began == pytest.approx(10, abs=1)
            server._on_command = None
            server.is_up = True
            await producer.publish("t", b"one", key=caught.value.key)
        assert server.bodies("t") == [b"one"]


@jumping
async def test_an_nsqd_that_hangs_takes_no_more_than_this_while() -> None:
    def cut(connection: int, command: str) -> bytes | None:
        if connection == 1 and command.startswith("PUB"):
            server.break_connections()
            return None
        return b"" if "PUB" in command else None  # it is stopped, say

    async with MemoryNSQD(on_command=cut) as server, open_producer(server, retry_timeout=10) as producer:
        began = trio.current_time()
        with pytest.raises(OutcomeUnknown):
            await producer.publish("t", b"one")
        assert trio.current_time() - began == pytest.approx(10, abs=1)


@pytest.mark.parametrize(
    ("fault", "is_known"),
    [(Fault.PUB_FAILED, True), (Fault.UNAUTHORIZED, False), (Fault.AUTH_FAILED, False), (Fault.INVALID, False)],
)
@jumping
async def test_a_repeat_that_is_refused_before_its_key_was_looked_for_tells_nothing(
    fault: Fault, is_known: bool
) -> None:
    def cut(connection: int, command: str) -> bytes | None:
        if connection == 1 and command.startswith("PUB"):
            server.break_connections()
        elif command.startswith("PUB"):
            raise ProtocolError(fault, "PUB failed")
        return None

    async with MemoryNSQD(on_command=cut) as server, open_producer(server) as producer:
        with pytest.raises(PublishRejected if is_known else OutcomeUnknown):
            await producer.publish("t", b"one")


@jumping
async def test_an_nsqd_that_came_back_without_keys_is_asked_for_nothing_twice() -> None:
    def cut(connection: int, command: str) -> bytes | None:
        if command.startswith("PUB"):
            server._extensions = ()
            server.break_connections()
        return None

    async with MemoryNSQD(on_command=cut) as server, open_producer(server) as producer:
        with pytest.raises(OutcomeUnknown):
            await producer.publish("t", b"one")
        assert server.bodies("t") == [b"one"]


@jumping
async def test_keys_of_the_caller() -> None:
    async with MemoryNSQD() as server, open_producer(server) as producer:
        for _ in range(2):
            await producer.publish("t", b"one", key="order-7")
            await producer.publish_many("t", [b"two", b"three"], key="order-8")
            await (await producer.submit("t", b"four", key="order-9")).wait()
        assert server.bodies("t") == [b"one", b"two", b"three", b"four"]
        for bad in ("", "a b", "\u00e4", "k" * 65):
            with pytest.raises(ValueError, match="invalid key"):
                await producer.publish("t", b"one", key=bad)
        with pytest.raises(ValueError, match="one key for more than 5 MiB"):
            await producer.publish_many("t", [b"x" * (3 << 20)] * 2, key="big")
    async with MemoryNSQD(extensions=()) as server, open_producer(server) as producer:
        with pytest.raises(Unsupported, match="knows no keys"):
            await producer.publish("t", b"one", key="order-7")
        await producer.publish("t", b"one")
        assert server.said()[-1] == "PUB t"


@jumping
async def test_a_quorum_of_nsqds_has_it_once_each() -> None:
    def cut(connection: int, command: str) -> bytes | None:
        if command.startswith("PUB") and connection == 1:
            first.break_connections()
        return None

    async with MemoryNSQD(on_command=cut) as first, MemoryNSQD() as second:
        async with open_producer([first, second], strategy="all") as producer:
            await producer.publish("t", b"one")
        assert (first.bodies("t"), second.bodies("t")) == ([b"one"], [b"one"])


@jumping
async def test_a_ping_is_heard() -> None:
    async with MemoryNSQD() as server, open_producer(server) as producer:
        await producer.ping()
        assert trio.current_time() == pytest.approx(30)
        await server.wait_until(lambda: "NOP" in server.said())


@jumping
async def test_leaving_waits_for_what_was_submitted() -> None:
    async with MemoryNSQD() as server:
        async with open_producer(server) as producer:
            receipts = [await producer.submit("t", b"%d" % number) for number in range(100)]
        assert all(receipt.done and receipt.error is None for receipt in receipts)
        with pytest.raises(Stopped):
            await producer.publish("t", b"late")
        await server.wait_until(lambda: server.connections == 0)


# Several


async def open_all(stack: AsyncExitStack, count: int) -> list[MemoryNSQD]:
    return [await stack.enter_async_context(MemoryNSQD()) for _ in range(count)]


async def try_to_publish(producer: Producer, count: int) -> int:
    failures = 0
    for number in range(count):
        try:
            await producer.publish("t", b"%d" % number)
        except ConnectError:
            failures += 1
    return failures


@jumping
async def test_the_pool_leaves_alone_who_fails() -> None:
    async with AsyncExitStack() as stack:
        servers = await open_all(stack, 2)
        servers[0].is_up = False
        producer = await stack.enter_async_context(open_producer(servers, retry="never"))
        assert await try_to_publish(producer, 12) == 1
        assert len(servers[1].bodies("t")) == 11


@jumping
async def test_in_turn_without_memory() -> None:
    async with AsyncExitStack() as stack:
        servers = await open_all(stack, 3)
        producer = await stack.enter_async_context(open_producer(servers, strategy="round_robin"))
        for number in range(4):
            await producer.publish("t", b"%d" % number)
        assert [server.bodies("t") for server in servers] == [[b"2"], [b"0", b"3"], [b"1"]]


@jumping
async def test_the_first_that_works() -> None:
    async with AsyncExitStack() as stack:
        servers = await open_all(stack, 3)
        servers[0].is_up = False
        producer = await stack.enter_async_context(open_producer(servers, strategy="first", retry="unsent"))
        assert await try_to_publish(producer, 5) == 0
        servers[0].is_up = True
        await trio.sleep(31)
        assert await try_to_publish(producer, 5) == 0
        assert [len(server.bodies("t")) for server in servers] == [5, 5, 0]


@jumping
async def test_quick_ones_are_preferred_and_others_not_forgotten() -> None:
    async with AsyncExitStack() as stack:
        servers = await open_all(stack, 2)
        producer = await stack.enter_async_context(open_producer(servers, strategy="epsilon_greedy"))
        assert await try_to_publish(producer, 100) == 0
        assert sum(len(server.bodies("t")) for server in servers) == 100


@jumping
async def test_to_all() -> None:
    async with AsyncExitStack() as stack:
        servers = await open_all(stack, 3)
        producer = await stack.enter_async_context(open_producer(servers, strategy="all"))
        await producer.publish("t", b"one")
        assert [server.bodies("t") for server in servers] == [[b"one"]] * 3
        servers[2].is_up = False
        servers[2].break_connections()
        await trio.testing.wait_all_tasks_blocked()
        with pytest.raises(PublishError, match="2 of 3 nsqds have it, not 3"):
            await producer.publish("t", b"two")


@jumping
async def test_a_quorum() -> None:
    async with AsyncExitStack() as stack:
        servers = await open_all(stack, 3)
        servers[1].is_up = False
        producer = await stack.enter_async_context(open_producer(servers, strategy=quorum(2)))
        await producer.publish("t", b"one")
        servers[2].is_up = False
        servers[2].break_connections()
        await trio.testing.wait_all_tasks_blocked()
        with pytest.raises(PublishError, match="1 of 3 nsqds have it, not 2"):
            await producer.publish("t", b"two")


@pytest.mark.parametrize(
    ("addresses", "options", "text"),
    [
        ([], {}, "no nsqd to publish to"),
        (["localhost"], {}, "missing port in address"),
        (["a:1"], {"strategy": quorum(2)}, "a quorum of 2, but only 1 nsqds"),
        (["a:1"], {"max_pending": 0}, "invalid max_pending ! 0 < 1"),
    ],
)
@jumping
async def test_invalid_settings_are_refused(addresses: list[str], options: dict[str, object], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        async with open_producer(addresses, **options):  # type: ignore[arg-type]
            pass


# Groups


async def several(stack: AsyncExitStack, count: int) -> list[MemoryNSQD]:
    return [await stack.enter_async_context(MemoryNSQD()) for _ in range(count)]


@jumping
async def test_a_group_goes_to_one_nsqd_and_to_the_next_one_while_that_is_away() -> None:
    async with AsyncExitStack() as stack:
        servers = await several(stack, 3)
        producer = await stack.enter_async_context(open_producer(servers, strategy="by_group"))
        for number in range(30):
            await producer.publish("t", b"ana", group="ana")
            await producer.publish_many("t", [b"ana"], group=b"ana")
            await (await producer.submit("t", b"ana", group="ana", delay=1)).wait()
            await producer.publish("t", b"%d" % number)
        (home,) = (server for server in servers if b"ana" in server.bodies("t"))
        assert all(len(server.bodies("t")) >= 10 for server in servers), "messages without a group go to all"
        home.is_up = False
        home.break_connections()
        await trio.testing.wait_all_tasks_blocked()
        for _ in range(10):
            await producer.publish("t", b"ana", group="ana")
        (second,) = (server for server in servers if server is not home and b"ana" in server.bodies("t"))
        assert second.bodies("t").count(b"ana") == 10
        home.is_up = True
        await trio.sleep(31)
        await producer.publish("t", b"back", group="ana")
        assert b"back" in home.bodies("t")


@jumping
async def test_a_topic_goes_to_one_nsqd() -> None:
    async with AsyncExitStack() as stack:
        servers = await several(stack, 3)
        producer = await stack.enter_async_context(open_producer(servers, strategy="by_topic"))
        topics = [f"t{number}" for number in range(30)]
        for topic in topics:
            for key in ("one", "two", None):
                await producer.publish(topic, b"x", key=key, group=key)
        assert all(sorted(len(server.bodies(topic)) for server in servers) == [0, 0, 3] for topic in topics)
        assert all(any(server.bodies(topic) for topic in topics) for server in servers)


@jumping
async def test_by_group_a_message_without_one_goes_by_its_key() -> None:
    async with AsyncExitStack() as stack:
        servers = await several(stack, 3)
        producer = await stack.enter_async_context(open_producer(servers, strategy="by_group"))
        for number in range(30):
            await producer.publish("t", b"%d" % number, key="k")
        assert sorted(len(server.bodies("t")) for server in servers) == [0, 0, 1]


@jumping
async def test_groups_that_may_belong_to_different_nsqds_are_not_published_together() -> None:
    async with MemoryNSQD() as server:
        groups = [{"nsq-group": "ana"}, {"nsq-group": "ben"}]
        async with open_producer(server) as producer:
            await producer.publish_many("t", [b"1", b"2"], headers=groups)
        async with open_producer(server, strategy="by_group") as producer:
            with pytest.raises(ValueError, match="messages of several groups"):
                await producer.publish_many("t", [b"1", b"2"], headers=groups)
        assert server.bodies("t") == [b"1", b"2"]


@jumping
async def test_a_bad_group_is_refused_before_anything_is_sent() -> None:
    async with MemoryNSQD() as server, open_producer(server) as producer:
        for group in ("", "x" * 129, b"\xff"):
            with pytest.raises(ValueError, match="invalid group"):
                await producer.publish("t", b"1", group=group)
            with pytest.raises(ValueError, match="invalid group"):
                await producer.publish("t", b"1", headers={"nsq-group": group})
            with pytest.raises(ValueError, match="invalid group"):
                await producer.publish_many("t", [b"1"], group=group)
            with pytest.raises(ValueError, match="invalid group"):
                await producer.submit("t", b"1", group=group)
        with pytest.raises(ValueError, match="the group is given twice"):
            await producer.publish("t", b"1", headers={"nsq-group": "ana"}, group="ana")
        assert server.said() == []


@jumping
async def test_where_a_group_would_be_lost_it_is_refused() -> None:
    async with MemoryNSQD(extensions=()) as server, open_producer(server) as producer:
        with pytest.raises(Unsupported, match="knows no headers"):
            await producer.publish("t", b"1", group="ana")
