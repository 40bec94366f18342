"""The one request that daemons make of each other, on real sockets."""

from __future__ import annotations

from functools import partial
from socket import socket

import pytest
import trio

from common.http_client import Answer, HttpClient, HttpFailed, HttpTimeout, get


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


@pytest.mark.parametrize(
    ("host", "port"), [("a..b", 80), ("x" * 70, 80), ("", 80), ("127.0.0.1", 10**30), ("127.0.0.1", -1)]
)
def test_what_is_no_place_at_all(host: str, port: int) -> None:
    with pytest.raises(HttpFailed):
        trio.run(lambda: get(host, port, "/"))


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


class Server:
    """Gives one answer after the other, and hangs up after `stamina` of them on one connection."""

    def __init__(self, *answers: bytes, stamina: int = 1000) -> None:
        self.connections = 0
        self._answers = list(answers)
        self._stamina = stamina

    async def serve(self, stream: trio.SocketStream) -> None:
        self.connections += 1
        for _ in range(self._stamina):
            if not await stream.receive_some(65536):
                return
            await stream.send_all(self._answers.pop(0))


def ask_in_turn(server: Server, questions: int, *, at_once: bool = False) -> tuple[list[Answer], int]:
    """The answers, and how many connections wait for another question."""
    answers: list[Answer] = []

    async def main() -> int:
        client = HttpClient(timeout=10)
        async with trio.open_nursery() as nursery:
            (listener,) = await nursery.start(partial(trio.serve_tcp, server.serve, 0, host="127.0.0.1"))

            async def question() -> None:
                answers.append(await client.get("127.0.0.1", listener.socket.getsockname()[1], "/"))

            async with trio.open_nursery() as all_at_once:
                for _ in range(questions):
                    if at_once:
                        all_at_once.start_soon(question)
                    else:
                        await question()
            idle = client.idle
            await client.close_idle()
            nursery.cancel_scope.cancel()
        return idle

    idle = trio.run(main)
    return answers, idle


ONE = b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n1"
LAST = b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nConnection: close\r\n\r\n2"


def test_a_connection_is_kept_for_the_next_question() -> None:
    server = Server(ONE, ONE, ONE)
    assert ask_in_turn(server, 3) == ([Answer(200, b"1")] * 3, 1)
    assert server.connections == 1


def test_questions_at_once_have_a_connection_each() -> None:
    server = Server(ONE, ONE, ONE)
    assert ask_in_turn(server, 3, at_once=True) == ([Answer(200, b"1")] * 3, 3)
    assert server.connections == 3


def test_a_connection_that_was_closed_meanwhile_is_made_again() -> None:
    server = Server(ONE, ONE, ONE, stamina=1)
    assert ask_in_turn(server, 3)[0] == [Answer(200, b"1")] * 3
    assert server.connections == 3


@pytest.mark.parametrize(
    "answer",
    [LAST, b"HTTP/1.0 200 OK\r\nContent-Length: 1\r\n\r\n2", LAST.replace(b"Connection: close\r\n", b"") + ONE],
)
def test_a_connection_that_cannot_be_used_again_is_not_kept(answer: bytes) -> None:
    server = Server(answer, ONE)
    answers, idle = ask_in_turn(server, 2)
    assert (answers[1], idle, server.connections) == (Answer(200, b"1"), 1, 2)


def test_what_is_busy_when_idle_ones_are_closed_is_closed_afterwards() -> None:
    async def main() -> int:
        client = HttpClient()

        async def serve(stream: trio.SocketStream) -> None:
            await stream.receive_some(65536)
            await client.close_idle()
            await stream.send_all(ONE)

        async with trio.open_nursery() as nursery:
            (listener,) = await nursery.start(partial(trio.serve_tcp, serve, 0, host="127.0.0.1"))
            assert await client.get("127.0.0.1", listener.socket.getsockname()[1], "/") == Answer(200, b"1")
            nursery.cancel_scope.cancel()
        return client.idle

    assert trio.run(main) == 0
