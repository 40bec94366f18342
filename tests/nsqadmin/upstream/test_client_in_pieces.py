"""An answer that is read piece by piece comes in small pieces, whatever a node has packed into it."""

from __future__ import annotations

import gzip

import trio

from nsqadmin.options import Options
from nsqadmin.upstream.client import opened
from tests.nsqadmin.upstream.test_token import Node, answer, listening


def test_a_bomb_comes_in_small_pieces() -> None:
    body = b"\n" * (8 << 20)
    node = Node(answer(b"200 OK", gzip.compress(body), b"Content-Encoding: gzip"))

    async def test() -> list[bytes]:
        with trio.fail_after(30):
            async with (
                listening(node) as (port,),
                opened(Options(lookupd_http_address=("127.0.0.1:1",))) as upstream,
                upstream.stream(f"127.0.0.1:{port}", "/topic/read?topic=t") as streamed,
            ):
                return [piece async for piece in streamed.pieces]

    pieces = trio.run(test)
    assert b"".join(pieces) == body
    assert max(map(len, pieces)) <= 65536
