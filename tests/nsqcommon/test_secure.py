"""TLS in front of another handler, without sockets."""

from __future__ import annotations

import ssl
from functools import partial
from itertools import count
from math import inf

import pytest

from nsqcommon.handshake import TlsServer
from nsqcommon.secure import SecureHandler
from nsqcommon.streams.tls import TlsLayer
from tests.support.certificates import Certificates, make_certificates


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("certificates"))


class Inner:
    """Answers in upper case; `bye` is the last message that it reads."""

    write_timeout = inf
    lingers = False
    aborted = False

    def __init__(self) -> None:
        self.next_deadline = inf
        self.reading = True
        self.finished = False
        self.was_aborted = False
        self.ended = False
        self.ticks: list[float] = []
        self.out: list[bytes] = []

    def receive(self, data: bytes, now: float) -> None:
        self.out.append(data.upper())
        self.finished = data == b"bye"

    def end(self) -> None:
        self.ended = self.finished = True

    def abort(self) -> None:
        self.was_aborted = True

    def bytes_to_send(self) -> list[bytes]:
        out, self.out = self.out, []
        return out

    def sent(self, unsent: int) -> None: ...

    def tick(self, now: float) -> None:
        self.ticks.append(now)


class Server:
    def __init__(self, certificates: Certificates) -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificates.certificate, certificates.key)
        self.inner = Inner()
        self.notes: list[str] = []
        self.tls_server = TlsServer(partial(TlsLayer, context, server_side=True), clock=count(1.0, 0.001).__next__)
        self.handler = SecureHandler(self.tls_server, now=0.0, wake=lambda: None, note=self.notes.append)
        self.handler.inner = self.inner

    def shake_hands_with_another(self, certificates: Certificates) -> None:
        another = self.tls_server.handshake(ends=inf, wake=lambda: None)
        another.receive(client_hello(certificates), 1.0)

    def say(self, data: bytes, now: float = 1.0) -> bytes:
        self.handler.receive(data, now)
        return b"".join(self.handler.bytes_to_send())


def client_hello(certificates: Certificates) -> bytes:
    context = ssl.create_default_context(cafile=str(certificates.authority))
    client = TlsLayer(context, server_side=False, server_hostname="localhost")
    client.handshake(b"")
    return client.pending()


@pytest.fixture
def server(certificates: Certificates) -> Server:
    return Server(certificates)


def shake_hands(server: Server, certificates: Certificates) -> TlsLayer:
    context = ssl.create_default_context(cafile=str(certificates.authority))
    client = TlsLayer(context, server_side=False, server_hostname="localhost")
    answer = b""
    while not client.handshake(answer):
        answer = server.say(client.pending())
    client.decode(server.say(client.pending()))
    return client


def test_what_is_said_in_tls_is_answered_in_tls(server: Server, certificates: Certificates) -> None:
    client = shake_hands(server, certificates)
    assert client.decode(server.say(client.encode(b"hello"))) == b"HELLO"
    assert not server.handler.finished


def test_the_last_answer_is_followed_by_a_goodbye(server: Server, certificates: Certificates) -> None:
    client = shake_hands(server, certificates)
    assert client.decode(server.say(client.encode(b"bye"))) == b"BYE"
    assert client.ended
    assert server.handler.finished


def test_close_notify_ends_the_connection(server: Server, certificates: Certificates) -> None:
    client = shake_hands(server, certificates)
    server.say(client.encode(b"hello") + client.goodbye())
    assert server.inner.ended


def test_who_mistakes_it_for_plain_http_is_told_in_clear(server: Server) -> None:
    assert server.say(b"GET /ping HTTP/1.1\r\n\r\n").startswith(b"HTTP/1.0 400 Bad Request\r\n\r\n")
    assert server.handler.finished
    assert server.inner.was_aborted
    assert server.notes


def test_garbage_is_no_reason_to_say_much(server: Server) -> None:
    assert b"HTTP" not in server.say(b"\x16\x03\x01garbage and more garbage")
    assert server.handler.finished
    server.handler.receive(b"more", 2.0)
    assert server.handler.bytes_to_send() == []


def test_a_handshake_that_never_ends_is_ended(server: Server) -> None:
    server.say(b"\x16")
    assert server.handler.next_deadline == 10.0
    server.handler.tick(10.0)
    assert server.handler.finished
    assert server.handler.next_deadline == inf


def test_a_connection_that_ends_within_its_handshake(server: Server) -> None:
    server.say(b"\x16")
    server.handler.end()
    assert server.handler.finished


def test_the_inner_one_may_finish_before_the_handshake_does(server: Server) -> None:
    """For example, a shutdown ends all connections of the web server."""
    server.say(b"\x16")
    assert not server.handler.finished
    server.inner.finished = True
    assert server.handler.finished


def test_a_handshake_waits_for_its_slot(server: Server, certificates: Certificates) -> None:
    server.shake_hands_with_another(certificates)
    context = ssl.create_default_context(cafile=str(certificates.authority))
    client = TlsLayer(context, server_side=False, server_hostname="localhost")
    client.handshake(b"")
    assert server.say(client.pending()) == b""
    assert server.handler.reading  # to see whether the peer is still there
    slot = server.handler.next_deadline
    assert 1.0 < slot < 1.1
    server.handler.tick(slot)
    assert server.handler.bytes_to_send()
    assert server.handler.reading


def test_deadlines_of_the_inner_one_are_kept(server: Server, certificates: Certificates) -> None:
    shake_hands(server, certificates)
    server.inner.next_deadline = 7.0
    assert server.handler.next_deadline == 7.0
    server.handler.tick(7.0)
    assert server.inner.ticks == [7.0]


def test_a_goodbye_is_remembered_for_another_handler(server: Server, certificates: Certificates) -> None:
    """A publish and another request may come together with it: the other handler comes when the publish is answered."""
    client = shake_hands(server, certificates)
    server.inner.end = lambda: None  # type: ignore[method-assign] # it still owes the answer
    assert not server.handler.has_ended
    server.say(client.goodbye())
    assert server.handler.has_ended
    assert not server.handler.finished
