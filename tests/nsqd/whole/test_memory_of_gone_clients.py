"""A client that disconnects leaves nothing that only the garbage collector would find, because that looks seldom.

A crowd of TLS sessions that waits for it takes the heap apart: see tests/nsqd/whole/test_handshakes.py.
"""

from __future__ import annotations

import gc
import json
import socket
from dataclasses import replace

import pytest

from nsqcommon.handshake import TlsServer
from nsqcommon.poller import Connection
from nsqcommon.wire.commands import auth, identify, pub, rdy, sub
from nsqcommon.wire.unfinished import UnfinishedBodies
from nsqd.client.tcp import client_maker
from nsqd.http import QuickHttp, QuickRoutes, SecureHandler
from nsqd.http.publishing import Publishing
from nsqd.options import Options
from nsqd.tls import server_files
from tests.nsqd.http.conftest import LIMITS
from tests.support.certificates import make_certificates
from tests.support.node import RULES, Node

ROUNDS = 20


@pytest.fixture(scope="module", autouse=True)
def frozen() -> None:
    """Have the collector look only at what these tests make, not at all that earlier ones have left."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> TlsServer:
    made = make_certificates(tmp_path_factory.mktemp("certificates"))
    files = server_files(Options(tls_cert=str(made.certificate), tls_key=str(made.key)))
    assert files is not None
    return TlsServer(files.now)


def wish(**wishes: object) -> bytes:
    return identify(json.dumps({"feature_negotiation": True, **wishes}).encode())


@pytest.mark.parametrize(
    "said",
    [
        b"",
        sub("t", "c") + rdy(5),
        pub("t", b"hello"),
        b"PUB t\n\0\0\1\0half a body",
        b"no command\n",
        wish(tls_v1=True),
        wish(tls_v1=True) + b"no TLS at all",
        wish(snappy=True),
        wish(deflate=True) + b"no deflate",
        auth(b"secret"),
    ],
)
def test_a_client_that_has_gone_is_gone(tls: TlsServer, said: bytes) -> None:
    node = Node(features=replace(RULES.features, tls=True, snappy=True, deflate=True))
    make = client_maker(node.broker, node.rules, tls, lambda question: None, UnfinishedBodies(1 << 20))

    def come_and_go() -> None:
        ours, theirs = socket.socketpair()
        with ours, theirs:
            connection = Connection(ours, "127.0.0.1:1")
            connection.handler = make(connection, lambda: None)
            connection.handler.receive(b"  V2" + said, node.now)
            node.turn()
            connection.handler.bytes_to_send()
            connection.handler.abort()
            del connection.handler  # as the poller does
        node.turn()

    assert garbage_of(come_and_go) < ROUNDS


@pytest.mark.parametrize("said", [b"", b"\x16", b"garbage instead of a handshake"])
def test_an_https_connection_that_has_gone_is_gone(tls: TlsServer, said: bytes) -> None:
    node = Node()
    routes = QuickRoutes(node.broker, Publishing(node.broker, LIMITS, max_defer_ms=1000))

    def come_and_go() -> None:
        secure = SecureHandler(tls, now=node.now, wake=lambda: None, note=lambda text: None)

        def hand_off(received: bytes) -> None:
            raise AssertionError("there was no request")

        secure.inner = QuickHttp(routes, hand_off=hand_off, wake=lambda: None, common_name=secure.common_name)
        secure.receive(said, node.now)
        secure.bytes_to_send()
        secure.abort()

    assert garbage_of(come_and_go) < ROUNDS


def garbage_of(come_and_go: object) -> int:
    """Return how many objects the collector finds after this many clients."""
    assert callable(come_and_go)
    come_and_go()
    gc.collect()
    gc.disable()
    try:
        for _ in range(ROUNDS):
            come_and_go()
        return gc.collect()
    finally:
        gc.enable()
