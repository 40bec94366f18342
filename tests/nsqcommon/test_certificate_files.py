"""TLS files that are renewed while a daemon runs: which versions it takes, and which it refuses."""

from __future__ import annotations

import os
import shutil
import ssl
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from time import time

import pytest
import trio

from nsqcommon.certificate_files import CertificateFiles, RenewedContext, certificate_metrics, load_chain, renewable
from nsqcommon.prometheus import exposition
from nsqcommon.streams.tls import TlsLayer
from tests.support.certificates import Certificates, make_certificates, openssl, renewed, replace_file
from tests.support.jumping import run_with_threads

LONG = 60.0  # seconds by which a new version has to be in use, or refused
DAY = 86_400.0


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def second(first: Certificates) -> Certificates:
    return renewed(first.authority.parent, "second-", "/CN=second")


class Server:
    """The files of a server, and its handshakes."""

    def __init__(self, folder: Path, first: Certificates) -> None:
        self.certificate, self.key = folder / "tls.crt", folder / "tls.key"
        self.authority = first.authority
        self.passed = 0.0  # seconds by which its clock is ahead
        if not self.certificate.exists():
            self.copy(first)
        self.files = self.load()

    def load(self) -> CertificateFiles[ssl.SSLContext]:
        paths = (str(self.certificate), str(self.key))
        return CertificateFiles(
            "listeners", paths, self._context, certificate=paths[0], clock=lambda: time() + self.passed
        )

    def _context(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        load_chain(context, str(self.certificate), str(self.key))
        return context

    def copy(self, made: Certificates) -> None:
        replace_file(self.certificate, made.certificate.read_bytes())
        replace_file(self.key, made.key.read_bytes())

    def run(self, what: Callable[[], Awaitable[None]]) -> None:
        """Run this while the files are followed."""

        async def main() -> None:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self.files.follow)
                await what()
                nursery.cancel_scope.cancel()

        run_with_threads(main)

    def connect(self) -> tuple[TlsLayer, TlsLayer]:
        """Return both ends of a new connection."""
        context = ssl.create_default_context(cafile=self.authority)
        client = TlsLayer(context, server_side=False, server_hostname="localhost")
        server = TlsLayer(self.files.now, server_side=True)
        shake_hands(client, server)
        return client, server

    def shown(self) -> str:
        """Return the name in the certificate that a new client sees."""
        return self.connect()[0].peer_common_name


def shake_hands(client: TlsLayer, server: TlsLayer) -> None:
    client.handshake(b"")
    while not server.handshake(client.pending()):
        client.handshake(server.pending())
    client.decode(server.pending())


@pytest.fixture
def server(tmp_path: Path, first: Certificates) -> Server:
    return Server(tmp_path, first)


def test_a_renewed_certificate_is_for_new_connections_and_open_ones_go_on(
    server: Server, second: Certificates, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")

    async def what() -> None:
        client, open_one = server.connect()
        assert client.peer_common_name == "localhost"
        server.copy(second)
        await trio.sleep(LONG)
        assert server.shown() == "second"
        assert open_one.decode(client.encode(b"hello")) == b"hello"
        assert client.decode(open_one.encode(b"world")) == b"world"

    server.run(what)
    lines = [it.getMessage() for it in caplog.records]
    assert [line.partition(" expires=")[0] for line in lines] == [
        "TLS: loaded the certificate for listeners subject=CN=localhost",
        "TLS: loaded the certificate for listeners subject=CN=second",
    ]


def test_a_swapped_link_of_kubernetes_is_followed(tmp_path: Path, first: Certificates, second: Certificates) -> None:
    for name, made in (("..1", first), ("..2", second)):
        (tmp_path / name).mkdir()
        shutil.copy2(made.certificate, tmp_path / name / "tls.crt")
        shutil.copy2(made.key, tmp_path / name / "tls.key")
    link = tmp_path / "..data"
    for name in ("tls.crt", "tls.key"):
        (tmp_path / name).symlink_to(Path("..data") / name)
    link.symlink_to("..1")
    server = Server(tmp_path, first)

    async def what() -> None:
        assert server.shown() == "localhost"
        (tmp_path / "..new").symlink_to("..2")
        os.replace(tmp_path / "..new", link)
        await trio.sleep(LONG)
        assert server.shown() == "second"

    server.run(what)


def half(server: Server, second: Certificates) -> None:
    replace_file(server.certificate, second.certificate.read_bytes()[:300])


def other_key(server: Server, second: Certificates) -> None:
    replace_file(server.certificate, second.certificate.read_bytes())


def gone(server: Server, second: Certificates) -> None:
    server.key.unlink()


def folder(server: Server, second: Certificates) -> None:
    server.certificate.unlink()
    server.certificate.mkdir()


def no_key(server: Server, second: Certificates) -> None:
    replace_file(server.key, b"")


def encrypted(server: Server, second: Certificates) -> None:
    openssl("pkey", "-in", second.key, "-aes256", "-passout", "pass:secret", "-out", server.key)
    replace_file(server.certificate, second.certificate.read_bytes())


def expired(server: Server, second: Certificates) -> None:
    server.passed = 3 * DAY
    server.copy(second)


def from_the_future(server: Server, second: Certificates) -> None:
    server.passed = -DAY
    server.copy(second)


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (half, "has no complete certificate in PEM format"),
        (other_key, "is not the key of"),
        (gone, "no such file or directory"),
        (folder, "is a directory"),
        (no_key, "has no usable private key"),
        (encrypted, "the private key is encrypted"),
        (expired, "expired on 20"),
        (from_the_future, "is not valid before 20"),
    ],
)
def test_a_bad_version_is_refused_with_one_line_and_the_old_one_stays(
    server: Server,
    second: Certificates,
    spoil: Callable[[Server, Certificates], None],
    why: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def what() -> None:
        spoil(server, second)
        await trio.sleep(LONG)
        assert server.shown() == "localhost"
        assert why in server.files.error
        if server.certificate.is_dir():
            server.certificate.rmdir()
        server.passed = 0.0
        server.copy(second)
        await trio.sleep(LONG)
        assert server.shown() == "second"
        assert server.files.error == ""

    server.run(what)
    (refusal,) = [it.getMessage() for it in caplog.records if it.levelname == "ERROR"]
    assert refusal.startswith("TLS: refused the renewed files for listeners, keeping the old ones - ")
    assert why in refusal


def test_a_key_that_comes_a_moment_after_its_certificate_is_no_error(
    server: Server, second: Certificates, caplog: pytest.LogCaptureFixture
) -> None:
    async def what() -> None:
        replace_file(server.certificate, second.certificate.read_bytes())
        await trio.sleep(0.9)
        replace_file(server.key, second.key.read_bytes())
        await trio.sleep(LONG)
        assert server.shown() == "second"

    server.run(what)
    assert not [it for it in caplog.records if it.levelname == "ERROR"]


def test_a_file_that_is_still_being_written_is_left_alone(server: Server, second: Certificates) -> None:
    whole = second.certificate.read_bytes()

    async def what() -> None:
        replace_file(server.key, second.key.read_bytes())
        with server.certificate.open("wb", buffering=0) as file:
            for start in range(0, len(whole), 100):
                file.write(whole[start : start + 100])
                await trio.sleep(0.7)
                assert server.files.error == ""
        await trio.sleep(LONG)
        assert server.shown() == "second"

    server.run(what)


def test_a_certificate_from_the_future_is_used_once_it_is_valid(server: Server, second: Certificates) -> None:
    async def what() -> None:
        from_the_future(server, second)
        await trio.sleep(LONG)
        assert server.shown() == "localhost"
        server.passed = 0.0
        await trio.sleep(LONG)
        assert server.shown() == "second"

    server.run(what)


def test_an_expired_certificate_is_used_at_the_start_with_a_warning(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    server.passed = 3 * DAY
    server.files = server.load()

    async def nothing() -> None:
        await trio.lowlevel.checkpoint()

    server.run(nothing)
    assert server.files.is_expired
    (warning,) = [it.getMessage() for it in caplog.records if it.levelname == "WARNING"]
    assert warning.startswith("TLS: the certificate for listeners has expired subject=CN=localhost expires=20")


def test_metrics_tell_the_expiry_and_what_was_refused(server: Server, second: Certificates) -> None:
    def metrics() -> list[str]:
        lines = exposition(certificate_metrics("nsqd", [server.files])).decode().splitlines()
        return [line for line in lines if not line.startswith("#")]

    async def what() -> None:
        assert server.files.certificate is not None
        expires = f'nsqd_certificate_expires_seconds{{use="listeners"}} {server.files.certificate.expires:.0f}'
        assert metrics() == [expires, 'nsqd_certificate_refused{use="listeners"} 0']
        half(server, second)
        await trio.sleep(LONG)
        assert metrics() == [expires, 'nsqd_certificate_refused{use="listeners"} 1']

    server.run(what)
    assert certificate_metrics("nsqd", []) == []


def test_a_client_shows_its_renewed_certificate_and_trusts_renewed_authorities(
    tmp_path: Path, first: Certificates, second: Certificates
) -> None:
    """Its context was given away at the start, to code that keeps it."""
    other = make_certificates(tmp_path)
    certificate, key, authority = tmp_path / "client.pem", tmp_path / "client.key", tmp_path / "authority.pem"
    replace_file(certificate, first.certificate.read_bytes())
    replace_file(key, first.key.read_bytes())
    replace_file(authority, other.authority.read_bytes())

    def build() -> ssl.SSLContext:
        made = ssl.create_default_context(cafile=authority)
        load_chain(made, str(certificate), str(key))
        return made

    files = CertificateFiles("nodes", map(str, (certificate, key, authority)), build, certificate=str(certificate))
    context = RenewedContext(files)
    asks = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=first.authority)
    asks.load_cert_chain(other.certificate, other.key)
    asks.verify_mode = ssl.CERT_REQUIRED

    def name_at_server() -> str:
        client = TlsLayer(context, server_side=False, server_hostname="localhost")
        server = TlsLayer(asks, server_side=True)
        shake_hands(client, server)
        return server.peer_common_name

    async def main() -> None:
        assert name_at_server() == "localhost"
        replace_file(certificate, second.certificate.read_bytes())
        replace_file(key, second.key.read_bytes())
        for _ in range(2):
            await files.load_if_renewed()
        assert name_at_server() == "second"
        replace_file(authority, first.authority.read_bytes())  # which has not signed the server's
        for _ in range(2):
            await files.load_if_renewed()
        with pytest.raises(Exception, match="certificate verify failed"):
            name_at_server()

    trio.run(main)


def test_only_what_has_files_is_followed() -> None:
    of_the_system = CertificateFiles("nodes", ("", ""), partial(ssl.SSLContext, ssl.PROTOCOL_TLS_CLIENT))
    assert renewable(None, of_the_system) == ()
