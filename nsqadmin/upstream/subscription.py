"""The protocol of a consumer that finishes each message as it comes: bytes in, messages and answers out, nothing awaited."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Final

from nsqcommon.wire import commands
from nsqcommon.wire.frames import FrameReader, FrameType
from nsqcommon.wire.message import decode_message

if TYPE_CHECKING:
    from nsqcommon.wire.message import Message

CLOSED: Final = "the connection was closed"
_READY: Final = 10
_HEARTBEAT: Final = b"_heartbeat_"


class Refused(Exception):
    """nsqd has refused or closed the connection; the message says why."""


class Subscription:
    def __init__(
        self, topic: str, channel: str, user_agent: str, options: Mapping[str, object], *, longest: int
    ) -> None:
        """`options` are further ones to negotiate, and `longest` limits a frame, in bytes."""
        identity = {"client_id": "nsqadmin", "hostname": "nsqadmin", "user_agent": user_agent}
        negotiated = json.dumps({**identity, "feature_negotiation": True, **options}).encode()
        begin = commands.identify(negotiated), commands.sub(topic, channel), commands.rdy(_READY)
        self._owed = [commands.MAGIC, *begin]
        self._frames = FrameReader(longest)

    def bytes_to_send(self) -> bytes:
        """Return what the node has to get now: how to begin, or the answers to what came."""
        owed, self._owed = self._owed, []
        return b"".join(owed)

    def receive(self, data: bytes | bytearray) -> Iterator[Message]:
        """Yield the messages that are complete. Raise Refused, BadFrame or BadHeaders."""
        self._frames.receive(bytes(data))
        while (frame := self._frames.next_frame()) is not None:
            if frame.type is FrameType.ERROR:
                raise Refused(frame.data.decode("utf-8", "replace"))
            if frame.type in (FrameType.MESSAGE, FrameType.HEADED_MESSAGE):
                message = decode_message(frame.data, is_headed=frame.type is FrameType.HEADED_MESSAGE)
                self._owed.append(commands.fin(message.id))
                yield message
            elif frame.data == _HEARTBEAT:
                self._owed.append(commands.nop())
