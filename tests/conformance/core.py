"""The server of a conversation without sockets: nsqd's protocol beside a broker, and nsqlookupd's beside a registry."""

from __future__ import annotations

import socket
from dataclasses import replace
from typing import Final

from nsqcommon.wire.frames import FrameType
from nsqcommon.wire.limits import SizeLimits
from nsqcommon.wire.lookup import PeerAddress, ReplyReader
from nsqlookupd.protocol import LookupProtocol, ProtocolState
from nsqlookupd.registry import Registry
from tests.conformance.script import Script
from tests.conformance.talk import Conversation, Frame
from tests.support.node import RULES, Client, Node, frames

_PATIENCE: Final = 3  # seconds of the node's own clock
_LOOKUPD: Final = PeerAddress("127.0.0.1", socket.gethostname(), 4161, 4160, "1.3.0")


class CoreConnection:
    def __init__(self, node: Node) -> None:
        self._node = node
        self._client = Client(node)
        node.clients.append(self._client)
        self._frames: list[Frame] = []

    def send(self, data: bytes) -> None:
        self._client.say(data)
        self._client.go_on()

    def no_more(self) -> None:
        self._client.handler.end()
        self._node.turn()

    def frame(self) -> Frame | None:
        """Return the next frame. Time passes only when there is none."""
        for _ in range(_PATIENCE):
            if not self._frames:
                self._frames += frames(self._client.hear())
            if self._frames:
                return self._frames.pop(0)
            if self._client.is_closed:
                return None
            self._node.pass_time(1)
        raise TimeoutError


class LookupConnection:
    def __init__(self, registry: Registry) -> None:
        self._protocol = LookupProtocol(registry, id="127.0.0.1:40000", address=_LOOKUPD, note=lambda *said: None)
        self._replies = ReplyReader(1 << 20)

    def send(self, data: bytes) -> None:
        self._protocol.receive(data)
        while self._protocol.step():
            pass

    def no_more(self) -> None:
        self._protocol.end()

    def frame(self) -> Frame | None:
        self._replies.receive(b"".join(self._protocol.bytes_to_send()))
        if (reply := self._replies.next_reply()) is not None:
            return FrameType.RESPONSE, reply
        if self._protocol.state is ProtocolState.CLOSED:
            return None
        raise TimeoutError


def can_talk(script: Script) -> bool:
    return script.server in ("nsqd", "nsqlookupd") and not script.needs_http


def talk(script: Script) -> list[str]:
    """Run a script that `can_talk` allows."""
    if script.server == "nsqlookupd":
        registry = Registry(inactive_timeout=300, tombstone_lifetime=45)
        ports = _LOOKUPD.tcp_port, _LOOKUPD.http_port
        return Conversation(script, lambda: LookupConnection(registry), None, ports=ports).run("ours")
    features = replace(RULES.features, snappy=True, deflate=True)
    node = Node(limits=SizeLimits(max_message=1024, max_body=5120), features=features, mem_queue_size=10_000)
    return Conversation(script, lambda: CoreConnection(node), None, clock=lambda: node.broker.turn.timestamp).run(
        "ours"
    )
