"""Acts as many nsqd of one nsqlookupd: `python -m bench.lookup_peers PORT CONNECTIONS TOPICS shared|own WINDOW`.

Each connection identifies itself and registers its topics with a channel each, with at most WINDOW unanswered commands
(NSQ's own nsqd: 1). When all are registered, a line says how many seconds that took since the first of them could connect.
If a connection breaks, it begins again, and so does the measurement.
"""

from __future__ import annotations

import select
import socket
import sys
import time
from dataclasses import dataclass, field
from typing import Final

from nsqcommon.wire.lookup import MAGIC, ReplyReader, encode_command, identify_body

HOST: Final = "127.0.0.1"
RETRY: Final = 0.02  # seconds between attempts to connect
MOST_REPLY: Final = 1 << 20


@dataclass
class Nsqd:
    commands: list[bytes]
    sock: socket.socket = field(init=False)
    reader: ReplyReader = field(init=False)
    sent: int = 0
    answered: int = 0

    def connect(self, port: int) -> None:
        """Connect to the nsqlookupd. Raises OSError when nothing listens."""
        self.sock = socket.create_connection((HOST, port), timeout=5)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.sent = self.answered = 0
        self.reader = ReplyReader(MOST_REPLY)

    def receive(self, data: bytes) -> None:
        self.reader.receive(data)
        while (reply := self.reader.next_reply()) is not None:
            self.answered += 1
            if reply.startswith(b"E_"):
                raise SystemExit(f"refused: {reply.decode()}")

    def send(self, window: int) -> None:
        until = min(len(self.commands), self.answered + window)
        if until > self.sent:
            self.sock.sendall(b"".join(self.commands[self.sent : until]))
            self.sent = until

    @property
    def is_done(self) -> bool:
        return self.answered == len(self.commands)


def commands_of(number: int, topics: int, *, shared: bool) -> list[bytes]:
    address = f"host-{number}.example.org"
    body = identify_body(
        broadcast_address=address,
        hostname=address,
        http_port=4151,
        tcp_port=4150,
        topology_region="",
        topology_zone="",
        version="1.3.0",
    )
    prefix = "topic" if shared else f"topic-{number}"
    registers = [encode_command("REGISTER", f"{prefix}-{index}", "archive") for index in range(topics)]
    return [MAGIC + encode_command("IDENTIFY", body=body), *registers]


def run(port: int, fleet: list[Nsqd], window: int) -> None:
    epoll = select.epoll()
    connected: dict[int, Nsqd] = {}
    cut_off = list(fleet)
    began = 0.0
    left = len(fleet)
    while True:
        while cut_off:
            try:
                cut_off[-1].connect(port)
            except OSError:
                break
            nsqd = cut_off.pop()
            began = began or time.monotonic()
            connected[nsqd.sock.fileno()] = nsqd
            epoll.register(nsqd.sock, select.EPOLLIN)
            nsqd.send(window)
        for fd, _ in epoll.poll(RETRY if cut_off else 1):
            nsqd = connected[fd]
            try:
                data = nsqd.sock.recv(65536)
                if data:
                    nsqd.receive(data)
                    nsqd.send(window)
            except OSError:
                data = b""
            if not data:
                left += nsqd.is_done
                began = 0.0
                epoll.unregister(fd)
                nsqd.sock.close()
                cut_off.append(connected.pop(fd))
            elif nsqd.is_done:
                left -= 1
                if left == 0:
                    print(f"{time.monotonic() - began:.3f}", flush=True)


def main() -> None:
    port, connections, topics, sharing, window = sys.argv[1:]
    shared = sharing == "shared"
    fleet = [Nsqd(commands_of(number, int(topics), shared=shared)) for number in range(int(connections))]
    run(int(port), fleet, int(window))


if __name__ == "__main__":
    main()
