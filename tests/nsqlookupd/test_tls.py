"""nsqlookupd over TLS: both listeners, with and without client certificates."""

from __future__ import annotations

import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest
import trio

from nsqcommon.certificate import read_certificate
from nsqcommon.startup import StartupError
from nsqlookupd.daemon import Listening, run
from nsqlookupd.options import Options
from tests.support.certificates import Certificates, common_name, copy_certificate, make_certificates, renewed

LIMIT = 30.0


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("certificates"))


@asynccontextmanager
async def lookupd(certificates: Certificates, policy: str = "") -> AsyncIterator[Listening]:
    options = Options(
        tcp_address="127.0.0.1:0",
        http_address="127.0.0.1:0",
        tls_cert=str(certificates.certificate),
        tls_key=str(certificates.key),
        tls_root_ca_file=str(certificates.authority),
        tls_client_auth_policy=policy,
    )
    stop = trio.Event()
    with trio.fail_after(LIMIT):
        async with trio.open_nursery() as nursery:
            yield await nursery.start(partial(run, options, wait_for_shutdown=stop.wait))
            stop.set()


async def exchange(address: tuple[str, int], context: ssl.SSLContext, sent: bytes, until: bytes) -> bytes:
    """Send this, and return what comes back, up to the given end or the end of the connection."""
    stream = await trio.open_ssl_over_tcp_stream(*address, ssl_context=context, https_compatible=True)
    got = b""
    try:
        await stream.send_all(sent)
        while not got.endswith(until) and (piece := await stream.receive_some()):
            got += piece
    except trio.BrokenResourceError:
        pass
    finally:
        await trio.aclose_forcefully(stream)
    return got


def client_context(certificates: Certificates, *, shows_one: bool = False) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=certificates.authority)
    if shows_one:
        context.load_cert_chain(certificates.certificate, certificates.key)
    return context


OK = b"\0\0\0\2OK"
GET = b"GET /ping HTTP/1.1\r\nHost: x\r\n\r\n"


@pytest.mark.parametrize("policy", ["", "require-verify"])
def test_both_listeners_speak_tls(certificates: Certificates, policy: str) -> None:
    async def test() -> None:
        context = client_context(certificates, shows_one=bool(policy))
        async with lookupd(certificates, policy) as listening:
            replies = await exchange(listening.tcp.getsockname(), context, b"  V1" + b"PING\n" * 50 + b"NOP\n", b"NOP")
            assert replies == OK * 50 + b"\0\0\0\x1dE_INVALID invalid command NOP"
            answer = await exchange(listening.http.getsockname(), context, GET, b"OK")
            assert answer.startswith(b"HTTP/1.1 200 OK\r\n")

    trio.run(test)


def test_who_shows_no_certificate_gets_nothing_where_one_is_demanded(certificates: Certificates) -> None:
    async def test() -> None:
        context = client_context(certificates)
        async with lookupd(certificates, "require-verify") as listening:
            assert await exchange(listening.tcp.getsockname(), context, b"  V1PING\n", b"OK") == b""
            assert await exchange(listening.http.getsockname(), context, GET, b"OK") == b""

    trio.run(test)


def test_plain_text_gets_nothing(certificates: Certificates) -> None:
    async def test() -> None:
        async with lookupd(certificates) as listening:
            for address, sent in ((listening.tcp.getsockname(), b"  V1PING\n"), (listening.http.getsockname(), GET)):
                async with await trio.open_tcp_stream(*address) as stream:
                    await stream.send_all(sent)
                    answer = b"".join([piece async for piece in stream])
                    assert b"OK" not in answer

    trio.run(test)


def test_tls_before_1_2_is_refused(certificates: Certificates) -> None:
    async def test() -> None:
        context = client_context(certificates)
        with pytest.warns(DeprecationWarning, match="TLSv1_1"):
            context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_1
        async with lookupd(certificates) as listening:
            assert await exchange(listening.tcp.getsockname(), context, b"  V1PING\n", b"OK") == b""

    trio.run(test)


@pytest.mark.parametrize("options", [
    Options(tls_key="key.pem"),
    Options(tls_client_auth_policy="require-verify"),
    Options(tls_cert="cert.pem", tls_client_auth_policy="require-verify"),
])  # fmt: skip
def test_options_that_would_protect_nobody_are_refused(options: Options) -> None:
    with pytest.raises(StartupError):
        options.checked()


def test_files_that_cannot_be_used_keep_it_from_starting(tmp_path: Path) -> None:
    options = Options(tcp_address="127.0.0.1:0", http_address="127.0.0.1:0", tls_cert=str(tmp_path / "none"))
    with pytest.raises(StartupError, match="failed to build TLS config"):
        trio.run(run, options)


def test_a_renewed_certificate_is_for_new_connections_on_both_listeners(
    tmp_path: Path, certificates: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nsqcommon.certificate_files.LOOK_INTERVAL", 0.01)
    second = renewed(certificates.authority.parent, "second-", "/CN=second")
    ours = Certificates(certificates.authority, tmp_path / "cert.pem", tmp_path / "key.pem")
    copy_certificate(certificates, ours)

    async def connect(listener: socket.socket) -> trio.SSLStream[trio.SocketStream]:
        context = client_context(certificates)
        stream = await trio.open_ssl_over_tcp_stream(
            *listener.getsockname(), ssl_context=context, https_compatible=True
        )
        await stream.do_handshake()
        return stream

    async def name_at(listener: socket.socket) -> str:
        stream = await connect(listener)
        shown = common_name(stream.getpeercert())
        await trio.aclose_forcefully(stream)
        return shown

    async def test() -> None:
        async with lookupd(ours) as listening:
            tcp, http = await connect(listening.tcp), await connect(listening.http)
            await tcp.send_all(b"  V1PING\n")
            assert await tcp.receive_some() == OK
            copy_certificate(second, ours)
            for listener in (listening.tcp, listening.http):
                while await name_at(listener) == "localhost":  # noqa: ASYNC110  # within LIMIT
                    await trio.sleep(0.01)
                assert await name_at(listener) == "second"
            await tcp.send_all(b"PING\n")
            assert await tcp.receive_some() == OK
            await http.send_all(GET.replace(b"/ping", b"/metrics"))
            expires = read_certificate(second.certificate.read_text()).expires
            metric = b'nsqlookupd_certificate_expires_seconds{use="listeners"} %d\n' % expires
            answer = b""
            while metric not in answer:
                piece = await http.receive_some()
                assert piece, answer
                answer += piece
            for stream in (tcp, http):
                await trio.aclose_forcefully(stream)

    trio.run(test)
