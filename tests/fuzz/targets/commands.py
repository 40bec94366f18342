"""V2 commands, as a client of nsqd sends them: any answer is fine, but no exception."""

from __future__ import annotations

from random import Random

from tests.fuzz.fuzzing import pieces
from tests.support.node import Node


def run(data: bytes, random: Random) -> None:
    node = Node()
    client = node.client(b"")
    for piece in pieces(data, random):
        client.say(piece)
        client.hear()
    client.handler.end()
    node.pass_time(0.01)
    client.hear()
