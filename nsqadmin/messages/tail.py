"""Tails a topic: shows messages as they are published, through its own ephemeral channel on each node.

On a topic without channels, ours would be the first: it would get all messages that wait in the topic, and they would
be lost when it ends. So we skip nodes where the topic has no durable channel, and if no node is left, we refuse the
tail.
"""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final

import trio

from nsqadmin.cluster.model import TAIL_PREFIX
from nsqadmin.messages.model import Message, headers_of
from nsqadmin.upstream.subscription import CLOSED, Refused, Subscription
from nsqcommon.wire.extensions import HEADERS
from nsqcommon.wire.frames import BadFrame
from nsqcommon.wire.names import is_ephemeral

if TYPE_CHECKING:
    from nsqadmin.cluster.model import Node, Snapshot

LONGEST: Final = 60.0  # seconds
MOST_A_SECOND: Final = 50  # messages to show; others are skipped
_SAMPLED_FROM: Final = 500.0  # messages a second; above that, nsqd sends only a sample
_MOST: Final = 64 << 20  # bytes of a frame
_NANOSECOND: Final = 1e-9


class CannotTail(Exception):
    """The topic can't be tailed; the message is for users."""


def nodes_to_tail(snapshot: Snapshot, topic: str) -> list[Node]:
    """Return the nodes where a tail does no harm. Raise CannotTail if there are none."""
    found = snapshot.topic(topic)
    if found is None or found.is_inactive:
        raise CannotTail("No node has the topic.")
    safe = {
        row.node
        for channel in found.channels
        if not is_ephemeral(channel.name) and not channel.name.startswith(TAIL_PREFIX)
        for row in channel.nodes
    }
    nodes = [node for node in snapshot.nodes if node.address in safe and node.is_reachable]
    if not nodes:
        raise CannotTail(
            "The topic has no durable channel. A tail would be its only one: it would take all waiting messages, "
            "and lose them when it ends. Create a channel first."
        )
    return nodes


def sample_rate(published: float | None) -> int:
    """Return the percentage of messages that nsqd should send; 0 means all."""
    if published is None or published < _SAMPLED_FROM:
        return 0
    return max(1, min(99, round(100 * MOST_A_SECOND * 2 / published)))


class Tail:
    """One tail, on all nodes."""

    def __init__(
        self,
        topic: str,
        *,
        show: Callable[[Message], Awaitable[None]],
        skip: Callable[[], None],
        trouble: Callable[[str, str], None],
        sample_rate: int = 0,
    ) -> None:
        """`show` gets each message. If there are too many in a second, `skip` is called for the rest.

        `trouble` gets a node that can't be tailed, and the reason. `sample_rate` is in percent; 0 means all.
        """
        self._topic = topic
        self._channel = f"{TAIL_PREFIX}{secrets.token_hex(6)}#ephemeral"
        self._show = show
        self._skip = skip
        self._trouble = trouble
        self._sample_rate = sample_rate
        self._second = 0.0
        self._shown = 0

    async def run(self, nodes: list[Node], *, seconds: float = LONGEST) -> None:
        """Follow the nodes until the time is over, or until cancelled."""
        with trio.move_on_after(min(seconds, LONGEST)):
            async with trio.open_nursery() as nursery:
                for node in nodes:
                    nursery.start_soon(self._follow, node)

    async def _follow(self, node: Node) -> None:
        try:
            stream = await trio.open_tcp_stream(node.broadcast_address, node.tcp_port)
            async with stream:
                await self._consume(stream, node.address)
        except (OSError, trio.BrokenResourceError, BadFrame, ValueError, Refused) as error:
            self._trouble(node.address, str(error) or type(error).__name__)

    async def _consume(self, stream: trio.SocketStream, node: str) -> None:
        options: dict[str, object] = {"extensions": [HEADERS]}  # Go's nsqd ignores it
        if self._sample_rate:
            options["sample_rate"] = self._sample_rate
        asked = Subscription(self._topic, self._channel, "nsqadmin-tail", options, longest=_MOST)
        await stream.send_all(asked.bytes_to_send())
        async for data in stream:
            for message in asked.receive(data):
                await self._show_or_skip(
                    Message(
                        node=node,
                        id=message.id.decode("ascii", "replace"),
                        timestamp=message.timestamp * _NANOSECOND,
                        size=len(message.body),
                        body=bytes(message.body),
                        headers=headers_of(message.headers),
                    )
                )
            if owed := asked.bytes_to_send():
                await stream.send_all(owed)
        raise Refused(CLOSED)

    async def _show_or_skip(self, message: Message) -> None:
        now = trio.current_time()
        if now - self._second >= 1.0:
            self._second, self._shown = now, 0
        self._shown += 1
        if self._shown > MOST_A_SECOND:
            self._skip()
        else:
            await self._show(message)
