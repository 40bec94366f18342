"""The one request that daemons make of each other, on real sockets."""

from __future__ import annotations

from functools import partial
from socket import socket

import pytest
import trio

from common.http_client import Answer, HttpFailed, HttpTimeout, get


def ask(reply: bytes, **settings: float) -> tuple[Answer, bytes]:
    """What `get` gives when the server says this, piece by piece, and what the server was asked."""
    heard = b""

    async def serve(stream: trio.SocketStream) -> None:
        nonlocal heard
        heard = await stream.receive_some(65536)
        for place in range(0, len(reply), 7):
            await stream.send_all(reply[place : place + 7])

    async def main() -> Answer:
        async with trio.open_nursery() as nursery:
            (listener,) = await nursery.start(partial(trio.serve_tcp, serve, 0, host="127.0.0.1"))
            port = listener.socket.getsockname()[1]
            answer = await get("127.0.0.1", port, "/x?y=z", headers=(("Accept", "a"),), timeout=10)
            nursery.cancel_scope.cancel()
        return answer

    return trio.run(main), heard


def test_a_question() -> None:
    _, heard = ask(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
    line, host, *rest = heard.split(b"\r\n")
    assert line == b"GET /x?y=z HTTP/1.1"
    assert host.startswith(b"Host: 127.0.0.1:")
    assert rest == [b"Connection: close", b"Accept: a", b"", b""]


@pytest.mark.parametrize(
    ("reply", "status", "body"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello", 200, b"hello"),
        (b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n", 404, b""),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nhel\r\n2\r\nlo\r\n0\r\n\r\n", 200, b"hello"),
        (b"HTTP/1.0 200 OK\r\n\r\nuntil the end", 200, b"until the end"),
        (b"HTTP/1.1 204 No Content\r\n\r\n", 204, b""),
    ],
)
def test_answers(reply: bytes, status: int, body: bytes) -> None:
    answer, _ = ask(reply)
    assert answer == Answer(status, body)


def test_nobody_is_there() -> None:
    with socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
        with pytest.raises(HttpFailed, match="Connection refused"):
            trio.run(lambda: get("127.0.0.1", port, "/"))


async def hang(stream: trio.SocketStream) -> None:
    await trio.sleep_forever()


def test_the_answer_does_not_come_in_time() -> None:
    async def main() -> None:
        async with trio.open_nursery() as nursery:
            (listener,) = await nursery.start(partial(trio.serve_tcp, hang, 0, host="127.0.0.1"))
            with pytest.raises(HttpTimeout):
                await get("127.0.0.1", listener.socket.getsockname()[1], "/", timeout=0.05)
            nursery.cancel_scope.cancel()

    trio.run(main)
