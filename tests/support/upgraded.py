"""A client whose connection is upgraded: TLS, snappy and deflate in any combination, by our own layers."""

from __future__ import annotations

import json
import ssl
import time
from typing import Any

from nsqcommon.streams.deflate import DeflateLayer
from nsqcommon.streams.layer import Layer
from nsqcommon.streams.snappy import SnappyLayer
from nsqcommon.streams.tls import TlsLayer
from nsqcommon.wire.commands import identify
from tests.support.certificates import Certificates
from tests.support.client import TIMEOUT, Client, Disconnected, Refused


def trusting(certificates: Certificates, *, shows: bool = False) -> ssl.SSLContext:
    """Return a client's TLS context; with `shows`, the client shows a certificate of its own."""
    context = ssl.create_default_context(cafile=str(certificates.authority))
    if shows:
        context.load_cert_chain(certificates.certificate, certificates.key)
    return context


class UpgradedClient(Client):
    """A `Client` with the layers that `upgrade` has negotiated between it and the socket."""

    def __init__(self, address: tuple[str, int], *, magic: bytes = b"  V2") -> None:
        self._layers: list[Layer] = []  # from the socket inwards
        self._left = b""  # received bytes, decoded by all layers, that nobody has read yet
        super().__init__(address, magic=magic)

    def send(self, *pieces: bytes) -> None:
        data = b"".join(pieces)
        for layer in reversed(self._layers):
            data = layer.encode(data)
        super().send(data)

    def _receive(self, deadline: float) -> bytes:
        if self._left:
            data, self._left = self._left, b""
            return data
        while True:
            data = self._decode(self._layers, super()._receive(deadline))
            if data:
                return data
            if any(isinstance(layer, TlsLayer) and layer.ended for layer in self._layers):
                raise Disconnected

    @staticmethod
    def _decode(layers: list[Layer], data: bytes) -> bytes:
        for layer in layers:
            data = layer.decode(data)
            while layer.has_more:
                data += layer.decode(b"")
        return data

    def upgrade(self, *, tls: ssl.SSLContext | None = None, snappy: bool = False, deflate: bool = False) -> Any:
        """Send IDENTIFY, perform every upgrade that the reply demands, and return the decoded reply."""
        wishes = {"feature_negotiation": True, "tls_v1": tls is not None, "snappy": snappy, "deflate": deflate}
        self.send(identify(json.dumps(wishes).encode()))
        reply = json.loads(self._answer())
        assert (reply["tls_v1"], reply["snappy"], reply["deflate"]) == (tls is not None, snappy, deflate), reply
        if tls is not None:
            self.shake_hands(tls)
            assert self._answer() == b"OK"
        if snappy or deflate:
            layer = SnappyLayer() if snappy else DeflateLayer(6)
            self._layers.append(layer)
            self._left = self._decode([layer], self._left)
            assert self._answer() == b"OK"
        return reply

    def _answer(self) -> bytes:
        """Return the next frame's content. Bytes behind it may belong to another layer, so they are left alone."""
        data = b""
        while len(data) < 8 or len(data) < 4 + int.from_bytes(data[:4], "big"):
            data += self._receive(time.monotonic() + TIMEOUT)
        end = 4 + int.from_bytes(data[:4], "big")
        self._left = data[end:]
        if data[4:8] != bytes(4):
            raise Refused(data[8:end].decode("utf-8", "backslashreplace"))
        return data[8:end]

    def shake_hands(self, context: ssl.SSLContext) -> None:
        """Perform the TLS handshake. Raise StreamError if the other side refuses us."""
        layer = TlsLayer(context, server_side=False, server_hostname="localhost")
        data, self._left = self._left, b""
        while not layer.handshake(data):
            self.sock.sendall(layer.pending())
            data = self._receive(time.monotonic() + TIMEOUT)
        self.sock.sendall(layer.pending())
        self._layers.append(layer)
        self._left = layer.decode(b"")

    def send_last(self, *pieces: bytes) -> None:
        """Send these and close_notify, in one piece. The socket stays open; wait until its other end is closed."""
        data, (tls, *inner) = b"".join(pieces), self._layers
        for layer in reversed(inner):
            data = layer.encode(data)
        assert isinstance(tls, TlsLayer)
        self.sock.settimeout(TIMEOUT)
        self.sock.sendall(tls.encode(data) + tls.goodbye())
        while self.sock.recv(1 << 16):
            pass
