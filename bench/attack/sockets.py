"""How attackers use sockets. Python is fast enough, because they send prepared buffers over plain sockets."""

from __future__ import annotations

import select
import socket
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Final

from bench.work import HOST
from nsqcommon.wire.commands import MAGIC, identify

LIMIT: Final = 30.0  # seconds for a connection, and for a blocking answer
_READ: Final = 1 << 18
_PAUSE: Final = 0.05


def connect(port: int, *, receive_buffer: int = 0) -> socket.socket:
    sock = socket.socket()
    sock.settimeout(LIMIT)
    if receive_buffer:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    sock.connect((HOST, port))
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


def client(port: int, wishes: bytes = b'{"heartbeat_interval":60000}', *, receive_buffer: int = 0) -> socket.socket:
    """Connect a client, identify it and read the answer. By default no heartbeat comes for a minute."""
    sock = connect(port, receive_buffer=receive_buffer)
    sock.sendall(MAGIC + identify(wishes))
    read_frame(sock)
    return sock


def read_frame(sock: socket.socket) -> bytes:
    return exactly(sock, int.from_bytes(exactly(sock, 4), "big"))


def hear_ok(sock: socket.socket) -> None:
    answer = read_frame(sock)
    if not answer.endswith(b"OK"):
        raise ConnectionError(f"refused: {answer!r}")


def exactly(sock: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        piece = sock.recv(count - len(data))
        if not piece:
            raise ConnectionError("closed by the daemon")
        data += piece
    return data


@contextmanager
def many(count: int, make: Callable[[], socket.socket]) -> Iterator[list[socket.socket]]:
    with ExitStack() as stack:
        yield [stack.enter_context(make()) for _ in range(count)]


def flood(make: Callable[[], socket.socket], buffer: bytes, until: float, *, connections: int = 3) -> int:
    """Send `buffer` again and again on each connection, and discard the answers. Return how many bytes were sent.

    A connection that the daemon closes is made anew: an attacker would do so as well.
    """
    sent = 0
    unsent: dict[socket.socket, memoryview] = {}

    def begin() -> None:
        with suppress(OSError):
            sock = make()
            sock.setblocking(False)
            unsent[sock] = memoryview(buffer)

    while time.monotonic() < until:
        while len(unsent) < connections and time.monotonic() < until:
            begin()
        readable, writable, _ = select.select(unsent, unsent, (), _PAUSE)
        for sock in readable:
            if not discard(sock):
                unsent.pop(sock).release()
                sock.close()
        for sock in writable:
            if sock not in unsent:
                continue
            with suppress(OSError):  # the next read shows the result
                count = sock.send(unsent[sock][: 1 << 20])
                sent += count
                unsent[sock] = unsent[sock][count:] or memoryview(buffer)
    for sock in unsent:
        sock.close()
    return sent


def discard(sock: socket.socket) -> bool:
    """Read what there is, and return whether the connection is still open."""
    try:
        return bool(sock.recv(_READ))
    except BlockingIOError:
        return True
    except OSError:
        return False


def send_to_all(socks: Iterable[socket.socket], data: bytes) -> None:
    """Send as much of `data` as each socket takes without waiting."""
    for sock in socks:
        sock.setblocking(False)
        with suppress(OSError):
            sock.send(data)


def paced(rate: float, until: float) -> Iterator[int]:
    """Yield numbers, `rate` a second at most, until it is time to end."""
    began = time.monotonic()
    number = 0
    while (now := time.monotonic()) < until:
        if (early := began + number / rate - now) > 0:
            time.sleep(min(early, until - now))
            continue
        yield number
        number += 1


def wait_until(until: float) -> None:
    time.sleep(max(0.0, until - time.monotonic()))
