"""What is being published just now, as a consumer of its own sees it.

The channel is ephemeral and nobody else's. On a topic without any channel it would be the first one: it would get
everything that waits there, and take that along when it goes. So a node where the topic has no lasting channel is left
out, and where all nodes are, it is refused.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import trio

from common.wire import commands
from common.wire.frames import BadFrame, FrameReader, FrameType
from common.wire.message import decode_message
from common.wire.names import is_ephemeral
from nsqadmin.cluster.model import TAIL_PREFIX
from nsqadmin.messages.model import Message

if TYPE_CHECKING:
    from nsqadmin.cluster.model import Node, Snapshot

LONGEST: Final = 60.0  # seconds
MOST_A_SECOND: Final = 50  # messages that are shown
_READY: Final = 10
_SAMPLED_FROM: Final = 500.0  # messages a second: from there on nsqd is asked for a share of them
_MOST: Final = 64 << 20  # bytes of a frame
_NANOSECOND: Final = 1e-9
_HEARTBEAT: Final = b"_heartbeat_"


class CannotTail(Exception):
    """The reason is for people."""


def nodes_to_tail(snapshot: Snapshot, topic: str) -> list[Node]:
    """Where it does no harm. Raises CannotTail."""
    found = snapshot.topic(topic)
    if found is None or found.is_inactive:
        raise CannotTail("No node has the topic.")
    safe = {
        row.node
        for channel in found.channels
        if not is_ephemeral(channel.name) and not channel.name.startswith(TAIL_PREFIX)
        for row in channel.nodes
    }
    nodes = [it for it in snapshot.nodes if it.address in safe and it.is_reachable]
    if not nodes:
        raise CannotTail(
            "The topic has no lasting channel. A tail would be its only one: it would take everything that waits, "
            "and lose it when it ends. Create a channel first."
        )
    return nodes


def sample_rate(published: float | None) -> int:
    """How much of them nsqd should send, in percent; 0 is all of them."""
    if published is None or published < _SAMPLED_FROM:
        return 0
    return max(1, min(99, round(100 * MOST_A_SECOND * 2 / published)))


class Tail:
    """Until its time is over or it is cancelled. `show` gets a message, `skip` counts one that is too many, and
    `trouble` a node that cannot be followed and why."""

    def __init__(
        self,
        topic: str,
        *,
        show: Callable[[Message], None],
        skip: Callable[[], None],
        trouble: Callable[[str, str], None],
        sample_rate: int = 0,
    ) -> None:
        self._topic = topic
        self._channel = f"{TAIL_PREFIX}{secrets.token_hex(6)}#ephemeral"
        self._show = show
        self._skip = skip
        self._trouble = trouble
        self._sample_rate = sample_rate
        self._second = 0.0
        self._shown = 0

    async def run(self, nodes: list[Node], *, seconds: float = LONGEST) -> None:
        with trio.move_on_after(min(seconds, LONGEST)):
            async with trio.open_nursery() as nursery:
                for node in nodes:
                    nursery.start_soon(self._follow, node)

    async def _follow(self, node: Node) -> None:
        try:
            stream = await trio.open_tcp_stream(node.broadcast_address, node.tcp_port)
            async with stream:
                await self._subscribe(stream)
                await self._consume(stream, node.address)
        except (OSError, trio.BrokenResourceError, BadFrame, _Refused) as error:
            self._trouble(node.address, str(error) or type(error).__name__)

    async def _subscribe(self, stream: trio.SocketStream) -> None:
        identity: dict[str, object] = {
            "client_id": "nsqadmin",
            "hostname": "nsqadmin",
            "user_agent": "nsqadmin-tail",
            "feature_negotiation": True,
        }
        if self._sample_rate:
            identity["sample_rate"] = self._sample_rate
        await stream.send_all(
            b"".join(
                (
                    commands.MAGIC,
                    commands.identify(json.dumps(identity).encode()),
                    commands.sub(self._topic, self._channel),
                    commands.rdy(_READY),
                )
            )
        )

    async def _consume(self, stream: trio.SocketStream, node: str) -> None:
        frames = FrameReader(_MOST)
        async for data in stream:
            frames.receive(bytes(data))
            answers = []
            while (frame := frames.next_frame()) is not None:
                if frame.type is FrameType.ERROR:
                    raise _Refused(frame.data.decode("utf-8", "replace"))
                if frame.type is FrameType.MESSAGE:
                    message = decode_message(frame.data)
                    answers.append(commands.fin(message.id))
                    self._seen(
                        Message(
                            node=node,
                            id=message.id.decode("ascii", "replace"),
                            timestamp=message.timestamp * _NANOSECOND,
                            size=len(message.body),
                            body=bytes(message.body),
                        )
                    )
                elif frame.data == _HEARTBEAT:
                    answers.append(commands.nop())
            if answers:
                await stream.send_all(b"".join(answers))
        raise _Refused("the connection was closed")

    def _seen(self, message: Message) -> None:
        now = trio.current_time()
        if now - self._second >= 1.0:
            self._second, self._shown = now, 0
        self._shown += 1
        if self._shown > MOST_A_SECOND:
            self._skip()
        else:
            self._show(message)


class _Refused(Exception):
    """nsqd has said why not."""
