"""The wire behind IDENTIFY: the order of answers, bytes that come early, and how upgrades fail."""

from __future__ import annotations

import json
import ssl
import zlib
from dataclasses import replace
from functools import partial
from math import inf
from pathlib import Path

import pytest
import trio

from nsqcommon.handshake import TlsServer
from nsqcommon.streams.deflate import DeflateLayer
from nsqcommon.streams.layer import Layer
from nsqcommon.streams.snappy import SnappyLayer
from nsqcommon.streams.tls import TlsLayer
from nsqcommon.wire.frames import OK_FRAME
from nsqd.client.upgrade import HANDSHAKE_TIMEOUT
from nsqd.options import Options
from nsqd.tls import server_files
from tests.support.certificates import Certificates, copy_certificate, make_certificates, renewed
from tests.support.node import RULES, Client, Node, frames

PUB = b"PUB t\n\x00\x00\x00\x05hello"


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture
def node(certificates: Certificates) -> Node:
    node = Node(features=replace(RULES.features, tls=True, snappy=True, deflate=True))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates.certificate, certificates.key)
    node.tls_server = TlsServer(partial(TlsLayer, context, server_side=True))
    return node


def identify(**wishes: object) -> bytes:
    body = json.dumps({"feature_negotiation": True, **wishes}).encode()
    return b"IDENTIFY\n" + len(body).to_bytes(4, "big") + body


def said(data: bytes) -> list[bytes]:
    return [frame for _, frame in frames(data)]


def hear(layer: Layer, data: bytes) -> list[bytes]:
    return said(layer.decode(data))


@pytest.mark.parametrize(("wish", "make"), [("snappy", SnappyLayer), ("deflate", lambda: DeflateLayer(6))])
def test_compression_begins_behind_the_reply(node: Node, wish: str, make: type[SnappyLayer]) -> None:
    client, layer = node.client(), make()
    answer = client.ask(identify(**{wish: True}))
    size = 4 + int.from_bytes(answer[:4], "big")
    (reply,) = said(answer[:size])
    assert json.loads(reply)[wish] is True
    assert hear(layer, answer[size:]) == [b"OK"]
    assert hear(layer, client.ask(layer.encode(PUB))) == [b"OK"]
    assert node.topic().message_count == 1
    snapshot = client.protocol.describe()
    assert (snapshot.snappy, snapshot.deflate, snapshot.tls) == (wish == "snappy", wish == "deflate", False)


def test_bytes_behind_identify_belong_to_the_new_stream(node: Node) -> None:
    client, layer = node.client(), SnappyLayer()
    answer = client.ask(identify(snappy=True) + layer.encode(PUB))
    size = 4 + int.from_bytes(answer[:4], "big")
    node.pass_time(0.001)
    assert hear(layer, answer[size:] + client.hear()) == [b"OK", b"OK"]


def shake_hands(client: Client, certificates: Certificates, *, shows_one: bool = False) -> tuple[TlsLayer, bytes]:
    """Return the client's end, and the first bytes inside TLS."""
    context = ssl.create_default_context(cafile=str(certificates.authority))
    if shows_one:
        context.load_cert_chain(certificates.certificate, certificates.key)
    tls = TlsLayer(context, server_side=False, server_hostname="localhost")
    data, done = b"", False
    for _ in range(5):
        done = tls.handshake(data)
        if done:
            return tls, tls.decode(client.ask(tls.pending()))
        client.say(tls.pending())
        client.node.pass_time(0.01)  # until it is this handshake's turn
        data = client.hear()
    raise AssertionError("no handshake")


def test_tls_then_compression_answer_ok_once_each(node: Node, certificates: Certificates) -> None:
    client = node.client()
    (reply,) = said(client.ask(identify(tls_v1=True, deflate=True)))
    assert json.loads(reply)["tls_v1"] is True
    tls, inside = shake_hands(client, certificates)
    layer = DeflateLayer(6)
    assert inside.startswith(OK_FRAME)
    assert hear(layer, inside[len(OK_FRAME) :]) == [b"OK"]
    assert hear(layer, tls.decode(client.ask(tls.encode(layer.encode(PUB))))) == [b"OK"]
    snapshot = client.protocol.describe()
    assert (snapshot.tls, snapshot.tls_version, snapshot.tls_negotiated_protocol_is_mutual) == (True, "TLS1.3", True)


def test_no_heartbeat_slips_between_the_reply_and_the_last_ok(node: Node) -> None:
    client = node.client()
    client.ask(identify(tls_v1=True, heartbeat_interval=1000))
    node.pass_time(HANDSHAKE_TIMEOUT - 0.1)
    assert client.hear() == b""


def test_a_handshake_that_takes_too_long_fails_in_clear(node: Node) -> None:
    client = node.client()
    client.ask(identify(tls_v1=True))
    node.pass_time(HANDSHAKE_TIMEOUT + 0.1)
    assert client.answers() == [b"E_IDENTIFY_FAILED IDENTIFY failed i/o timeout"]
    assert client.handler.finished


def test_garbage_instead_of_a_handshake_fails_in_clear(node: Node) -> None:
    client = node.client()
    client.ask(identify(tls_v1=True))
    (error,) = client.answers(b"SUB topic channel\n" * 3)
    assert error.startswith(b"E_IDENTIFY_FAILED IDENTIFY failed tls: ")
    assert client.handler.finished


def test_who_closes_its_side_instead_of_a_handshake_is_told_in_clear(node: Node) -> None:
    client = node.client()
    client.ask(identify(tls_v1=True))
    client.handler.end()
    assert client.answers() == [b"E_IDENTIFY_FAILED IDENTIFY failed EOF"]
    assert client.handler.finished


def ask_and_end(client: Client, data: bytes) -> bytes:
    """Send this, and close the client's side before the answer: both arrive together. Return all that comes back."""
    client.say(data)
    client.handler.end()
    client.node.turn()
    heard = client.hear()
    client.go_on()
    heard += client.hear()
    assert client.handler.finished
    return heard


@pytest.mark.parametrize("early", [b"", b"\x16\x03\x01\x02\x00"], ids=["nothing", "the beginning of a ClientHello"])
def test_who_closes_its_side_together_with_identify_hears_the_reply_and_why_not(node: Node, early: bytes) -> None:
    reply, error = said(ask_and_end(node.client(), identify(tls_v1=True) + early))
    assert json.loads(reply)["tls_v1"] is True
    assert error == b"E_IDENTIFY_FAILED IDENTIFY failed EOF"


def test_what_was_published_before_is_answered_first(node: Node) -> None:
    answered, reply, error = said(ask_and_end(node.client(), PUB + identify(tls_v1=True)))
    assert (answered, json.loads(reply)["tls_v1"]) == (b"OK", True)
    assert error == b"E_IDENTIFY_FAILED IDENTIFY failed EOF"


def test_garbage_together_with_the_end_is_told_as_garbage(node: Node) -> None:
    _, error = said(ask_and_end(node.client(), identify(tls_v1=True) + b"SUB topic channel\n"))
    assert error.startswith(b"E_IDENTIFY_FAILED IDENTIFY failed tls: ")


@pytest.mark.parametrize(("wish", "make"), [("snappy", SnappyLayer), ("deflate", lambda: DeflateLayer(6))])
@pytest.mark.parametrize("early", [b"", PUB])
def test_who_closes_its_side_together_with_identify_is_answered_compressed(
    node: Node, wish: str, make: type[SnappyLayer], early: bytes
) -> None:
    layer = make()
    answer = ask_and_end(node.client(), identify(**{wish: True}) + (layer.encode(early) if early else b""))
    size = 4 + int.from_bytes(answer[:4], "big")
    assert json.loads(said(answer[:size])[0])[wish] is True
    assert hear(layer, answer[size:]) == [b"OK"] * (2 if early else 1)
    assert node.broker.find("t") is None or node.topic().message_count == 1


@pytest.mark.parametrize("wish", ["snappy", "deflate"])
def test_nonsense_in_a_compressed_stream_ends_it_without_a_word(node: Node, wish: str) -> None:
    client = node.client()
    client.ask(identify(**{wish: True}))
    assert client.ask(b"\xff\xff\xff\xff\xff\xff\xff\xff") == b""
    assert client.handler.aborted


def test_a_publish_that_waits_for_the_log_is_answered_before_the_reply(node: Node) -> None:
    client, layer = node.client(), SnappyLayer()
    receipt_less = client.ask(PUB + identify(snappy=True))
    first, rest = said(receipt_less[:10]), receipt_less[10:]
    assert first == [b"OK"]
    size = 4 + int.from_bytes(rest[:4], "big")
    assert hear(layer, rest[size:]) == [b"OK"]


def test_who_is_upgraded_is_not_upgraded_again(node: Node) -> None:
    client, layer = node.client(), SnappyLayer()
    answer = client.ask(identify(snappy=True))
    layer.decode(answer[4 + int.from_bytes(answer[:4], "big") :])
    (error,) = hear(layer, client.ask(layer.encode(identify(snappy=True))))
    assert error == b"E_IDENTIFY_FAILED connection is already upgraded"


def test_a_bomb_is_taken_in_small_steps(node: Node) -> None:
    client, layer = node.client(), DeflateLayer(6)
    answer = client.ask(identify(deflate=True))
    assert hear(layer, answer[4 + int.from_bytes(answer[:4], "big") :]) == [b"OK"]
    bomb = zlib.compressobj(9, zlib.DEFLATED, -15)
    data = bomb.compress(b"NOP\n" * (1 << 17)) + bomb.flush(zlib.Z_SYNC_FLUSH)
    client.say(data)
    assert not client.handler.reading
    steps = 0
    while client.handler.next_deadline <= node.now + 0.01:
        node.pass_time(0.01)
        steps += 1
    assert 128 <= steps <= 128 + 7  # of 1,024 commands each, and those in which more of it is unpacked
    assert client.handler.reading
    data = bomb.compress(PUB) + bomb.flush(zlib.Z_SYNC_FLUSH)
    assert hear(layer, client.ask(data)) == [b"OK"]


def test_who_is_refused_inside_tls_hears_why_and_a_goodbye(node: Node, certificates: Certificates) -> None:
    client = node.client()
    client.ask(identify(tls_v1=True))
    tls, _ = shake_hands(client, certificates)
    assert said(tls.decode(client.ask(tls.encode(b"BOGUS\n")))) == [b"E_INVALID invalid command BOGUS"]
    assert tls.ended
    assert client.handler.finished
    assert client.hear() == b""


def test_a_goodbye_is_answered(node: Node, certificates: Certificates) -> None:
    client = node.client()
    client.ask(identify(tls_v1=True))
    tls, _ = shake_hands(client, certificates)
    assert tls.decode(client.ask(tls.goodbye())) == b""
    assert tls.ended
    assert client.handler.finished


@pytest.mark.parametrize("word", [b"SUB t c", b"PUB t", b"NOP", b"", b"BOGUS x", b"AUTH"])
def test_where_tls_is_required_nothing_else_goes(node: Node, word: bytes) -> None:
    node.rules = replace(node.rules, tls_required=True)
    client = node.client()
    first = word.split(b" ")[0]
    assert client.answers(word + b"\n\0\0\0\1a") == [b"E_INVALID cannot %b in current state (TLS required)" % first]
    assert client.is_closed


def test_where_tls_is_required_it_suffices(node: Node, certificates: Certificates) -> None:
    node.rules = replace(node.rules, tls_required=True)
    client = node.client()
    client.ask(identify(tls_v1=True))
    tls, _ = shake_hands(client, certificates)
    assert said(tls.decode(client.ask(tls.encode(PUB)))) == [b"OK"]


def test_the_end_of_tls_is_the_end_of_the_client(node: Node, certificates: Certificates) -> None:
    client = node.client()
    client.ask(identify(tls_v1=True))
    tls, _ = shake_hands(client, certificates)
    with pytest.raises(ssl.SSLError):
        tls._tls.unwrap()
    client.say(tls.pending())
    assert client.handler.finished
    assert client.handler.next_deadline == inf


@pytest.mark.parametrize("policy", ["", "require"])
def test_a_renewed_certificate_is_for_new_clients_and_the_others_go_on(
    node: Node, certificates: Certificates, tmp_path: Path, policy: str
) -> None:
    if policy:
        pytest.importorskip("OpenSSL")
    second = renewed(certificates.authority.parent, "second-", "/CN=second")
    ours = Certificates(certificates.authority, tmp_path / "cert.pem", tmp_path / "key.pem")
    copy_certificate(certificates, ours)
    options = Options(tls_cert=str(ours.certificate), tls_key=str(ours.key), tls_client_auth_policy=policy)
    files = server_files(options)
    assert files is not None
    node.tls_server = TlsServer(lambda: files.now(), clock=lambda: node.now)

    def connect() -> tuple[Client, TlsLayer]:
        client = node.client()
        client.ask(identify(tls_v1=True))
        tls, inside = shake_hands(client, certificates, shows_one=bool(policy))
        assert inside == OK_FRAME
        return client, tls

    async def renew() -> None:
        copy_certificate(second, ours)
        for _ in range(2):
            await files.load_if_renewed()

    client, tls = connect()
    assert tls.peer_common_name == "localhost"
    trio.run(renew)
    assert connect()[1].peer_common_name == "second"
    assert hear(tls, client.ask(tls.encode(PUB))) == [b"OK"]
    assert node.topic().message_count == 1
