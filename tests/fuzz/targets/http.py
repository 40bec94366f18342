"""HTTP on the fast path for publishing, which hands every other request over unread."""

from __future__ import annotations

from random import Random

from tests.fuzz.fuzzing import pieces
from tests.nsqd.http.test_quick import Client


def run(data: bytes, random: Random) -> None:
    client = Client()
    for piece in pieces(data, random):
        client.send(piece)
    client.quick.end()
    client.finish_turn()
    client.quick.abort()
