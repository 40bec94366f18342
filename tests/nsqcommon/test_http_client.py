"""The daemons' HTTP client on real sockets."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from socket import socket
from ssl import create_default_context
from typing import Any

import pytest
import trio
import trio.testing

from nsqcommon.http_client import HttpClient, HttpFailed, HttpTimeout, get, open_answer
from nsqcommon.wire.http_exchange import Answer


def ask(reply: bytes, **settings: float) -> tuple[Answer, bytes]:
    """Let the server send this, piece by piece, and return the result of `get` and the request."""
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
    """Gives one answer after the other, and closes each connection after `stamina` of them."""

    def __init__(self, *answers: bytes, stamina: int = 1000) -> None:
        self.connections = 0
        self.answers = list(answers)
        self._stamina = stamina

    async def serve(self, stream: trio.SocketStream) -> None:
        self.connections += 1
        for _ in range(self._stamina):
            if not await stream.receive_some(65536):
                return
            await stream.send_all(self.answers.pop(0))


def ask_in_turn(server: Server, questions: int, *, at_once: bool = False) -> tuple[list[Answer], int]:
    """Return the answers, and how many connections are kept for another request."""
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


# Requests of any method, and whole URLs, on kept connections


class Recorder(Server):
    """A server that also keeps the requests."""

    def __init__(self, *answers: bytes, stamina: int = 1000) -> None:
        super().__init__(*answers, stamina=stamina)
        self.heard: list[bytes] = []

    async def serve(self, stream: trio.SocketStream) -> None:
        async def receive_some(most: int) -> bytes:
            data = bytes(await real(most))
            if data:
                self.heard.append(data)
            return data

        real = stream.receive_some
        stream.receive_some = receive_some  # type: ignore[method-assign,assignment]
        await super().serve(stream)


def post(server: Recorder, bodies: Sequence[bytes], *, pause: float = 0.0, **settings: Any) -> list[Answer]:
    """Post each body, with a pause after it, and return the answers."""

    async def main() -> list[Answer]:
        client = HttpClient(timeout=10, **settings)
        answers = []
        async with trio.open_nursery() as nursery:
            (listener,) = await nursery.start(partial(trio.serve_tcp, server.serve, 0, host="127.0.0.1"))
            url = f"http://127.0.0.1:{listener.socket.getsockname()[1]}/in"
            for body in bodies:
                answers.append(  # sequentially
                    await client.fetch("POST", url, tls=create_default_context(), headers=[("A", "b")], body=body)
                )
                await trio.sleep(pause)
            await client.close_idle()
            nursery.cancel_scope.cancel()
        return answers

    return trio.run(main)


def test_a_post_uses_the_connection_of_the_one_before() -> None:
    server = Recorder(ONE, ONE)
    assert post(server, [b"x", b"yy"]) == [Answer(200, b"1")] * 2
    assert server.connections == 1
    lines = [heard.split(b"\r\n") for heard in server.heard]
    assert [(it[0], it[-1]) for it in lines] == [(b"POST /in HTTP/1.1", b"x"), (b"POST /in HTTP/1.1", b"yy")]
    assert b"A: b" in lines[0]
    assert b"Content-Length: 2" in lines[1]
    assert b"Connection: close" not in lines[0]


def test_a_post_goes_elsewhere_when_its_connection_has_gone() -> None:
    server = Recorder(ONE, ONE, stamina=1)
    assert post(server, [b"x", b"y"]) == [Answer(200, b"1")] * 2
    assert server.connections == 2


def test_a_connection_that_was_idle_for_long_is_not_used_again() -> None:
    server = Recorder(ONE, ONE)
    post(server, [b"x", b"y"], pause=0.02, idle_timeout=0.001)
    assert server.connections == 2


@pytest.mark.parametrize("path", ["/a b", "/\u00fc", "/a\x1f"])
def test_a_url_that_would_not_be_one_line_of_a_request_is_refused(path: str) -> None:
    with pytest.raises(HttpFailed, match="not a usable HTTP URL"):
        trio.run(lambda: HttpClient(timeout=10).fetch("GET", "http://127.0.0.1:1" + path, tls=create_default_context()))


def test_a_body_that_nobody_wants_is_read_and_dropped() -> None:
    server = Recorder(ONE, ONE)
    assert post(server, [b"x", b"y"], keeps_bodies=False) == [Answer(200, b"")] * 2
    assert server.connections == 1


def test_redirects_keep_or_drop_the_body_as_their_status_says() -> None:
    elsewhere = b"HTTP/1.1 %d x\r\nLocation: /other\r\nContent-Length: 0\r\n\r\n"
    server = Recorder(elsewhere % 307, elsewhere % 303, ONE)
    assert post(server, [b"x"]) == [Answer(200, b"1")]
    assert [heard.split(b"\r\n")[0] for heard in server.heard] == [
        b"POST /in HTTP/1.1", b"POST /other HTTP/1.1", b"GET /other HTTP/1.1",
    ]  # fmt: skip
    assert [heard.rpartition(b"\r\n")[2] for heard in server.heard] == [b"x", b"x", b""]


def test_a_redirect_to_another_host_takes_no_secret_along() -> None:
    here, there = Recorder(), Recorder(ONE)
    secrets = [("A", "b"), ("authorization", "Bearer x"), ("Cookie", "y")]

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            (first,) = await nursery.start(partial(trio.serve_tcp, here.serve, 0, host="127.0.0.1"))
            (second,) = await nursery.start(partial(trio.serve_tcp, there.serve, 0, host="127.0.0.2"))
            location = f"http://127.0.0.2:{second.socket.getsockname()[1]}/in"
            for place in ("/on-the-same-host", location):
                here.answers.append(f"HTTP/1.1 307 x\r\nLocation: {place}\r\nContent-Length: 0\r\n\r\n".encode())
            url = f"http://127.0.0.1:{first.socket.getsockname()[1]}/in"
            client = HttpClient(timeout=10)
            await client.fetch("GET", url, tls=create_default_context(), headers=secrets)
            await client.close_idle()
            nursery.cancel_scope.cancel()

    trio.run(main)
    assert [(b"authorization" in heard, b"Cookie" in heard) for heard in here.heard] == [(True, True)] * 2
    assert [(b"A: b" in heard, b"authorization" in heard, b"Cookie" in heard) for heard in there.heard] == [
        (True, False, False)
    ]


# Answers that are read as they come


def read_on(reply: Sequence[bytes], *, patience: float = 10.0, pieces: int = 1000) -> tuple[int, list[bytes]]:
    """Return the status and the pieces that `open_answer` yields while a server sends piece by piece."""

    async def serve(stream: trio.SocketStream) -> None:
        await stream.receive_some(65536)
        for piece in reply:
            await stream.send_all(piece)
            await trio.sleep(0.01)
        if not reply:
            await trio.sleep_forever()

    status = 0
    found: list[bytes] = []
    trouble: list[HttpFailed] = []

    async def main() -> None:
        nonlocal status
        async with trio.open_nursery() as nursery:
            (listener,) = await nursery.start(partial(trio.serve_tcp, serve, 0, host="127.0.0.1"))
            port = listener.socket.getsockname()[1]
            try:
                async with open_answer("127.0.0.1", port, "/x", patience=patience) as answer:
                    status = answer.status
                    while len(found) < pieces and (data := await answer.next_piece()):
                        found.append(data)
            except HttpFailed as error:
                trouble.append(error)
            nursery.cancel_scope.cancel()

    trio.run(main)
    for error in trouble:
        raise error
    return status, found


HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


def test_a_long_answer_comes_in_pieces() -> None:
    status, pieces = read_on([HEAD[:20], HEAD[20:], b"3\r\nabc\r\n", b"2\r\nde\r\n0\r\n\r\n"])
    assert (status, pieces) == (200, [b"abc", b"de"])


def test_a_long_answer_without_a_length_ends_with_the_connection() -> None:
    assert read_on([b"HTTP/1.1 200 OK\r\n\r\n", b"abc", b"de"]) == (200, [b"abc", b"de"])


def test_a_reader_may_stop_before_the_end() -> None:
    assert read_on([HEAD, b"3\r\nabc\r\n", b"3\r\ndef\r\n"], pieces=1) == (200, [b"abc"])


@pytest.mark.parametrize("reply", [[HEAD, b"3\r\nab"], [HEAD[:10]]])
def test_an_answer_that_breaks_off_is_none(reply: Sequence[bytes]) -> None:
    with pytest.raises(HttpFailed, match="connection closed within the response"):
        read_on(reply)


def test_patience_ends() -> None:
    with pytest.raises(HttpTimeout):
        read_on([], patience=0.05)


def test_nobody_answers_where_nobody_is() -> None:
    async def main() -> None:
        async with open_answer("127.0.0.1", 1, "/"):
            raise AssertionError("nobody is there")

    with pytest.raises(HttpFailed, match="Connection refused"):
        trio.run(main)


# A dial that hangs


def ask_while_a_dial_hangs(*, cancelled: bool) -> tuple[list[Answer], int]:
    """Send two requests: the first uses the only connection that is accepted, the second dials meanwhile."""
    answers: list[Answer] = []
    fillers: list[trio.SocketStream] = []

    async def main() -> int:
        listener = trio.socket.socket()
        await listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        host, port = listener.getsockname()
        client = HttpClient()

        async def question() -> None:
            answers.append(await client.get(host, port, "/"))

        with trio.fail_after(30):
            async with trio.open_nursery() as first, trio.open_nursery() as second:
                first.start_soon(question)
                connection = trio.SocketStream((await listener.accept())[0])
                await connection.receive_some(65536)
                # The queue is full, and further dials get no answer.
                fillers.append(await trio.open_tcp_stream(host, port))
                second.start_soon(question)
                await trio.testing.wait_all_tasks_blocked(0.01)
                await connection.send_all(ONE)
                if cancelled:
                    await trio.testing.wait_all_tasks_blocked()
                    second.cancel_scope.cancel()
                else:
                    await connection.receive_some(65536)
                    await connection.send_all(ONE)
        idle = client.idle
        await client.close_idle()
        for stream in (connection, *fillers):
            await trio.aclose_forcefully(stream)
        listener.close()
        return idle

    return answers, trio.run(main)


def test_a_dial_that_hangs_is_given_up_for_a_connection_that_is_free() -> None:
    answers, idle = ask_while_a_dial_hangs(cancelled=False)
    assert answers == [Answer(200, b"1")] * 2
    assert idle == 1


def test_a_question_that_is_cancelled_with_its_new_connection_leaves_nothing_behind() -> None:
    answers, idle = ask_while_a_dial_hangs(cancelled=True)
    assert answers == [Answer(200, b"1")]
    assert idle == 0
