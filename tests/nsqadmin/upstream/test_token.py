"""Which nodes get nsqadmin's token: those on the list, over connections that nobody else can read."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import trio

from nsqadmin.options import Options
from nsqadmin.upstream.client import Document, Upstream, UpstreamError, opened
from nsqadmin.upstream.token import NOT_LISTED, NOT_SECURE, NOT_VERIFIED, Token, Way
from nsqcommon.recipients import host_and_port
from tests.support.certificates import Certificates, make_certificates

SECRET = "Bearer the-token"
NAMES = {
    "nsqd1": "10.0.0.1",
    "nsqd1.example": "10.0.0.1",
    "nsqd1.evil.example": "10.9.9.9",
    "inside.evil.example": "10.0.0.66",
    "six.example": "fd00::1",
    "localhost": "127.0.0.1",
}


class Resolver(trio.abc.HostnameResolver):
    def __init__(self) -> None:
        self.names = dict(NAMES)

    async def getaddrinfo(self, host: Any, port: Any, *_: Any, **__: Any) -> list[Any]:
        await trio.lowlevel.checkpoint()
        name = host.decode() if isinstance(host, bytes) else host
        if name not in self.names:
            raise OSError("no such host")
        return [(2, 1, 6, "", (self.names[name], int(port or 0)))]

    async def getnameinfo(self, sockaddr: Any, flags: int) -> Any:
        raise NotImplementedError


def options(tmp_path: Path, **given: Any) -> Options:
    file = tmp_path / "token"
    file.write_text("the-token\n")
    return Options(nsqd_token_file=str(file), lookupd_http_address=("127.0.0.1:1",), **given)


def way(chosen: Options, url: str, announced: str = "") -> Way:
    async def ask() -> Way:
        trio.socket.set_custom_hostname_resolver(Resolver())
        whole = httpx.URL(url)
        return await Token(chosen).way_to(whole, host_and_port(announced or whole.netloc.decode()))

    return trio.run(ask)


@pytest.mark.parametrize(
    ("to", "url", "announced"),
    [
        ("nsqd1", "https://nsqd1:4152/stats", "nsqd1:4151"),
        ("nsqd1", "https://NSQD1:4152/stats", "NSQD1:4151"),
        ("nsqd*.example", "https://nsqd1.example:4152/", ""),
        ("10.0.0.0/24", "https://nsqd1:4152/", ""),
        ("10.0.0.0/24", "https://10.0.0.1:4152/", ""),
        ("10.0.0.1:4151", "https://10.0.0.1:4152/", "10.0.0.1:4151"),
        ("fd00::/8", "https://[fd00::1]:4152/", ""),
        ("fd00::/8", "https://six.example:4152/", ""),
        ("127.0.0.0/8", "http://127.0.0.1:4151/", ""),
        ("localhost", "http://localhost:4151/", ""),
    ],
)
def test_a_node_on_the_list_is_shown_the_token(tmp_path: Path, to: str, url: str, announced: str) -> None:
    found = way(options(tmp_path, nsqd_token_to=(to,)), url, announced)
    assert (found.headers.get("authorization"), found.withheld) == (SECRET, "")


@pytest.mark.parametrize(
    ("to", "url", "why"),
    [
        ("nsqd1*", "https://nsqd1.evil.example:4152/", NOT_LISTED),
        ("nsqd1", "https://nsqd2:4152/", NOT_LISTED),
        ("10.0.0.0/24", "https://nsqd1.evil.example:4152/", NOT_LISTED),
        ("10.0.0.0/24", "https://10.0.0.1.evil.example:4152/", NOT_LISTED),
        ("10.0.0.0/24", "https://unknown.example:4152/", NOT_LISTED),
        ("nsqd1:4151", "https://nsqd1:6666/", NOT_LISTED),
        ("0.0.0.0/0", "https://[fd00::1]:4152/", NOT_LISTED),
        ("nsqd1", "http://nsqd1:4151/", NOT_SECURE),
        ("10.0.0.0/24", "http://nsqd1:4151/", NOT_SECURE),
        ("10.0.0.0/24", "http://10.0.0.1:4151/", NOT_SECURE),
    ],
)
def test_any_other_is_not_and_that_has_a_reason(tmp_path: Path, to: str, url: str, why: str) -> None:
    found = way(options(tmp_path, nsqd_token_to=(to,)), url)
    assert (found.headers.get("authorization"), found.withheld) == (None, why)


def test_names_of_strangers_are_not_resolved_for_a_list_without_networks(tmp_path: Path) -> None:
    class NoResolver(Resolver):
        async def getaddrinfo(self, host: Any, port: Any, *_: Any, **__: Any) -> list[Any]:
            raise AssertionError(f"{host} is looked up")

    async def ask() -> Way:
        trio.socket.set_custom_hostname_resolver(NoResolver())
        token = Token(options(tmp_path, nsqd_token_to=("nsqd1",)))
        return await token.way_to(httpx.URL("https://nsqd1.evil.example:4152/"), ("nsqd1.evil.example", 4151))

    assert trio.run(ask).withheld == NOT_LISTED


def test_by_default_nobody_that_has_registered_is_on_the_list(tmp_path: Path) -> None:
    for url in ("https://nsqd1:4152/", "http://127.0.0.1:4151/"):
        assert way(options(tmp_path), url).withheld == NOT_LISTED


def test_an_address_that_was_configured_is_on_it_over_https_and_loopback(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("the-token")
    chosen = Options(nsqd_token_file=str(file), nsqd_http_address=("10.0.0.1:4151", "localhost:4151"))
    assert way(chosen, "https://10.0.0.1:4152/", "10.0.0.1:4151").headers["authorization"] == SECRET
    assert way(chosen, "http://10.0.0.1:4151/").withheld == NOT_SECURE
    assert way(chosen, "http://localhost:4151/").headers["authorization"] == SECRET
    assert way(chosen, "https://10.0.0.1:4153/", "10.0.0.1:4153").withheld == NOT_LISTED


def test_plain_http_and_certificates_that_nobody_verifies_have_to_be_allowed(tmp_path: Path) -> None:
    careless = options(tmp_path, nsqd_token_to=("nsqd1",), http_client_tls_insecure_skip_verify=True)
    assert way(careless, "https://nsqd1:4152/").withheld == NOT_VERIFIED
    told = options(tmp_path, nsqd_token_to=("nsqd1", "10.0.0.0/24"), nsqd_token_over_http=True)
    assert way(told, "http://nsqd1:4151/").headers["authorization"] == SECRET
    assert way(told, "http://10.0.0.1:4151/").headers["authorization"] == SECRET


def test_a_name_that_is_in_a_network_is_asked_at_the_address_that_was_found_there(tmp_path: Path) -> None:
    """The name may resolve differently a moment later; and the certificate still has to name it."""
    found = way(options(tmp_path, nsqd_token_to=("10.0.0.0/24",)), "https://inside.evil.example:4152/stats")
    assert found.url == httpx.URL("https://10.0.0.66:4152/stats")
    assert found.sni_hostname == "inside.evil.example"
    assert found.headers["host"] == "inside.evil.example:4152"


# Over connections


class Node:
    """Answers each request with the next of `answers`, and keeps the requests."""

    def __init__(self, *answers: bytes) -> None:
        self.answers = list(answers)
        self.asked: list[bytes] = []

    @property
    def tokens(self) -> list[bool]:
        """Return for each request whether it had the token."""
        return [SECRET.encode() in it for it in self.asked]

    async def handle(self, stream: trio.abc.Stream) -> None:
        received = b""
        try:
            while data := await stream.receive_some():
                received += data
                if b"\r\n\r\n" in received:
                    self.asked.append(received)
                    received = b""
                    await stream.send_all(self.answers.pop(0) if len(self.answers) > 1 else self.answers[0])
        except trio.BrokenResourceError:
            pass
        finally:
            await trio.aclose_forcefully(stream)


def answer(status: bytes, body: bytes = b"{}", *headers: bytes) -> bytes:
    lines = [b"HTTP/1.1 " + status, b"Content-Length: %d" % len(body), *headers]
    return b"\r\n".join([*lines, b"", body])


OK = answer(b"200 OK")


@asynccontextmanager
async def listening(*nodes: Node, tls: ssl.SSLContext | None = None) -> AsyncIterator[list[int]]:
    ports = []
    async with trio.open_nursery() as nursery:
        for node in nodes:
            serve = trio.serve_tcp if tls is None else trio.serve_ssl_over_tcp
            more: dict[str, Any] = {} if tls is None else {"ssl_context": tls}

            async def start(
                task_status: Any, node: Node = node, serve: Any = serve, more: dict[str, Any] = more
            ) -> None:
                extra = (more["ssl_context"],) if more else ()
                await serve(node.handle, 0, *extra, host="127.0.0.1", task_status=task_status)

            (listener,) = await nursery.start(start)
            socket = (listener.transport_listener if more else listener).socket
            ports.append(socket.getsockname()[1])
        yield ports
        nursery.cancel_scope.cancel()


async def asked(upstream: Upstream, address: str) -> Document | UpstreamError:
    try:
        return await upstream.get_document(address, "/stats")
    except UpstreamError as error:
        return error


def run(test: Any, *arguments: Any) -> None:
    async def limited() -> None:
        with trio.fail_after(30):
            await test(*arguments)

    trio.run(limited)


@pytest.mark.parametrize("status", [b"301 Moved Permanently", b"302 Found", b"307 Temporary Redirect", b"308 Moved"])
def test_a_redirect_is_followed_without_the_token_also_back_to_itself(tmp_path: Path, status: bytes) -> None:
    async def test() -> None:
        node, other = Node(), Node(OK)
        async with listening(node, other) as (port, other_port):
            address = f"127.0.0.1:{port}"
            elsewhere = answer(status, b"", b"Location: http://127.0.0.1:%d/internal" % other_port)
            node.answers = [answer(status, b"", b"Location: /again"), elsewhere]
            chosen = options(tmp_path, nsqd_token_to=("127.0.0.0/8",))
            async with opened(chosen) as upstream:
                got = await asked(upstream, address)
                assert isinstance(got, Document)
                assert "redirected" in got.withheld
        assert node.tokens == [True, False]
        assert other.tokens == [False]

    run(test)


def test_without_a_token_there_is_none_to_be_withheld() -> None:
    async def test() -> None:
        node = Node(answer(b"302 Found", b"", b"Location: /again"), OK)
        chosen = Options(lookupd_http_address=("127.0.0.1:1",))
        async with listening(node) as (port,), opened(chosen) as upstream:
            got = await asked(upstream, f"127.0.0.1:{port}")
            assert isinstance(got, Document)
            assert got.withheld == ""

    run(test)


def test_an_nsqlookupd_is_never_shown_the_token(tmp_path: Path) -> None:
    async def test() -> None:
        lookupd = Node(OK)
        async with listening(lookupd) as (port,), opened(options(tmp_path, nsqd_token_to=("127.0.0.0/8",))) as upstream:
            await upstream.get_json(f"127.0.0.1:{port}", "/nodes", is_lookupd=True)
        assert lookupd.tokens == [False]

    run(test)


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("certificates"))


def test_a_node_that_speaks_tls_only_is_asked_in_plain_once_and_without_the_token(
    tmp_path: Path, certificates: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nsqadmin.upstream.token.is_loopback", lambda address: False)  # as if it were remote

    async def test() -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificates.certificate, certificates.key)
        secure, plain = Node(OK), Node()
        chosen = options(
            tmp_path, nsqd_token_to=("127.0.0.1",), http_client_tls_root_ca_file=str(certificates.authority)
        )
        async with listening(secure, tls=context) as (secure_port,), listening(plain) as (port,):
            plain.answers = [answer(b"403 Forbidden", b'{"https_port": %d}' % secure_port)]
            async with opened(chosen) as upstream:
                for _ in range(3):
                    got = await asked(upstream, f"127.0.0.1:{port}")
                    assert isinstance(got, Document)
                    assert not got.withheld
        assert plain.tokens == [False]
        assert secure.tokens == [True, True, True]

    run(test)


def test_a_certificate_of_somebody_else_keeps_the_token_here(
    tmp_path: Path, certificates: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The name resolves to another machine now, or another machine on the network answers in its place."""
    monkeypatch.setattr("nsqadmin.upstream.token.is_loopback", lambda address: False)

    async def test() -> None:
        resolver = Resolver()
        resolver.names["nsqd1"] = "127.0.0.1"
        trio.socket.set_custom_hostname_resolver(resolver)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificates.certificate, certificates.key)  # not for nsqd1
        secure, plain = Node(OK), Node()
        for to in ("nsqd1", "127.0.0.1"):
            chosen = options(tmp_path, nsqd_token_to=(to,), http_client_tls_root_ca_file=str(certificates.authority))
            async with listening(secure, tls=context) as (secure_port,), listening(plain) as (port,):
                plain.answers = [answer(b"403 Forbidden", b'{"https_port": %d}' % secure_port)]
                async with opened(chosen) as upstream:
                    got = await asked(upstream, f"nsqd1:{port}")
                    assert isinstance(got, UpstreamError)
                    assert "certificate" in str(got)
        assert secure.asked == []
        assert not any(plain.tokens)

    run(test)


@pytest.mark.parametrize(
    "name", ["nsqd1@127.0.0.1", "127.0.0.1/x?", "127.0.0.1#", "user:password@127.0.0.1", "", "a b"]
)
def test_a_name_that_a_url_reads_as_another_is_not_asked(tmp_path: Path, name: str) -> None:
    async def test() -> None:
        node = Node(OK)
        async with listening(node) as (port,), opened(options(tmp_path, nsqd_token_to=("127.0.0.0/8",))) as upstream:
            assert isinstance(await asked(upstream, f"{name}:{port}"), UpstreamError)
        assert node.asked == []

    run(test)
