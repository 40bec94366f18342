"""Requests to authorization servers over real sockets: their contents, the choice of server, and valid answers."""

from __future__ import annotations

import json
import socket
import ssl
import threading
from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import cache
from pathlib import Path

import pytest
import trio
import trio.testing

from nsqd.auth.grants import AuthQuestion, Grant
from nsqd.auth.servers import AT_ONCE, AuthServers, AuthSettings
from tests.support.auth_server import EVERYTHING, AuthServer, granting
from tests.support.certificates import Certificates, make_certificates
from tests.support.http_server import Reply, Request

SECOND = 100.0  # enough patience for a test in which nothing has to time out


class Turns:
    def __init__(self) -> None:
        self.count = 0
        self.is_open = False

    def begin(self) -> float:
        assert not self.is_open
        self.is_open = True
        self.count += 1
        return 0.0

    def finish(self) -> None:
        self.is_open = False


plain_tls = cache(ssl.create_default_context)  # reading the machine's authorities takes longer than a test


def settings(
    *addresses: str,
    posts: bool = False,
    tls: ssl.SSLContext | None = None,
    connect: float = SECOND,
    request: float = SECOND,
) -> AuthSettings:
    return AuthSettings(
        addresses=addresses,
        posts=posts,
        connect_timeout=connect,
        request_timeout=request,
        tls=tls or plain_tls(),
    )


def grants(
    how: AuthSettings,
    *secrets: bytes,
    first: int = 0,
    gone: Sequence[bytes] = (),
    beside: Callable[[], Awaitable[None]] = trio.sleep_forever,
    clock: trio.abc.Clock | None = None,
    limit: float = SECOND,
) -> list[Grant | None]:
    """Return the answers of this many clients that ask at the same time. `beside` runs meanwhile."""
    answers: list[Grant | None] = []

    async def main() -> None:
        turns = Turns()
        servers = AuthServers(how, turns, choose=lambda count: first)
        done = trio.Event()

        def answer(grant: Grant | None) -> None:
            assert turns.is_open
            answers.append(grant)
            if len(answers) == len(secrets) - len(gone):
                done.set()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(servers.run)
            nursery.start_soon(beside)
            for secret in secrets:
                question = AuthQuestion(
                    secret, remote_ip="10.0.0.1", tls=False, common_name="", answer=answer, drop=lambda: None
                )
                question.waits = secret not in gone
                servers.ask(question)
            with trio.fail_after(limit):
                await done.wait()
            nursery.cancel_scope.cancel()

    trio.run(main, clock=clock)
    return answers


@pytest.fixture
def server() -> Iterator[AuthServer]:
    with AuthServer() as server:
        yield server


def test_a_get_with_everything_in_the_query(server: AuthServer) -> None:
    (grant,) = grants(settings(server.address), b"a b")
    assert grant is not None
    (asked,) = server.requests
    assert (asked.method, asked.body) == ("GET", b"")
    assert asked.target == "/auth?common_name=&remote_ip=10.0.0.1&secret=a+b&tls=false"
    assert asked.headers["accept"] == "application/vnd.nsq; version=1.0"
    assert asked.headers["host"] == server.address


def test_a_post_with_everything_in_the_body(server: AuthServer) -> None:
    (grant,) = grants(settings(server.address, posts=True), b"s")
    assert grant is not None
    (asked,) = server.requests
    assert (asked.method, asked.target) == ("POST", "/auth")
    assert asked.headers["content-type"] == "application/json"
    assert asked.headers["accept"] == "application/vnd.nsq; version=1.0"
    assert json.loads(asked.body) == {"common_name": [""], "remote_ip": ["10.0.0.1"], "secret": ["s"], "tls": ["false"]}


@pytest.mark.parametrize(
    ("path", "target"),
    [
        ("/custom", "/custom?common_name=&remote_ip=10.0.0.1&secret=s&tls=false"),
        ("", "/?common_name=&remote_ip=10.0.0.1&secret=s&tls=false"),
        ("/custom?x=1", "/custom?x=1?common_name=&remote_ip=10.0.0.1&secret=s&tls=false"),
    ],
)
def test_a_url_is_used_as_it_is(server: AuthServer, path: str, target: str) -> None:
    grants(settings(f"http://{server.address}{path}"), b"s")
    assert [it.target for it in server.requests] == [target]


def test_a_user_in_the_url_is_told_to_the_server_alone(server: AuthServer, caplog: pytest.LogCaptureFixture) -> None:
    server.answer = lambda asked: Reply(500)
    assert grants(settings(f"http://me:p%40ss@{server.address}/auth"), b"s") == [None]
    assert server.requests[0].headers["authorization"] == "Basic bWU6cEBzcw=="
    assert "answered with status 500" in caplog.text
    assert "p%40ss" not in caplog.text


def test_the_others_are_tried_in_the_order_of_the_ring() -> None:
    order: list[int] = []

    def failing(number: int) -> AuthServer:
        def answer(asked: Request) -> Reply:
            order.append(number)
            return Reply(500) if number else granting(EVERYTHING)

        return AuthServer(answer)

    with failing(0) as a, failing(1) as b, failing(2) as c:
        how = settings(a.address, b.address, c.address)
        (grant,) = grants(how, b"s", first=1)
    assert grant is not None
    assert order == [1, 2, 0]


def test_each_is_tried_once() -> None:
    with AuthServer(lambda asked: Reply(500)) as a, AuthServer(lambda asked: Reply(503)) as b:
        assert grants(settings(a.address, b.address), b"s", first=1) == [None]
        assert (len(a.requests), len(b.requests)) == (1, 1)


@pytest.mark.parametrize(
    "reply",
    [
        Reply(404, b"{}"),
        Reply(204),
        Reply(201, granting(EVERYTHING).body),
        Reply(200, b"garbage"),
        granting(EVERYTHING, ttl=0),
        granting({"topic": "(", "channels": [], "permissions": []}),
    ],
)
def test_an_invalid_reply_grants_nothing(server: AuthServer, reply: Reply) -> None:
    server.answer = lambda asked: reply
    assert grants(settings(server.address), b"s") == [None]


def test_nobody_is_there() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        assert grants(settings(f"127.0.0.1:{unused.getsockname()[1]}"), b"s") == [None]


@pytest.mark.parametrize(
    "address",
    [
        "nobody.invalid",
        "ftp://a/b",
        "http://",
        "http://a:b/",
        "http://[/",
        "127.0.0.1:99999",
        "a..b",
        f"{'a' * 70}:1",
        "é",
    ],
)
def test_an_address_that_cannot_be_asked(address: str, caplog: pytest.LogCaptureFixture) -> None:
    assert grants(settings(address), b"s") == [None]
    assert "internal error" not in caplog.text


@pytest.mark.parametrize("reply", [b"HTTP/1.1 2", b"garbage\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{"])
def test_a_server_that_is_none(reply: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(4096)
                connection.sendall(reply)

        thread = threading.Thread(target=serve)
        thread.start()
        assert grants(settings(f"127.0.0.1:{listener.getsockname()[1]}"), b"s") == [None]
        thread.join()


def test_a_server_that_hangs_is_waited_for_so_long_only(server: AuthServer) -> None:
    clock, request = trio.testing.MockClock(rate=1.0), 100 * SECOND  # as long for the server that answers
    with socket.create_server(("127.0.0.1", 0)) as silent:

        async def let_time_pass() -> None:
            listener = trio.SocketListener(trio.socket.from_stdlib_socket(silent))
            async with await listener.accept() as stream:
                assert await stream.receive_some()
                clock.jump(request - SECOND)
                await trio.testing.wait_all_tasks_blocked()
                assert not server.requests
                clock.jump(SECOND)
                await trio.sleep_forever()

        how = settings(f"127.0.0.1:{silent.getsockname()[1]}", server.address, connect=request, request=request)
        (grant,) = grants(how, b"s", beside=let_time_pass, clock=clock, limit=2 * request)
    assert grant is not None


# Redirects


@pytest.mark.parametrize(("status", "method"), [(301, "GET"), (302, "GET"), (303, "GET"), (307, "POST"), (308, "POST")])
def test_redirects_are_followed_as_by_any_client(server: AuthServer, status: int, method: str) -> None:
    def answer(asked: Request) -> Reply:
        return Reply(status, headers={"Location": "/new?x=y"}) if asked.target == "/auth" else granting(EVERYTHING)

    server.answer = answer
    (grant,) = grants(settings(server.address, posts=True), b"s")
    assert grant is not None
    assert [(it.method, it.target) for it in server.requests] == [("POST", "/auth"), (method, "/new?x=y")]
    assert bool(server.requests[1].body) == (method == "POST")


@pytest.mark.parametrize("location", ["/auth", "", "ftp://a/", "http://[/"])
def test_redirects_that_lead_nowhere(server: AuthServer, location: str) -> None:
    server.answer = lambda asked: Reply(302, headers={"Location": location})
    assert grants(settings(server.address), b"s") == [None]
    assert len(server.requests) <= 11


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("tls"))


def server_side(certificates: Certificates) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates.certificate, certificates.key)
    return context


def trusting(authority: Path) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(authority))


def test_https(certificates: Certificates) -> None:
    with AuthServer(tls=server_side(certificates)) as server:
        how = settings(f"https://localhost:{server.port}/auth", tls=trusting(certificates.authority))
        (grant,) = grants(how, b"s")
    assert grant is not None


def test_an_https_server_that_nobody_vouches_for(certificates: Certificates) -> None:
    with AuthServer(tls=server_side(certificates)) as server:
        assert grants(settings(f"https://localhost:{server.port}/auth"), b"s") == [None]
        assert not server.requests


@pytest.mark.parametrize("posts", [False, True])
def test_a_server_that_wants_https_is_asked_there(certificates: Certificates, posts: bool) -> None:
    with AuthServer(tls=server_side(certificates)) as https:
        refusal = Reply(403, b'{"message": "TLS_REQUIRED", "https_port": %d}' % https.port)
        with AuthServer(lambda asked: refusal) as http:
            how = settings(http.address, posts=posts, tls=trusting(certificates.authority))
            (grant,) = grants(how, b"s")
            assert grant is not None
            asked, again = http.requests[0], https.requests[0]
    assert (again.method, again.target, again.body) == (asked.method, asked.target, asked.body)


@pytest.mark.parametrize("body", [b"", b"no", b'{"https_port":0}', b'{"https_port":"1"}', b'{"https_port":70000}'])
def test_a_refusal_that_names_no_port_is_one(server: AuthServer, body: bytes) -> None:
    server.answer = lambda asked: Reply(403, body)
    assert grants(settings(server.address), b"s") == [None]
    assert len(server.requests) == 1


# Many clients


def test_many_ask_at_once_but_not_all(server: AuthServer) -> None:
    changed = threading.Condition()
    under_way = most = 0

    def answer(asked: Request) -> Reply:
        """Answer none before as many have asked as may ask at once."""
        nonlocal under_way, most
        with changed:
            under_way += 1
            most = max(most, under_way)
            changed.notify_all()
            assert changed.wait_for(lambda: most >= AT_ONCE, SECOND), most
            under_way -= 1
        return granting(EVERYTHING)

    server.answer = answer
    secrets = [b"%d" % number for number in range(3 * AT_ONCE)]
    answers = grants(settings(server.address), *secrets)
    assert None not in answers
    assert sorted(it.secret for it in server.requests) == sorted(it.decode() for it in secrets)
    assert most == AT_ONCE


def test_for_who_has_left_nobody_is_asked(server: AuthServer) -> None:
    grants(settings(server.address), b"gone", b"here", gone=[b"gone"])
    assert [it.secret for it in server.requests] == ["here"]


def test_a_bug_in_one_client_stays_its_own(server: AuthServer, caplog: pytest.LogCaptureFixture) -> None:
    def fail(grant: Grant | None) -> None:
        raise RuntimeError("a bug")

    async def main() -> None:
        servers = AuthServers(settings(server.address), Turns())
        answered, dropped = trio.Event(), trio.Event()
        broken = AuthQuestion(b"b", remote_ip="", tls=False, common_name="", answer=fail, drop=dropped.set)
        whole = AuthQuestion(
            b"w", remote_ip="", tls=False, common_name="", answer=lambda grant: answered.set(), drop=lambda: None
        )
        async with trio.open_nursery() as nursery:
            nursery.start_soon(servers.run)
            servers.ask(broken)
            servers.ask(whole)
            with trio.fail_after(SECOND):
                await answered.wait()
                await dropped.wait()
            nursery.cancel_scope.cancel()

    trio.run(main)
    assert "a bug" in caplog.text
