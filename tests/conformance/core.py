"""The server of a conversation without sockets: the protocol of nsqd's client, and a broker beside it."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from nsqcommon.wire.limits import Limits
from tests.conformance.script import Script
from tests.conformance.talk import Conversation, Frame
from tests.support.node import RULES, Client, Node, frames

_PATIENCE: Final = 3  # seconds of the node's own clock


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


def talk(script: Script) -> list[str]:
    """Run a script that uses no HTTP."""
    features = replace(RULES.features, snappy=True, deflate=True)
    node = Node(limits=Limits(max_message=1024, max_body=5120), features=features, mem_queue_size=10_000)
    return Conversation(script, lambda: CoreConnection(node), None, clock=lambda: node.broker.timestamp).run("ours")
