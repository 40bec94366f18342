"""nsqadmin over HTTPS: the same as over plain HTTP, and renewed certificates while a page is open."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import trio

from nsqadmin.daemon import Listening, run
from nsqadmin.options import Options
from nsqcommon.startup import StartupError
from tests.support.certificates import Certificates, common_name, copy_certificate, make_certificates, renewed

LIMIT = 30.0


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("certificates"))


def options_for(certificates: Certificates) -> Options:
    return Options(
        http_address="127.0.0.1:0",
        https_address="127.0.0.1:0",
        tls_cert=str(certificates.certificate),
        tls_key=str(certificates.key),
        nsqd_http_address=("127.0.0.1:1",),
    ).checked()


@asynccontextmanager
async def nsqadmin(options: Options) -> AsyncIterator[Listening]:
    stop = trio.Event()
    with trio.fail_after(LIMIT):
        async with trio.open_nursery() as nursery:
            yield await nursery.start(partial(run, options, wait_for_shutdown=stop.wait))
            stop.set()


class Browser:
    """A connection to the HTTPS listener."""

    def __init__(self, stream: trio.SSLStream[trio.SocketStream]) -> None:
        self.stream = stream
        self._received = b""

    @property
    def shown(self) -> str:
        """Return the name in the server's certificate."""
        return common_name(self.stream.getpeercert())

    def forget(self) -> None:
        """Forget what has come until now."""
        self._received = b""

    async def ask(self, target: str, method: str = "GET", **headers: str) -> str:
        """Send a request, and return the head of the answer and whatever has come with it."""
        self.forget()
        fields = {"host": "localhost", "content-length": "0", **headers}
        lines = [f"{method} {target} HTTP/1.1", *(f"{name.replace('_', '-')}: {it}" for name, it in fields.items())]
        await self.stream.send_all("\r\n".join([*lines, "", ""]).encode())
        return await self.read_until(b"\r\n\r\n")

    async def read_until(self, text: bytes) -> str:
        while text not in self._received:
            piece = await self.stream.receive_some()
            assert piece, f"the connection has ended after {self._received!r}"
            self._received += piece
        return self._received.decode()


@asynccontextmanager
async def browser(listening: Listening, certificates: Certificates) -> AsyncIterator[Browser]:
    assert listening.https is not None
    context = ssl.create_default_context(cafile=certificates.authority)
    stream = await trio.open_ssl_over_tcp_stream(
        *listening.https.getsockname(), ssl_context=context, https_compatible=True
    )
    try:
        await stream.do_handshake()
        yield Browser(stream)
    finally:
        await trio.aclose_forcefully(stream)


def test_pages_redirects_checks_and_probes_work_over_https(certificates: Certificates) -> None:
    async def test() -> None:
        options = replace(options_for(certificates), base_path="/nsq")
        async with nsqadmin(options) as listening:

            async def ask(target: str, method: str = "GET", **headers: str) -> str:
                async with browser(listening, certificates) as it:
                    return await it.ask(target, method, **headers)

            assert (await ask("/nsq/topics", accept="text/html")).startswith("HTTP/1.1 200 OK")
            moved = await ask("/nsq/topics/")
            assert moved.startswith("HTTP/1.1 301 ")
            assert "Location: /nsq/topics\r\n" in moved  # relative: the browser stays on HTTPS
            target = "/nsq/api/topics"
            assert "FORBIDDEN_ORIGIN" in await ask(target, "POST", origin="https://evil.example")
            assert "FORBIDDEN_ORIGIN" not in await ask(target, "POST", origin="https://localhost")
            assert (await ask("/nsq/topics", host="evil.example")).startswith("HTTP/1.1 421 ")
            assert (await ask("/nsq/ping")).startswith("HTTP/1.1 200 OK")
            assert (await ask("/nsq/healthz")).startswith("HTTP/1.1 200 OK")

    trio.run(test)


def test_a_page_stays_connected_while_its_server_gets_a_new_certificate(
    tmp_path: Path, certificates: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nsqcommon.certificate_files.LOOK_INTERVAL", 0.01)
    second = renewed(certificates.authority.parent, "second-", "/CN=second")
    ours = Certificates(certificates.authority, tmp_path / "cert.pem", tmp_path / "key.pem")
    copy_certificate(certificates, ours)

    async def test() -> None:
        options = replace(options_for(ours), sample_interval=200_000_000)
        async with nsqadmin(options) as listening, browser(listening, certificates) as page:
            assert "text/event-stream" in await page.ask("/events?scope=topics")
            copy_certificate(second, ours)
            shown = ""
            while shown != "second":
                async with browser(listening, certificates) as it:
                    shown = it.shown
            async with browser(listening, certificates) as it:
                await it.ask("/metrics")
                await it.read_until(b'nsqadmin_certificate_refused{use="listeners"} 0')
            assert page.shown == "localhost"
            page.forget()
            await page.read_until(b"event: ")

    trio.run(test)


@pytest.mark.parametrize(("version", "speaks"), [("tls1.2", True), ("tls1.3", False)])
def test_the_lowest_version_of_tls_can_be_set(certificates: Certificates, version: str, speaks: bool) -> None:
    async def test() -> None:
        context = ssl.create_default_context(cafile=certificates.authority)
        context.maximum_version = ssl.TLSVersion.TLSv1_2
        async with nsqadmin(replace(options_for(certificates), tls_min_version=version)) as listening:
            assert listening.https is not None
            stream = await trio.open_ssl_over_tcp_stream(*listening.https.getsockname(), ssl_context=context)
            try:
                await stream.do_handshake()
            except trio.BrokenResourceError:
                assert not speaks
            else:
                assert speaks
            finally:
                await trio.aclose_forcefully(stream)

    trio.run(test)


def test_plain_http_can_be_switched_off(certificates: Certificates) -> None:
    async def test() -> None:
        async with nsqadmin(replace(options_for(certificates), http_address="")) as listening:
            assert listening.http is None
            async with browser(listening, certificates) as it:
                assert "OK" in await it.ask("/ping")

    trio.run(test)


def test_files_that_cannot_be_used_keep_it_from_starting(tmp_path: Path, certificates: Certificates) -> None:
    options = replace(options_for(certificates), tls_key=str(tmp_path / "none"))
    with pytest.raises(StartupError, match=r"failed to build TLS config - open .*none: no such file or directory"):
        trio.run(run, options)


@pytest.mark.parametrize(
    "options",
    [
        {"tls_key": "key.pem"},
        {"http_address": ""},
        {"http_address": "", "tls_cert": "cert.pem", "https_address": ""},
    ],
)
def test_options_without_a_listener_or_a_certificate_are_refused(options: dict[str, str]) -> None:
    with pytest.raises(StartupError, match="--tls-cert"):
        Options(nsqd_http_address=("127.0.0.1:1",), **options).checked()  # type: ignore[arg-type]
