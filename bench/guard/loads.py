"""The loads of `python -m bench guard`, in this process: bytes into nsqd's protocol, the end of the turn, bytes out.

    valgrind --tool=callgrind --instr-atstart=no ... python loads.py REQUESTS FOLDER

REQUESTS is requests.c as a library, and FOLDER an empty folder for the data path.

The parts are nsqd's own, put together as in `nsqd/daemon.py`, without the poller, the HTTP server and the store's
tasks. The log is nsqd's own, too, because it is a third of a PUB: it writes to a file, and Valgrind counts no
instructions of the kernel, so the disk makes no difference. Everything else that could make two runs differ is fixed:
the clocks, the ids, the hash seed, and the garbage collector, which is off.

This module imports few names of nsqd, all of them for `Node`, and none of `bench`. So it also runs where only nsqd is
installed, and on other commits.
"""

from __future__ import annotations

import ctypes
import gc
import json
import sys
from collections.abc import Sequence
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Final, cast

from nsqd.broker.rules import NO_RULES
from nsqd.client.protocol import ClientProtocol
from nsqd.client.tcp import rules_of
from nsqd.log.store import DiskStore
from nsqd.options import Options
from nsqd.start import log_settings, restored_broker
from nsqd.turn import Turn

if TYPE_CHECKING:
    from nsqcommon.wire.identify import HttpEndpoint

BODY: Final = bytes(200)
BATCH: Final = 50
SINGLES: Final = 60  # turns with one message each
BATCHES: Final = 40  # turns with a batch each; RDY may be 2,500, so no more than 50
ROUNDS: Final = 4  # the first does not count
HOLES: Final = 2000  # of each size, more than a run fills
STEP: Final = 0.001  # seconds from turn to turn
BEGAN: Final = 1_700_000_000_000_000_000

OK: Final = b"\0\0\0\x06\0\0\0\0OK"
_MESSAGE_HEAD: Final = 34  # bytes of a frame up to the message's body: size, type, timestamp, attempts, id


class Node:
    """nsqd without sockets, threads and time."""

    def __init__(self, folder: str) -> None:
        options = Options(node_id=1, data_path=folder)
        numbers = count(1)
        self._now = 0.0
        store = DiskStore.open(
            folder,
            log_settings(options, None),
            clock=lambda: self._now,
            wall=lambda: BEGAN,
            new_id=lambda: f"{next(numbers):032x}",
        )
        self._broker = restored_broker(store, store.recover(), options, NO_RULES, now=0.0, timestamp=BEGAN)
        self._context = self._broker.turn  # one look-up less in each turn, as compiled code hardly pays for it
        self._turn = Turn(self._broker, store, announce=lambda topics: None, flush=self._flush)
        self._rules = rules_of(options, cast("HttpEndpoint", None))  # for IDENTIFY, which no client sends here
        self._woken: dict[Client, None] = {}

    def connect(self) -> Client:
        client = Client()
        client.protocol = ClientProtocol(
            self._broker,
            self._rules,
            remote_address="127.0.0.1:50000",
            remote_host="127.0.0.1",
            wake=partial(self._woken.setdefault, client),
            note=lambda kind, text: None,
            upgrade=lambda client, granted, early: None,
        )
        self.turn(client, b"  V2")
        return client

    def turn(self, client: Client, data: bytes) -> None:
        """Do what the poller does if one socket is ready and has these bytes."""
        self._now += STEP
        self._context.now = self._now
        self._context.timestamp = BEGAN + int(self._now * 1e9)
        client.protocol.receive(data, self._now)
        self._turn.finish()

    def _flush(self) -> None:
        while self._woken:
            client, _ = self._woken.popitem()
            if pieces := client.protocol.bytes_to_send():
                client.received.append(b"".join(pieces))
                client.protocol.sent(0)


class Client:
    protocol: ClientProtocol

    def __init__(self) -> None:
        self.received: list[bytes] = []

    def take(self) -> bytes:
        received, self.received = self.received, []
        return b"".join(received)


class Loads:
    """Publishes, delivers and finishes one message in each turn, then a batch in each turn."""

    def __init__(self, node: Node, requests: ctypes.CDLL) -> None:
        self._node = node
        self._requests = requests
        self._counts = False
        self.messages: dict[str, int] = {}  # of each load, in a round
        self._publisher, self._consumer = node.connect(), node.connect()
        node.turn(self._consumer, b"SUB orders billing\n")
        assert self._consumer.take() == OK

    def run(self) -> None:
        for round_ in range(ROUNDS):
            self._counts = round_ > 0  # by then Python has specialized the bytecode, and lists have grown
            single = b"PUB orders\n" + sized(BODY)
            self._publish("PUB", single, SINGLES, 1)
            self._consume("delivery", "FIN", SINGLES, 1)
            batch = b"MPUB orders\n" + sized(BATCH.to_bytes(4, "big") + sized(BODY) * BATCH)
            self._publish("MPUB", batch, BATCHES, BATCH)
            self._consume("delivery in batches", "FIN in batches", BATCHES, BATCH)

    def _publish(self, load: str, command: bytes, turns: int, batch: int) -> None:
        self._count(load, self._publisher, [command] * turns, batch)
        assert self._publisher.take() == OK * turns

    def _consume(self, delivery: str, finish: str, turns: int, batch: int) -> None:
        """Raise RDY by a batch in each turn, then finish a batch in each turn. That leaves the channel empty."""
        consumer = self._consumer
        self._count(delivery, consumer, [b"RDY %d\n" % (turn * batch) for turn in range(1, turns + 1)], batch)
        fins = [b"FIN %b\n" % id for id in message_ids(consumer.take())]
        assert len(fins) == turns * batch
        self._count(finish, consumer, [b"".join(fins[at : at + batch]) for at in range(0, len(fins), batch)], batch)
        self._node.turn(consumer, b"RDY 0\n")
        assert consumer.take() == b""

    def _count(self, load: str, client: Client, turns: Sequence[bytes], batch: int) -> None:
        if self._counts:
            self._requests.begin()
        turn = self._node.turn
        for data in turns:
            turn(client, data)
        if self._counts:
            self._requests.end(load.encode())
            self.messages[load] = len(turns) * batch


def sized(data: bytes) -> bytes:
    return len(data).to_bytes(4, "big") + data


def message_ids(frames: bytes) -> list[bytes]:
    size = _MESSAGE_HEAD + len(BODY)
    assert len(frames) % size == 0
    return [frames[at + _MESSAGE_HEAD - 16 : at + _MESSAGE_HEAD] for at in range(0, len(frames), size)]


def leave_holes() -> list[object]:
    """Leave freed room of all small sizes, in 16s, on the heap. Keep the result, which is what lies around it.

    Python's memory comes in pools, each for objects of one size. Without holes it is chance whether a turn's temporary
    objects fill a pool, so that each turn begins a new one and gives it back. That made up to 2 % of a load, and changed
    with any line of code.
    """
    kept: list[object] = []
    empty = sys.getsizeof(b"")
    for size in range(48, 513, 16):
        kept += [bytes(size - empty) for _ in range(HOLES * 2)][::2]
    for make in (object, float):  # 16 and 32 bytes
        kept += [make() for _ in range(HOLES * 2)][::2]
    return kept


def main() -> None:
    gc.disable()
    around = leave_holes()
    _, requests, folder = sys.argv
    loads = Loads(Node(folder), ctypes.CDLL(requests))
    loads.run()
    is_compiled = not str(sys.modules[ClientProtocol.__module__].__file__).endswith(".py")
    print(json.dumps({"is_compiled": is_compiled, "messages": loads.messages}))
    del around


if __name__ == "__main__":
    main()
