"""`bench.streams`: publishes or consumes over plain, TLS, snappy, deflate, or both of two kinds.

    python -m bench.clients.stream_load PORT STREAM pub|mpub|sub TOPIC SECONDS

It does as little as it can, as it shares the machine with what is measured: the same batch is sent again and again,
compressed once (snappy's chunks stand alone, and so does deflate after a full flush), and messages are found by their
fixed size.
"""

from __future__ import annotations

import json
import random
import socket
import ssl
import sys
import time
import zlib
from typing import Final

from nsqcommon.streams.deflate import DeflateLayer
from nsqcommon.streams.layer import Layer
from nsqcommon.streams.snappy import SnappyLayer
from nsqcommon.wire.commands import MAGIC, fin, identify, mpub, pub, rdy, sub

SIZE: Final = 200
BATCH: Final = 200
SINGLES: Final = 64
_AHEAD: Final = 2  # batches in flight
_OK: Final = 10  # bytes
_FRAME: Final = 8 + 26 + SIZE
_ID: Final = 18  # offset of the id in a frame
_QUIET: Final = 0.5  # seconds without a message that end a consumer
_READ_SIZE: Final = 1 << 18


class Stream:
    def __init__(self, port: int, name: str) -> None:
        kinds = set(name.split("+")) - {"plain"}
        self._sock: socket.socket = socket.create_connection(("127.0.0.1", port), timeout=30)
        self._sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._layer: Layer | None = None
        self.wire_bytes = 0  # received and sent, within TLS
        wishes = {"feature_negotiation": True, "tls_v1": "tls" in kinds, "heartbeat_interval": 60_000}
        wishes |= {kind: kind in kinds for kind in ("snappy", "deflate")}
        self._sock.sendall(MAGIC + identify(json.dumps(wishes).encode()))
        self._take_frame()
        if "tls" in kinds:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
            self._sock = context.wrap_socket(self._sock)
            self._take_frame()
        if kinds & {"snappy", "deflate"}:
            self._layer = SnappyLayer() if "snappy" in kinds else DeflateLayer(6)
            while len(self.receive()) < _OK:
                pass

    def _take_frame(self) -> None:
        size = int.from_bytes(self._exactly(4), "big")
        answer = self._exactly(size)
        if answer[:4] != bytes(4):
            raise SystemExit(f"refused: {answer!r}")

    def _exactly(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            data += self._piece(count - len(data))
        return data

    def _piece(self, most: int) -> bytes:
        piece = self._sock.recv(most)
        if not piece:
            raise SystemExit("the broker has closed the connection")
        self.wire_bytes += len(piece)
        return piece

    def receive(self) -> bytes:
        data = self._piece(_READ_SIZE)
        layer = self._layer
        if layer is None:
            return data
        data = layer.decode(data)
        while layer.has_more:
            data += layer.decode(b"")
        return data

    def timeout(self, seconds: float) -> None:
        self._sock.settimeout(seconds)

    def send(self, data: bytes) -> None:
        self.send_encoded(data if self._layer is None else self._layer.encode(data))

    def send_encoded(self, data: bytes) -> None:
        self.wire_bytes += len(data)
        self._sock.sendall(data)

    def repeatable(self, data: bytes) -> bytes:
        """Return `data` in a form that may be sent any number of times, if nothing else is sent from now on."""
        if self._layer is None:
            return data
        if isinstance(self._layer, SnappyLayer):
            self.send(b"NOP\n")  # with what stands in front of the first chunk
            return self._layer.encode(data)
        compressor = zlib.compressobj(6, zlib.DEFLATED, -15)
        return compressor.compress(data) + compressor.flush(zlib.Z_FULL_FLUSH)


def bodies(count: int) -> list[bytes]:
    """Return records like real ones: they look alike, but each is different."""
    draw = random.Random(7)
    made = []
    for _ in range(count):
        record = {
            "time": draw.randrange(1_700_000_000_000, 1_800_000_000_000),
            "user": draw.randbytes(8).hex(),
            "action": draw.choice(["view", "click", "order", "return"]),
            "price": draw.randrange(100_000) / 100,
            "session": draw.randbytes(16).hex(),
        }
        made.append(json.dumps(record).encode().ljust(SIZE, b".")[:SIZE])
    return made


def publish(stream: Stream, topic: str, seconds: float, *, singly: bool) -> int:
    """Publish for so long, and return how many messages were answered."""
    count, answers = (SINGLES, SINGLES) if singly else (BATCH, 1)
    made = bodies(count)
    batch = stream.repeatable(b"".join(pub(topic, body) for body in made) if singly else mpub(topic, made))
    sent = heard = 0  # batches, and bytes of answers
    until = time.monotonic() + seconds
    while True:
        while sent - heard // (answers * _OK) < _AHEAD and time.monotonic() < until:
            stream.send_encoded(batch)
            sent += 1
        if heard == sent * answers * _OK:
            return sent * count
        heard += len(stream.receive())


def consume(stream: Stream, topic: str, seconds: float) -> tuple[int, float]:
    """Consume, and return how many messages came, and the seconds until the last one."""
    stream.send(sub(topic, "ch"))
    while len(stream.receive()) < _OK:
        pass
    began = last = time.monotonic()
    stream.send(rdy(2500))
    stream.timeout(_QUIET)
    got, data = 0, b""
    while last < began + seconds:
        try:
            data += stream.receive()
        except TimeoutError:
            break
        last = time.monotonic()
        whole = len(data) // _FRAME
        stream.send(b"".join([fin(data[at : at + 16]) for at in range(_ID, whole * _FRAME, _FRAME)]))
        got += whole
        data = data[whole * _FRAME :]
    return got, last - began


def main(port: str, name: str, mode: str, topic: str, seconds: str) -> None:
    stream = Stream(int(port), name)
    began = time.monotonic()
    stream.wire_bytes = 0
    if mode == "sub":
        count, took = consume(stream, topic, float(seconds))
    else:
        count = publish(stream, topic, float(seconds), singly=mode == "pub")
        took = time.monotonic() - began
    print(f"msgs={count} msgs_per_s={count / max(took, 1e-9):.1f} wire={stream.wire_bytes / max(count, 1):.1f}")


if __name__ == "__main__":
    main(*sys.argv[1:])
