"""AUTH between real processes: nsqd, its clients, and authorization servers that work, fail and hang."""

from __future__ import annotations

import json
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from nsqcommon.wire.commands import auth, sub
from tests.support.auth_server import EVERYTHING, AuthServer, granting
from tests.support.brokers import StartNsqd
from tests.support.certificates import make_certificates
from tests.support.client import Client, Refused
from tests.support.http_server import Reply, Request
from tests.support.process import Nsqd, eventually, needs_module
from tests.support.upgraded import UpgradedClient, trusting


@pytest.fixture
def server() -> Iterator[AuthServer]:
    with AuthServer() as server:
        yield server


def guarded(start_nsqd: StartNsqd, *servers: AuthServer, method: str = "get", patience: str = "20s") -> Nsqd:
    addresses = [f"auth-http-address={server.address}" for server in servers]
    return start_nsqd(*addresses, f"auth-http-request-method={method}", f"http-client-request-timeout={patience}")


def log_in(nsqd: Nsqd, secret: bytes = b"secret") -> Client:
    client = nsqd.connect()
    assert json.loads(client.ask(auth(secret)))["permission_count"] == 1
    return client


def refusal(client: Client, *sent: bytes) -> str:
    with pytest.raises(Refused) as refused:
        client.ask(*sent)
    assert client.closes()
    return str(refused.value)


@pytest.mark.parametrize("method", ["get", "post"])
def test_who_is_authorized_publishes_and_consumes(start_nsqd: StartNsqd, server: AuthServer, method: str) -> None:
    server.answer = lambda asked: granting(EVERYTHING, identity="me", identity_url="http://me")
    nsqd = guarded(start_nsqd, server, method=method)
    client = nsqd.connect()
    assert client.identify(feature_negotiation=True)["auth_required"] is True
    assert client.ask(auth(b"s")) == b'{"identity":"me","identity_url":"http://me","permission_count":1}'
    client.publish("t", b"x")
    client.subscribe("t", ready=1)
    client.finish(client.message())
    client.in_step()
    (described,) = nsqd.channel("t")["clients"]
    assert (described["authed"], described["auth_identity"], described["auth_identity_url"]) == (
        True,
        "me",
        "http://me",
    )
    assert [it.method for it in server.requests] == [method.upper()]


def test_without_an_authorization_server_nothing_is_asked_for(nsqd: Nsqd, topic: str) -> None:
    client = nsqd.connect()
    assert client.identify(feature_negotiation=True)["auth_required"] is False
    client.publish(topic, b"x")
    client.subscribe(topic)
    assert "authed" not in nsqd.channel(topic)["clients"][0]
    assert refusal(nsqd.connect(), auth(b"x")) == "E_AUTH_DISABLED AUTH disabled"


def test_trap_50_expressions_are_not_anchored(start_nsqd: StartNsqd, server: AuthServer) -> None:
    server.answer = lambda asked: granting({"topic": "b", "channels": [""], "permissions": ["publish"]})
    nsqd = guarded(start_nsqd, server)
    log_in(nsqd).publish("abc", b"x")
    assert refusal(log_in(nsqd), b"PUB ac\n\0\0\0\1x") == 'E_UNAUTHORIZED AUTH failed for PUB on "ac" ""'


@pytest.mark.parametrize("channels", [[], ["^foo$"]])
def test_trap_50_publishing_needs_a_channel_that_matches_nothing(
    start_nsqd: StartNsqd, server: AuthServer, channels: list[str]
) -> None:
    entry = {"topic": ".*", "channels": channels, "permissions": ["publish", "subscribe"]}
    server.answer = lambda asked: granting(entry)
    nsqd = guarded(start_nsqd, server)
    assert refusal(log_in(nsqd), b"PUB t\n\0\0\0\1x") == 'E_UNAUTHORIZED AUTH failed for PUB on "t" ""'


def test_trap_50_an_answer_that_has_expired_is_asked_for_again_when_it_matters(
    start_nsqd: StartNsqd, server: AuthServer
) -> None:
    server.answer = lambda asked: granting(EVERYTHING, ttl=1)
    nsqd = guarded(start_nsqd, server)
    client = log_in(nsqd)
    client.subscribe("t", ready=1)
    asked = len(server.requests)
    time.sleep(1.1)  # until the grant expires, which nsqd does not show
    client.send(b"NOP\nRDY 2\n")
    client.in_step()
    assert len(server.requests) == asked
    client.publish("t", b"x")
    assert [it.secret for it in server.requests] == ["secret"] * (asked + 1)
    client.message()
    time.sleep(1.1)  # until the new grant expires
    server.answer = lambda asked: Reply(500)
    assert refusal(client, b"PUB t\n\0\0\0\1x") == "E_AUTH_FAILED AUTH failed"


@pytest.mark.parametrize("policy", ["require", "require-verify"])
def test_the_server_learns_whose_certificate_it_is(
    start_nsqd: StartNsqd, server: AuthServer, tmp_path: Path, policy: str
) -> None:
    if policy == "require":
        needs_module("OpenSSL")
    certificates = make_certificates(tmp_path)
    nsqd = start_nsqd(
        f"auth-http-address={server.address}",
        f"tls-cert={certificates.certificate}",
        f"tls-key={certificates.key}",
        f"tls-root-ca-file={certificates.authority}",
        f"tls-client-auth-policy={policy}",
        "https-address=127.0.0.1:0",
    )
    with UpgradedClient(nsqd.tcp) as client:
        assert client.upgrade(tls=trusting(certificates, shows=True), deflate=True)["auth_required"] is True
        client.ask(auth(b"s"))
        client.publish("t", b"x")
    assert server.requests[0].target == "/auth?common_name=localhost&remote_ip=127.0.0.1&secret=s&tls=true"


def test_the_server_learns_whether_who_consumes_over_http_uses_tls(
    start_nsqd: StartNsqd, server: AuthServer, tmp_path: Path
) -> None:
    made = make_certificates(tmp_path)
    nsqd = start_nsqd(
        f"auth-http-address={server.address}",
        f"tls-cert={made.certificate}",
        f"tls-key={made.key}",
        "https-address=127.0.0.1:0",
    )
    context = ssl.create_default_context(cafile=str(made.authority))
    for tls in (None, context):
        headers = {"Authorization": "Bearer s"}
        assert nsqd.http("POST", "/sub?topic=t&channel=c", headers=headers, tls=tls).status == 200
    assert [asked.target.rpartition("&")[2] for asked in server.requests] == ["tls=false", "tls=true"]


def test_one_server_of_several_is_enough(start_nsqd: StartNsqd, server: AuthServer) -> None:
    with AuthServer(lambda asked: Reply(500)) as broken:
        nsqd = guarded(start_nsqd, broken, server)
        for _ in range(8):
            log_in(nsqd)
        assert len(server.requests) == 8


def test_no_server_there(start_nsqd: StartNsqd) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        nsqd = start_nsqd(f"auth-http-address=127.0.0.1:{unused.getsockname()[1]}")
        assert refusal(nsqd.connect(), auth(b"s")) == "E_AUTH_FAILED AUTH failed"
        assert eventually(lambda: "Connection refused" in nsqd.log)


def test_a_server_that_hangs_holds_up_nobody_else(start_nsqd: StartNsqd, server: AuthServer) -> None:
    release = threading.Event()

    def answer(asked: Request) -> Reply:
        if asked.secret == "slow":
            release.wait(30)
        return granting(EVERYTHING)

    server.answer = answer
    nsqd = guarded(start_nsqd, server, patience="2s")
    client = log_in(nsqd)
    try:
        waiting = [nsqd.connect() for _ in range(20)]
        gone = waiting.pop()
        gone.send(auth(b"slow"), b"PUB gone\n\0\0\0\1x")  # it may be granted when the server answers at the end
        for slow in waiting:
            slow.send(auth(b"slow"), b"PUB t\n\0\0\0\1x")
        eventually(lambda: len(server.requests) > 20)
        gone.close()
        client.publish("t", b"y")
        assert log_in(nsqd) is not None
        for slow in waiting:
            assert slow.error() == b"E_AUTH_FAILED AUTH failed"
            assert slow.closes()
    finally:
        release.set()
    assert nsqd.topic("t")["message_count"] == 1


def test_many_at_once(start_nsqd: StartNsqd, server: AuthServer) -> None:
    nsqd = guarded(start_nsqd, server)
    log_in(nsqd).subscribe("t")  # this is what the topic itself demands
    before = nsqd.descriptors
    clients = [nsqd.connect() for _ in range(300)]
    for client in clients:
        client.send(auth(b"s"), sub("t", "c"))
    for number, client in enumerate(clients):
        if number % 3 == 0:
            client.close()
    for number, client in enumerate(clients):
        if number % 3:
            assert client.response().startswith(b"{")
            assert client.response() == b"OK"
            client.close()
    assert eventually(lambda: nsqd.descriptors <= before)
    assert "Traceback" not in nsqd.log


def test_garbage_for_an_answer(start_nsqd: StartNsqd, server: AuthServer) -> None:
    server.answer = lambda asked: Reply(200, b'{"ttl":1,"authorizations":[{"topic":"("}]}')
    nsqd = guarded(start_nsqd, server)
    assert refusal(nsqd.connect(), auth(b"s")) == "E_AUTH_FAILED AUTH failed"
    assert eventually(lambda: "unable to compile" in nsqd.log)
