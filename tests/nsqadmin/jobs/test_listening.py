"""Listening to reports: on each node that has the topic, as long as it has it, and again after a break."""

from __future__ import annotations

import struct
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial

import trio
import trio.testing

from nsqadmin.cluster.model import Snapshot, TopicNode
from nsqadmin.jobs.listening import Listener
from nsqcommon.job_reports import TOPIC, JobReport, encode
from nsqcommon.wire.frames import FrameType
from nsqcommon.wire.message import Message, encode_message
from tests.support.picture import node, snapshot, topic

ID = b"0123456789abcdef"


def frame(kind: FrameType, data: bytes) -> bytes:
    return struct.pack(">ii", 4 + len(data), kind) + data


class FakeNsqd:
    """A node that sends what it is told to whoever subscribes, and keeps what it gets."""

    def __init__(self, *bodies: bytes) -> None:
        self.bodies = bodies
        self.heard = b""
        self.connections = 0
        self.begins = b""
        self.hangs = self.hangs_up = False
        self.news = trio.Event()

    async def serve(self, stream: trio.SocketStream) -> None:
        self.connections += 1
        self._tell()
        with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            if self.hangs:
                await trio.sleep_forever()
            await stream.send_all(self.begins)
            for body in self.bodies:
                sent = encode_message(Message(timestamp=1, attempts=1, id=ID, body=body))
                await stream.send_all(frame(FrameType.MESSAGE, sent))
            await stream.send_all(frame(FrameType.RESPONSE, b"_heartbeat_"))
            if self.hangs_up:
                await stream.aclose()
                return
            async for data in stream:
                self.heard += bytes(data)
                self._tell()

    def _tell(self) -> None:
        self.news.set()
        self.news = trio.Event()

    async def until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            await self.news.wait()


def seen(port: int, *, has_topic: bool = True) -> Snapshot:
    address = f"127.0.0.1:{port + 1}"
    topics = (topic(name=TOPIC, nodes=(TopicNode(node=address),)),) if has_topic else ()
    return snapshot(*topics, nodes=(node(address),))


def run(nsqd: FakeNsqd, test: Callable[[Listener, int], Awaitable[None]], *, patience: float = 30.0) -> list[JobReport]:
    told: list[JobReport] = []

    async def main() -> None:
        with trio.fail_after(30):
            async with trio.open_nursery() as nursery:
                (listening,) = await nursery.start(partial(trio.serve_tcp, nsqd.serve, 0, host="127.0.0.1"))
                listener = Listener(told.append, patience=patience)
                nursery.start_soon(listener.run)
                await test(listener, listening.socket.getsockname()[1])
                nursery.cancel_scope.cancel()

    trio.run(main)
    return told


def test_reports_are_read_and_finished_and_heartbeats_answered() -> None:
    nsqd = FakeNsqd(
        encode(JobReport(worker="h:1", events=())), b"no report", encode(JobReport(worker="h:2", events=()))
    )

    async def test(listener: Listener, port: int) -> None:
        listener.see(seen(port))
        await nsqd.until(lambda: nsqd.heard.endswith(b"NOP\n"))
        assert f"SUB {TOPIC} {listener.channel}\n".encode() in nsqd.heard
        assert nsqd.heard.count(b"FIN " + ID) == 3  # also what is no report, or it would come again

    assert [it.worker for it in run(nsqd, test)] == ["h:1", "h:2"]


def test_our_channel_is_ephemeral_and_hidden() -> None:
    channel = Listener(lambda report: None).channel
    assert channel.startswith("nsqadmin_tail_")
    assert channel.endswith("#ephemeral")


def test_without_the_topic_nothing_is_connected() -> None:
    nsqd = FakeNsqd()

    async def test(listener: Listener, port: int) -> None:
        listener.see(seen(port, has_topic=False))
        await trio.testing.wait_all_tasks_blocked()
        assert nsqd.connections == 0

    run(nsqd, test)


def test_a_node_that_hangs_up_is_named_and_listened_to_again() -> None:
    nsqd = FakeNsqd()
    nsqd.hangs_up = True

    async def test(listener: Listener, port: int) -> None:
        listener.see(seen(port))
        await nsqd.until(lambda: nsqd.connections == 2)
        assert listener.troubles.keys() == {f"127.0.0.1:{port + 1}"}
        nsqd.hangs_up = False
        await nsqd.until(lambda: nsqd.heard.endswith(b"NOP\n"))
        assert listener.troubles == {}

    run(nsqd, test)


def test_a_node_that_falls_silent_is_named() -> None:
    """No heartbeat arrives either: it hangs, and what workers report there is missing."""
    nsqd = FakeNsqd()
    nsqd.hangs = True

    async def test(listener: Listener, port: int) -> None:
        listener.see(seen(port))
        await nsqd.until(lambda: nsqd.connections == 2)
        assert "it does not answer" in listener.troubles.values()

    run(nsqd, test, patience=0.05)


def test_a_message_that_is_too_short_ends_its_connection_only() -> None:
    nsqd = FakeNsqd()
    nsqd.begins = frame(FrameType.MESSAGE, b"short")

    async def test(listener: Listener, port: int) -> None:
        listener.see(seen(port))
        await nsqd.until(lambda: nsqd.connections == 2)
        assert "message too short" in str(listener.troubles)

    run(nsqd, test)


def test_a_node_without_the_topic_is_left() -> None:
    nsqd = FakeNsqd()
    nsqd.hangs_up = True

    async def test(listener: Listener, port: int) -> None:
        listener.see(seen(port))
        await nsqd.until(lambda: nsqd.connections == 1)
        listener.see(seen(port, has_topic=False))
        while listener.troubles or listener._followed:  # noqa: ASYNC110  # the listener gives no event
            await trio.sleep(0.01)

    run(nsqd, test)
