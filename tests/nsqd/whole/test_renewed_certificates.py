"""Real workers whose certificate is renewed: each of them loads it, and no client notices."""

from __future__ import annotations

import json
import ssl
from pathlib import Path

from tests.nsqd.whole.workers import Workers
from tests.support.certificates import (
    Certificates,
    common_name,
    copy_certificate,
    make_certificates,
    renewed,
    replace_file,
)
from tests.support.client import TIMEOUT, open_socket
from tests.support.process import eventually


class SecureClient:
    """A connection over TCP that has asked for TLS."""

    def __init__(self, address: tuple[str, int], authority: Path) -> None:
        sock = open_socket(address)
        sock.settimeout(TIMEOUT)
        body = json.dumps({"tls_v1": True, "feature_negotiation": True}).encode()
        sock.sendall(b"  V2IDENTIFY\n" + len(body).to_bytes(4, "big") + body)
        size = int.from_bytes(sock.recv(4), "big")
        while size:
            size -= len(sock.recv(size))
        context = ssl.create_default_context(cafile=authority)
        self.tls = context.wrap_socket(sock, server_hostname="localhost")
        assert self._read() == b"OK"

    @property
    def shown(self) -> str:
        """Return the name in the server's certificate."""
        return common_name(self.tls.getpeercert())

    def publish(self, body: bytes) -> None:
        self.tls.sendall(b"PUB t\n" + len(body).to_bytes(4, "big") + body)
        assert self._read() == b"OK"

    def _read(self) -> bytes:
        size = int.from_bytes(self._exactly(4), "big")
        return self._exactly(size)[4:]

    def _exactly(self, size: int) -> bytes:
        got = b""
        while len(got) < size:
            piece = self.tls.recv(size - len(got))
            assert piece, "nsqd has closed the connection"
            got += piece
        return got


def test_both_workers_load_a_renewed_certificate_and_keep_their_connections(tmp_path: Path) -> None:
    first = make_certificates(tmp_path)
    second = renewed(tmp_path, "second-", "/CN=second")
    ours = Certificates(first.authority, tmp_path / "tls.crt", tmp_path / "tls.key")
    copy_certificate(first, ours)
    tls = (f"tls-cert={ours.certificate}", f"tls-key={ours.key}", "https-address=127.0.0.1:0")
    with Workers(tmp_path / "data", 2, *tls) as nsqd:
        old = [SecureClient(nsqd.tcp_of(number), first.authority) for number in range(2)]
        assert [client.shown for client in old] == ["localhost", "localhost"]
        replace_file(ours.certificate, second.certificate.read_bytes()[:300])
        nsqd.wait_for("TLS: refused the renewed files for listeners, keeping the old ones", 2)
        old += [SecureClient(nsqd.tcp_of(number), first.authority) for number in range(2)]
        copy_certificate(second, ours)
        nsqd.wait_for("TLS: loaded the certificate for listeners subject=CN=second", 2)
        new = [SecureClient(nsqd.tcp_of(number), first.authority) for number in range(2)]
        assert [client.shown for client in (*old, *new)] == ["localhost"] * 4 + ["second"] * 2
        for client in (*old, *new):
            client.publish(b"hello")
        eventually(lambda: [nsqd.depth(number) for number in range(2)] == [3, 3])
        for number in range(2):
            assert b'nsqd_certificate_expires_seconds{use="listeners"}' in nsqd.ask(number, "GET", "/metrics").body
        for client in (*old, *new):
            client.tls.close()
