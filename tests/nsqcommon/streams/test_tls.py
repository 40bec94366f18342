"""TLS without sockets: two layers that talk to each other."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest

from nsqcommon.streams.any_certificate import layer_maker
from nsqcommon.streams.layer import StreamError
from nsqcommon.streams.tls import SecureLayer, TlsLayer
from tests.support.certificates import Certificates, make_certificates


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    folder: Path = tmp_path_factory.mktemp("certificates")
    return make_certificates(folder)


def server_of(certificates: Certificates, *, verify: bool = False) -> TlsLayer:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates.certificate, certificates.key)
    if verify:
        context.load_verify_locations(certificates.authority)
        context.verify_mode = ssl.CERT_REQUIRED
    return TlsLayer(context, server_side=True)


def client_of(certificates: Certificates, *, shows: bool = False, version: ssl.TLSVersion | None = None) -> TlsLayer:
    context = ssl.create_default_context(cafile=str(certificates.authority))
    if shows:
        context.load_cert_chain(certificates.certificate, certificates.key)
    if version is not None:
        context.maximum_version = version
    return TlsLayer(context, server_side=False, server_hostname="localhost")


def shake_hands(server: SecureLayer, client: SecureLayer) -> None:
    to_client = to_server = b""
    for _ in range(10):
        client_done = client.handshake(to_client)
        to_server = client.pending()
        server_done = server.handshake(to_server)
        to_client = server.pending()
        if client_done and server_done:
            client.decode(to_client)
            return
    raise AssertionError("no handshake after ten rounds")


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_what_one_side_says_the_other_hears(certificates: Certificates, version: ssl.TLSVersion) -> None:
    server, client = server_of(certificates), client_of(certificates, version=version)
    shake_hands(server, client)
    for size in (1, 16 << 10, 300_000):
        assert server.decode(client.encode(bytes(size))) == bytes(size)
        assert client.decode(server.encode(bytes(size))) == bytes(size)


def test_who_and_what_is_known_afterwards(certificates: Certificates) -> None:
    server, client = server_of(certificates, verify=True), client_of(certificates, shows=True)
    shake_hands(server, client)
    assert server.peer_common_name == "localhost"
    assert server.version == "TLS1.3"
    assert server.cipher_suite == "Unknown 4866"


def test_a_suite_that_nsq_has_a_name_for_gets_it(certificates: Certificates) -> None:
    context = ssl.create_default_context(cafile=str(certificates.authority))
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    context.set_ciphers("ECDHE-ECDSA-AES128-GCM-SHA256")
    server, client = server_of(certificates), TlsLayer(context, server_side=False, server_hostname="localhost")
    shake_hands(server, client)
    assert (server.version, server.cipher_suite) == ("TLS1.2", "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256")


def test_nobody_is_known_by_name_without_a_certificate(certificates: Certificates) -> None:
    server, client = server_of(certificates), client_of(certificates)
    shake_hands(server, client)
    assert server.peer_common_name == ""


def test_garbage_instead_of_a_handshake_is_refused(certificates: Certificates) -> None:
    with pytest.raises(StreamError, match="tls: "):
        server_of(certificates).handshake(b"SUB topic channel\n" * 10)


def test_a_client_without_the_certificate_that_is_asked_for_is_refused(certificates: Certificates) -> None:
    with pytest.raises(StreamError, match="peer did not return a certificate"):
        shake_hands(server_of(certificates, verify=True), client_of(certificates, version=ssl.TLSVersion.TLSv1_2))


def test_a_changed_byte_is_noticed(certificates: Certificates) -> None:
    server, client = server_of(certificates), client_of(certificates)
    shake_hands(server, client)
    harmed = bytearray(client.encode(b"FIN 0123456789abcdef\n"))
    harmed[-1] ^= 1
    with pytest.raises(StreamError, match="tls: "):
        server.decode(bytes(harmed))


def test_the_other_side_may_say_goodbye(certificates: Certificates) -> None:
    server, client = server_of(certificates), client_of(certificates)
    shake_hands(server, client)
    last = client.encode(b"CLS\n")
    with pytest.raises(ssl.SSLError):
        client._tls.unwrap()  # sends close_notify, and would wait for ours
    assert server.decode(last + client.pending()) == b"CLS\n"
    assert server.ended


# With a certificate that need not be verified


def any_certificate_of(certificates: Certificates) -> SecureLayer:
    pair = str(certificates.certificate), str(certificates.key)
    return layer_maker(*pair, min_version=ssl.TLSVersion.TLSv1_2, old_ciphers=False)()


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_any_certificate_will_do(certificates: Certificates, tmp_path: Path, version: ssl.TLSVersion) -> None:
    stranger = make_certificates(tmp_path)
    context = ssl.create_default_context(cafile=str(certificates.authority))
    context.load_cert_chain(stranger.certificate, stranger.key)
    context.maximum_version = version
    server = any_certificate_of(certificates)
    client = TlsLayer(context, server_side=False, server_hostname="localhost")
    shake_hands(server, client)
    assert server.peer_common_name == "localhost"
    assert (server.version, server.cipher_suite) == (client.version, client.cipher_suite)
    data = bytes(range(256)) * 1000
    assert server.decode(client.encode(data)) == data
    assert client.decode(server.encode(data)) == data
    assert server.encode(b"") == b""
    client.decode(server.goodbye())
    assert client.ended
    server.decode(client.goodbye())
    assert server.ended


def test_none_will_not_do(certificates: Certificates) -> None:
    with pytest.raises(StreamError, match="certificate"):
        shake_hands(any_certificate_of(certificates), client_of(certificates))


@pytest.mark.parametrize("garbage", [b"SUB topic channel\n" * 10, b"\x16\x03\x01\xff\xff" * 10])
def test_garbage_is_refused_there_too(certificates: Certificates, garbage: bytes) -> None:
    layer = any_certificate_of(certificates)
    with pytest.raises(StreamError, match="tls: "):
        layer.handshake(garbage)
    assert layer.goodbye() is not None


def test_a_key_of_another_certificate_is_refused(certificates: Certificates, tmp_path: Path) -> None:
    other = make_certificates(tmp_path)
    with pytest.raises(ValueError, match="tls: "):
        layer_maker(str(certificates.certificate), str(other.key), min_version=771, old_ciphers=True)
