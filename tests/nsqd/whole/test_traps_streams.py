"""What ports of nsqd usually miss about TLS, compression and HTTPS. The numbers are rows of docs/reference/nsq-traps.md."""

from __future__ import annotations

import json
import socket
import ssl
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from nsqcommon.streams.layer import StreamError
from nsqcommon.wire.commands import MAGIC, identify, pub
from tests.support.brokers import StartNsqd
from tests.support.certificates import Certificates, make_certificates
from tests.support.client import Client, Disconnected, Refused
from tests.support.process import Nsqd, eventually, needs_module, run_to_end
from tests.support.upgraded import UpgradedClient, trusting

OK = bytes.fromhex("00000006 00000000 4f4b")
StartSecure = Callable[..., Nsqd]


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture
def start_secure(start_nsqd: StartNsqd, certificates: Certificates) -> StartSecure:
    """Return a function that starts a broker with a certificate and these options."""

    def start(*options: str) -> Nsqd:
        if "tls-client-auth-policy=require" in options:
            needs_module("OpenSSL")
        pair = f"tls-cert={certificates.certificate}", f"tls-key={certificates.key}"
        return start_nsqd(*pair, "https-address=127.0.0.1:0", *options)

    return start


@pytest.fixture
def connect() -> Iterator[Callable[[Nsqd], UpgradedClient]]:
    clients: list[UpgradedClient] = []

    def connect(nsqd: Nsqd) -> UpgradedClient:
        clients.append(UpgradedClient(nsqd.tcp))
        return clients[-1]

    yield connect
    for client in clients:
        client.close()


Connect = Callable[[Nsqd], UpgradedClient]


# Vectors


def reply_to(client: Client, **wishes: object) -> None:
    body = json.dumps({"feature_negotiation": True, **wishes}).encode()
    client.send(identify(body))
    size = int.from_bytes(client.raw(4), "big")
    client.raw(size)


def test_the_first_ok_in_snappy(nsqd: Nsqd) -> None:
    client = nsqd.connect()
    reply_to(client, snappy=True)
    expected = bytes.fromhex("ff060000 734e61507059 01 0e0000 26982bcf 00000006000000004f4b")
    assert client.raw(len(expected)) == expected


def test_the_first_ok_in_deflate(nsqd: Nsqd) -> None:
    client = nsqd.connect()
    reply_to(client, deflate=True)
    inflate = zlib.decompressobj(wbits=-15)
    said = b""
    while len(said) < len(OK):
        said += inflate.decompress(client.raw(1))
    assert said == OK


# Traps


def test_trap_45_where_tls_is_required_plain_http_is_refused_byte_by_byte(start_secure: StartSecure) -> None:
    nsqd = start_secure("tls-required")
    body = b'{"message": "TLS_REQUIRED", "https_port": %d}' % nsqd.https_address[1]
    requests = [("GET", "/ping"), ("HEAD", "/stats"), ("POST", "/pub?topic=t"), ("PUT", "/config/x"), ("GET", "/none")]
    for method, path in [*requests, ("OPTIONS", "/"), ("DELETE", "/debug/pprof/")]:
        answer = nsqd.http(method, path, b"body" if method == "POST" else None)
        assert answer.status == 403
        assert answer.body == (b"" if method == "HEAD" else body), (method, path)
        assert answer.headers["content-type"] == "application/json; charset=utf-8"
        assert answer.headers["x-nsq-content-type"] == "nsq; version=1.0"
        assert answer.headers["content-length"] == str(len(body))


def test_trap_45_the_port_is_0_where_there_is_no_https(start_nsqd: StartNsqd, certificates: Certificates) -> None:
    pair = f"tls-cert={certificates.certificate}", f"tls-key={certificates.key}"
    nsqd = start_nsqd(*pair, "tls-required=true", "https-address=")
    assert nsqd.http("GET", "/").body == b'{"message": "TLS_REQUIRED", "https_port": 0}'


def test_a_refused_connection_may_be_used_again(start_secure: StartSecure) -> None:
    nsqd = start_secure("tls-required")
    with socket.create_connection(nsqd.http_address, timeout=10) as client:
        client.sendall(b"POST /pub?topic=t HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\n\r\nbody" * 3)
        said = b""
        while said.count(b"HTTP/1.1 403 Forbidden") < 3:
            data = client.recv(65536)
            assert data
            said += data


@pytest.mark.parametrize("policy", ["require", "require-verify", "nonsense"])
def test_trap_46_any_policy_implies_that_tls_is_required(start_secure: StartSecure, policy: str) -> None:
    nsqd = start_secure(f"tls-client-auth-policy={policy}")
    assert nsqd.http("GET", "/ping").status == 403
    client = nsqd.connect()
    client.send(b"NOP\n")
    assert client.error() == b"E_INVALID cannot NOP in current state (TLS required)"


def test_trap_46_a_policy_that_nobody_knows_asks_for_no_certificate(
    start_secure: StartSecure, connect: Connect, certificates: Certificates
) -> None:
    nsqd = start_secure("tls-client-auth-policy=nonsense")
    client = connect(nsqd)
    client.upgrade(tls=trusting(certificates))
    client.publish("t", b"x")


@pytest.mark.parametrize(
    "garbage", [b"garbage, and no handshake", MAGIC + b"SUB t c\n" * 3, b"\x16\x03\x01\xff\xff" * 9]
)
def test_trap_47_a_failed_upgrade_is_told_in_clear(start_secure: StartSecure, garbage: bytes) -> None:
    nsqd = start_secure()
    client = nsqd.connect()
    assert client.identify(feature_negotiation=True, tls_v1=True)["tls_v1"] is True
    client.send(garbage)
    assert client.error().startswith(b"E_IDENTIFY_FAILED IDENTIFY failed tls: ")
    assert client.closes()


def test_trap_48_deflate_is_one_raw_stream(nsqd: Nsqd, topic: str) -> None:
    client = nsqd.connect()
    reply_to(client, deflate=True)
    deflate, inflate = zlib.compressobj(6, zlib.DEFLATED, -15), zlib.decompressobj(wbits=-15)
    said = b""

    def send(data: bytes) -> None:
        client.send(deflate.compress(data) + deflate.flush(zlib.Z_SYNC_FLUSH))

    for _ in range(3):
        send(b"")  # a Go peer sends this when it has nothing to send
    send(pub(topic, b"a" * 1000))
    send(pub(topic, b"b" * 1000))
    while said != OK * 3:
        said += inflate.decompress(client.raw(1))
    assert nsqd.topic(topic)["message_bytes"] == 2000


@pytest.mark.parametrize(
    "sent", [b"\x01\x08\x00\x00\x00\x00\x00\x00NOP\n", b"\xff\x06\x00\x00sNaPpY\x01\x08\x00\x00\0\0\0\0NOP\n"]
)
def test_trap_48_snappy_needs_its_identifier_and_checksums(nsqd: Nsqd, sent: bytes) -> None:
    client = nsqd.connect()
    reply_to(client, snappy=True)
    client.raw(28)
    client.send(sent)
    assert client.rest() == b""


@pytest.mark.parametrize("compression", ["", "snappy", "deflate"])
def test_trap_49_a_suite_of_tls_1_3_is_a_number(
    start_secure: StartSecure, connect: Connect, certificates: Certificates, compression: str
) -> None:
    nsqd = start_secure()
    client = connect(nsqd)
    client.upgrade(tls=trusting(certificates), snappy=compression == "snappy", deflate=compression == "deflate")
    client.subscribe("t", ready=1)
    client.publish("t", b"x" * 100_000)
    assert client.message().body == b"x" * 100_000
    (described,) = nsqd.channel("t")["clients"]
    assert described["tls"] is True
    assert described["tls_version"] == "TLS1.3"
    assert described["tls_cipher_suite"] in ("Unknown 4865", "Unknown 4866", "Unknown 4867")
    assert (described["tls_negotiated_protocol"], described["tls_negotiated_protocol_is_mutual"]) == ("", True)
    assert (described["snappy"], described["deflate"]) == (compression == "snappy", compression == "deflate")


def test_tls_1_2_has_nsqs_names(start_secure: StartSecure, connect: Connect, certificates: Certificates) -> None:
    nsqd = start_secure()
    client = connect(nsqd)
    context = trusting(certificates)
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    context.set_ciphers("ECDHE-ECDSA-AES128-GCM-SHA256")
    client.upgrade(tls=context)
    client.subscribe("t")
    (described,) = nsqd.channel("t")["clients"]
    assert described["tls_cipher_suite"] == "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256"
    assert described["tls_version"] == "TLS1.2"


# Who says goodbye

POST = b"POST /pub?topic=t HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n\r\nx"
GET = b"GET /stats HTTP/1.1\r\nHost: x\r\n\r\n"


@pytest.mark.parametrize("policy", ["", "require"])
def test_close_notify_ends_a_connection_whose_socket_stays_open(
    start_secure: StartSecure, connect: Connect, certificates: Certificates, policy: str
) -> None:
    nsqd = start_secure(*([f"tls-client-auth-policy={policy}"] if policy else []))
    context = trusting(certificates, shows=True)
    for said in (b"", pub("t", b"x"), b"SUB t c\nRDY 1\n", b"PUB t\n\0\0"):
        client = connect(nsqd)
        client.upgrade(tls=context, deflate=True)
        client.send_last(said)
    for said in (b"", POST[:-1], POST, GET, POST + GET):
        with UpgradedClient(nsqd.https_address, magic=b"") as web:
            web.shake_hands(context)
            web.send_last(said)
    if not policy:  # otherwise /stats wants TLS, too
        assert nsqd.topic("t")["message_count"] == 3  # what came before close_notify counts


# Who needs which certificate


def self_signed(folder: Path) -> tuple[Path, Path]:
    """Make a certificate that no authority has signed."""
    other = make_certificates(folder)
    return other.certificate, other.key


@pytest.mark.parametrize("policy", ["require", "require-verify"])
def test_a_client_without_a_certificate_is_refused(
    start_secure: StartSecure, connect: Connect, certificates: Certificates, policy: str
) -> None:
    nsqd = start_secure(f"tls-client-auth-policy={policy}", f"tls-root-ca-file={certificates.authority}")
    with pytest.raises((StreamError, Disconnected, Refused, ConnectionError)):
        connect(nsqd).upgrade(tls=trusting(certificates))
    with pytest.raises((ssl.SSLError, ConnectionError)):
        nsqd.http("GET", "/ping", tls=trusting(certificates))
    assert eventually(lambda: "certificate" in nsqd.log)


@pytest.mark.parametrize("policy", ["require", "require-verify"])
def test_a_client_with_a_good_one_is_known_by_name(
    start_secure: StartSecure, connect: Connect, certificates: Certificates, policy: str
) -> None:
    nsqd = start_secure(f"tls-client-auth-policy={policy}", f"tls-root-ca-file={certificates.authority}")
    client = connect(nsqd)
    client.upgrade(tls=trusting(certificates, shows=True), snappy=True)
    client.publish("t", b"x" * 100_000)
    client.subscribe("t", ready=1)
    assert client.message().body == b"x" * 100_000
    assert nsqd.http("GET", "/ping", tls=trusting(certificates, shows=True)).body == b"OK"
    answer = nsqd.http("GET", "/stats?format=json", tls=trusting(certificates, shows=True))
    described = answer.json["topics"][0]["channels"][0]["clients"][0]
    assert (described["tls_version"], described["tls_cipher_suite"][:10]) == ("TLS1.3", "Unknown 48")


@pytest.mark.parametrize(("policy", "is_taken"), [("require", True), ("require-verify", False)])
def test_require_takes_a_certificate_that_nobody_vouches_for(
    start_secure: StartSecure,
    connect: Connect,
    certificates: Certificates,
    tmp_path: Path,
    policy: str,
    is_taken: bool,
) -> None:
    nsqd = start_secure(f"tls-client-auth-policy={policy}", f"tls-root-ca-file={certificates.authority}")
    context = trusting(certificates)
    context.load_cert_chain(*self_signed(tmp_path))
    client = connect(nsqd)
    if is_taken:
        client.upgrade(tls=context, deflate=True)
        client.publish("t", b"x")
        assert nsqd.http("POST", "/pub?topic=t", b"y", tls=context).body == b"OK"
    else:
        with pytest.raises((StreamError, Disconnected, Refused, ConnectionError)):
            client.upgrade(tls=context)


def test_a_version_below_the_least_is_refused(
    start_secure: StartSecure, connect: Connect, certificates: Certificates
) -> None:
    nsqd = start_secure("tls-min-version=tls1.3")
    old = trusting(certificates)
    old.maximum_version = ssl.TLSVersion.TLSv1_2
    with pytest.raises((StreamError, Disconnected)):
        connect(nsqd).upgrade(tls=old)
    connect(nsqd).upgrade(tls=trusting(certificates))


@pytest.mark.parametrize("value", ["true", "tcp-https"])
def test_where_tls_is_required(
    start_secure: StartSecure, connect: Connect, certificates: Certificates, value: str
) -> None:
    nsqd = start_secure(f"tls-required={value}")
    client = nsqd.connect()
    client.send(b"PUB t\n")
    assert client.error() == b"E_INVALID cannot PUB in current state (TLS required)"
    connect(nsqd).upgrade(tls=trusting(certificates))
    assert nsqd.http("GET", "/ping").status == (403 if value == "true" else 200)
    assert nsqd.http("GET", "/ping", tls=trusting(certificates)).body == b"OK"


def test_tls_that_is_not_there_is_not_granted(nsqd: Nsqd) -> None:
    client = nsqd.connect()
    assert client.identify(feature_negotiation=True, tls_v1=True)["tls_v1"] is False
    client.send(b"NOP\nFOO\n")
    assert client.error() == b"E_INVALID invalid command FOO"


# How it does not start


@pytest.mark.parametrize(
    ("options", "cause"),
    [
        (
            ["--tls-cert=none.pem", "--tls-key={key}"],
            "failed to build TLS config - open none.pem: no such file or directory",
        ),
        (["--tls-cert={certificate}"], "failed to build TLS config - open : no such file or directory"),
        (
            ["--tls-cert={certificate}", "--tls-required"],
            "failed to build TLS config - open : no such file or directory",
        ),
        (
            ["--tls-cert={certificate}", "--tls-key={key}", "--tls-root-ca-file={key}"],
            "failed to build TLS config - failed to append certificate to pool",
        ),
        (["--tls-required"], "cannot require TLS client connections without TLS key and cert"),
        (["--tls-client-auth-policy=x"], "cannot require TLS client connections without TLS key and cert"),
        (
            ["--tls-root-ca-file=none.pem"],
            "failed to build client TLS config - open none.pem: no such file or directory",
        ),
        (
            ["--auth-http-address=a:1", "--auth-http-request-method=GET"],
            "--auth-http-request-method must be post or get",
        ),
        (
            ["--tls-cert={certificate}", "--tls-key={key}", "--https-address=/a/path"],
            "listen (/a/path) failed - listen tcp: address /a/path: missing port in address",
        ),
    ],
)
def test_what_is_wrong_with_the_files_is_said_at_the_start(
    certificates: Certificates, tmp_path: Path, options: list[str], cause: str
) -> None:
    files = {"certificate": certificates.certificate, "key": certificates.key}
    given = [option.format(**files) for option in options]
    local = ["--tcp-address=127.0.0.1:0", "--http-address=127.0.0.1:0", f"--data-path={tmp_path}"]
    done = run_to_end(*local, *given)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].endswith(f"FATAL: failed to instantiate nsqd - {cause}")


# HTTPS


def test_https_has_the_whole_api(start_secure: StartSecure, certificates: Certificates) -> None:
    nsqd = start_secure()
    tls = trusting(certificates)
    assert nsqd.http("GET", "/ping", tls=tls).body == b"OK"
    assert nsqd.http("POST", "/pub?topic=t", b"x", tls=tls).body == b"OK"
    big = b"y" * 1_000_000
    assert nsqd.http("POST", "/pub?topic=t", big, tls=tls).body == b"OK"
    assert nsqd.http("POST", "/mpub?topic=t", b"1\n2\n3", tls=tls).body == b"OK"
    assert nsqd.http("POST", "/pub?topic=t&defer=x", b"x", tls=tls).json == {"message": "INVALID_DEFER"}
    assert nsqd.http("POST", "/channel/create?topic=t&channel=c", tls=tls).status == 200
    assert nsqd.http("GET", "/stats?format=json", tls=tls).json["topics"][0]["message_count"] == 5
    assert nsqd.http("GET", "/none", tls=tls).json == {"message": "NOT_FOUND"}
    assert eventually(lambda: "200 POST /channel/create?topic=t&channel=c (127.0.0.1:" in nsqd.log)


def https(nsqd: Nsqd, certificates: Certificates) -> ssl.SSLSocket:
    sock = socket.create_connection(nsqd.https_address, timeout=10)
    return trusting(certificates).wrap_socket(sock, server_hostname="localhost")


def read_until(client: socket.socket, end: bytes, count: int = 1) -> bytes:
    said = b""
    while said.count(end) < count:
        data = client.recv(65536)
        assert data, said
        said += data
    return said


def test_one_https_connection_for_both_paths(start_secure: StartSecure, certificates: Certificates) -> None:
    nsqd = start_secure()
    with https(nsqd, certificates) as client:
        for _ in range(3):
            client.sendall(b"POST /pub?topic=t HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n\r\nx")
            read_until(client, b"\r\n\r\nOK")
        one = b"POST /pub?topic=t HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n\r\nx"
        client.sendall(one + b"GET /info HTTP/1.1\r\nHost: x\r\n\r\n" + one)
        said = read_until(client, b"OK", 4)
        assert said.count(b"HTTP/1.1 200 OK") == 3
        assert b'"version":"1.3.0"' in said
        client.sendall(b"GET /ping HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        assert read_until(client, b"\r\n\r\nOK")
        assert client.recv(100) == b""
    assert nsqd.topic("t")["message_count"] == 5


def test_a_big_answer_over_https(start_secure: StartSecure, certificates: Certificates) -> None:
    nsqd = start_secure()
    for number in range(3000):
        if number % 100 == 0:
            nsqd.post(f"/topic/create?topic=topic-with-a-name-{number}")
    for number in range(0, 3000, 100):
        nsqd.post(f"/channel/create?topic=topic-with-a-name-{number}&channel=c")
    answer = nsqd.http("GET", "/stats?format=json", tls=trusting(certificates))
    assert len(answer.json["topics"]) == 30


def test_plain_http_on_the_https_port_gets_a_bare_400(start_secure: StartSecure) -> None:
    nsqd = start_secure()
    for _ in range(3):
        with socket.create_connection(nsqd.https_address, timeout=10) as client:
            client.sendall(b"GET /ping HTTP/1.1\r\nHost: x\r\n\r\n")
            said = b""
            while data := client.recv(65536):
                said += data
        assert said.startswith(b"HTTP/1.0 400 Bad Request\r\n\r\n")


def test_https_connections_leave_nothing_behind(start_secure: StartSecure, certificates: Certificates) -> None:
    nsqd = start_secure()
    tls = trusting(certificates)
    nsqd.http("GET", "/info", tls=tls)
    before = nsqd.descriptors
    for number in range(60):
        if number % 3 == 0:
            nsqd.http("GET", "/info", tls=tls)
        elif number % 3 == 1:
            with https(nsqd, certificates) as client:
                client.sendall(b"GET /info HTTP/1.1\r\nHost: x\r\n\r\nGET /info HT")
        else:
            with socket.create_connection(nsqd.https_address, timeout=10) as plain:
                plain.sendall(b"\x16\x03\x01garbage" * (number % 2))
    assert eventually(lambda: nsqd.descriptors <= before)
    assert "Traceback" not in nsqd.log
