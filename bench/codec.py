"""The cost of a layer by itself: nsqd's decoding and encoding for a message, without nsqd.

The same batches as `bench.clients.stream_load` sends go through the layers that nsqd uses, in this process, and only the time
of this thread counts.
"""

from __future__ import annotations

import ssl
import zlib
from pathlib import Path
from statistics import median
from time import thread_time_ns
from typing import Final

from bench.clients.stream_load import BATCH, SINGLES, bodies
from nsqcommon.streams.deflate import DeflateLayer
from nsqcommon.streams.layer import Layer
from nsqcommon.streams.snappy import SnappyLayer
from nsqcommon.streams.tls import TlsLayer
from nsqcommon.wire.commands import fin, mpub, pub
from nsqcommon.wire.frames import OK_FRAME

_ROUNDS: Final = 200
_LEVEL: Final = 6
_FRAME_HEAD: Final = (4 + 26 + 200).to_bytes(4, "big") + b"\0\0\0\2" + bytes(8) + b"\0\1" + b"0123456789abcdef"


def cost(stream: str, mode: str, certificate: Path, key: Path) -> float:
    """Return the microseconds that the server's side of all layers needs for a message."""
    incoming, outgoing, count = _traffic(mode)
    pairs = [_pair(kind, certificate, key) for kind in stream.split("+")]  # from the socket inwards
    times = []
    for _ in range(_ROUNDS):
        encoded = incoming
        for client, _ in reversed(pairs):
            encoded = client.encode(encoded)
        began = thread_time_ns()
        for _, server in pairs:
            encoded = _decoded(server, encoded)
        answer = outgoing
        for _, server in reversed(pairs):
            answer = server.encode(answer)
        times.append(thread_time_ns() - began)
        assert encoded == incoming
        for client, _ in pairs:
            answer = _decoded(client, answer)
        assert answer == outgoing
    return median(times) / count / 1000


def _traffic(mode: str) -> tuple[bytes, bytes, int]:
    """Return the bytes that arrive, those that leave, and the number of messages."""
    if mode == "pub":
        return b"".join(pub("singles", body) for body in bodies(SINGLES)), OK_FRAME * SINGLES, SINGLES
    if mode == "mpub":
        return mpub("mpub", bodies(BATCH)), OK_FRAME, BATCH
    frames = [_FRAME_HEAD + body for body in bodies(BATCH)]
    return fin(b"0123456789abcdef") * BATCH, b"".join(frames), BATCH


def _pair(kind: str, certificate: Path, key: Path) -> tuple[Layer, Layer]:
    """Return the client's end and the server's."""
    if kind == "snappy":
        return SnappyLayer(), SnappyLayer()
    if kind == "deflate":
        return _Flushing(_LEVEL), DeflateLayer(_LEVEL)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    server = TlsLayer(context, server_side=True)
    trusting = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    trusting.check_hostname = False
    trusting.verify_mode = ssl.CERT_NONE
    client = TlsLayer(trusting, server_side=False)
    said, done = b"", False
    while not done:
        done = client.handshake(said)
        server.handshake(client.pending())
        said = server.pending()
    client.decode(said)  # session tickets
    return client, server


class _Flushing(DeflateLayer):
    """A layer like the benchmark's client, which compresses each batch on its own."""

    def encode(self, data: bytes) -> bytes:
        compressor = zlib.compressobj(_LEVEL, zlib.DEFLATED, -15)
        return compressor.compress(data) + compressor.flush(zlib.Z_FULL_FLUSH)


def _decoded(layer: Layer, data: bytes) -> bytes:
    plain = layer.decode(data)
    while layer.has_more:
        plain += layer.decode(b"")
    return plain
