"""`bench.http_consume`: takes messages with `POST /sub` on one connection, finishes them on another.

    python -m bench.clients.http_load PORT TOPIC CHANNEL MAX COUNT

Requests to take are pipelined, so that the broker always has the next one. The client does as little as it can, as it
shares the machine with what is measured: ids are found by the member that has them.
"""

from __future__ import annotations

import re
import socket
import sys
import time
from typing import Final

_AHEAD: Final = 4  # requests to take that are under way
_READ_SIZE: Final = 1 << 18

_ids_in: Final = re.compile(rb'"id":"([0-9a-f]{16})"').findall
_length_in: Final = re.compile(rb"\r\nContent-Length: (\d+)\r\n").search


class Connection:
    """A connection that is kept alive, and whose answers come in the order of the requests."""

    def __init__(self, port: int) -> None:
        self._sock = socket.create_connection(("127.0.0.1", port), timeout=30)
        self._sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._data = b""

    def ask(self, target: str, body: bytes = b"") -> None:
        head = f"POST {target} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
        self._sock.sendall(head.encode() + body)

    def answer(self) -> bytes:
        """Return the body of the next answer."""
        while (end := self._data.find(b"\r\n\r\n")) < 0:
            self._more()
        head = self._data[: end + 4]
        found = _length_in(head)
        if not head.startswith(b"HTTP/1.1 200 ") or found is None:
            raise SystemExit(f"refused: {self._data!r}")
        size = end + 4 + int(found[1])
        pieces, held = [self._data], len(self._data)
        while held < size:
            pieces.append(self._piece())
            held += len(pieces[-1])
        whole = b"".join(pieces)
        self._data = whole[size:]
        return whole[end + 4 : size]

    def _more(self) -> None:
        self._data += self._piece()

    def _piece(self) -> bytes:
        piece = self._sock.recv(_READ_SIZE)
        if not piece:
            raise SystemExit("the broker has closed the connection")
        return piece


def main() -> None:
    port, topic, channel, most, count = sys.argv[1:]
    at = f"?topic={topic}&channel={channel}"
    taking, finishing = Connection(int(port)), Connection(int(port))
    target = f"/sub{at}&max={most}&wait=1s"
    began, done, unanswered = time.monotonic(), 0, 0
    for _ in range(_AHEAD):
        taking.ask(target)
    while done < int(count):
        ids = _ids_in(taking.answer())
        if not ids:
            raise SystemExit(f"nothing came after {done} messages")
        taking.ask(target)
        done += len(ids)
        finishing.ask(f"/fin{at}", b"\n".join(ids))
        unanswered += 1
        while unanswered > _AHEAD:
            _check(finishing.answer())
            unanswered -= 1
    for _ in range(unanswered):
        _check(finishing.answer())
    seconds = time.monotonic() - began
    sys.stdout.write(f"msgs={done} msgs_per_s={done / seconds}\n")


def _check(fates: bytes) -> None:
    if b'"error"' in fates:
        raise SystemExit(f"not finished: {fates[:300]!r}")


if __name__ == "__main__":
    main()
