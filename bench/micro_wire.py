"""What cutting commands costs, in nanoseconds for each message: `python -m bench.micro_wire`.

Each case is a buffer as one read from a busy socket would return it, cut until nothing is left. The figure is the best
of several rounds, because whatever else the machine does can only add to it.
"""

from __future__ import annotations

import platform
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nsqcommon.wire import commands
from nsqcommon.wire.frames import FrameReader, response_frame
from nsqcommon.wire.limits import SizeLimits
from nsqcommon.wire.names import decode_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ROUNDS = 7
SECONDS_A_ROUND = 0.15


@dataclass(frozen=True)
class Case:
    name: str
    items: int  # messages in one call of `work`
    work: Callable[[], None]


def main() -> None:
    print(f"{platform.python_implementation()} {platform.python_version()} on {platform.machine()}, {sys.platform}")
    for case in cases():
        print(f"{nanoseconds_an_item(case):10.1f} ns  {case.name}")


def cases() -> Iterator[Case]:
    body = bytes(200)
    ids = [b"%016x" % number for number in range(2000)]
    pubs = commands.pub("orders", body) * 250
    yield Case("PUB, 200 bytes, 250 in a buffer", 250, reading(pubs))
    yield Case("PUB, one in a buffer", 1, reading(commands.pub("orders", body)))
    yield Case("PUB, 250 in reads of 16 KiB", 250, reading(pubs, piece=16384))
    yield Case("DPUB, 250 in a buffer", 250, reading(commands.dpub("orders", 1000, body) * 250))
    equal = commands.mpub("orders", [body] * 200)
    yield Case("MPUB of 200 equal messages", 200, reading(equal))
    yield Case("MPUB of 200 equal messages, in reads of 16 KiB", 200, reading(equal, piece=16384))
    unequal = commands.mpub("orders", [bytes(150 + number % 101) for number in range(200)])
    yield Case("MPUB of 200 messages of many sizes", 200, reading(unequal))
    yield Case("MPUB of 200 of many sizes, in reads of 16 KiB", 200, reading(unequal, piece=16384))
    yield Case("FIN, one in a buffer", 1, reading(commands.fin(ids[0])))
    yield Case("FIN, 10 in a buffer", 10, reading(b"".join(map(commands.fin, ids[:10]))))
    run = b"".join(map(commands.fin, ids[:200]))
    yield Case("FIN, 200 in a buffer", 200, reading(run))
    yield Case("FIN, 2000 in a buffer", 2000, reading(b"".join(map(commands.fin, ids))))
    yield Case("FIN, runs of 200 with an RDY between", 1000, reading((run + commands.rdy(200)) * 5))
    yield Case("FIN, 2000 in reads of 1460 bytes", 2000, reading(b"".join(map(commands.fin, ids)), piece=1460))
    yield Case("FIN with \\r\\n, 200 in a buffer", 200, reading(run.replace(b"\n", b"\r\n")))
    yield Case("REQ, 200 in a buffer", 200, reading(b"".join(commands.req(id_, 1000) for id_ in ids[:200])))
    yield Case("RDY, one in a buffer", 1, reading(commands.rdy(200)))
    yield Case("name, known", 1, decoding(b"orders"))
    yield Case("frame, 250 of 200 bytes in a buffer", 250, framing(response_frame(body) * 250))


def reading(stream: bytes, piece: int = 1 << 20) -> Callable[[], None]:
    pieces = cut(stream, piece)
    reader = commands.CommandReader(SizeLimits(), admit=lambda params: None)

    def work() -> None:
        next_command = reader.next_command
        for data in pieces:
            reader.receive(data)
            while next_command() is not None:
                pass

    return work


def framing(stream: bytes) -> Callable[[], None]:
    reader = FrameReader(1 << 20)

    def work() -> None:
        reader.receive(stream)
        while reader.next_frame() is not None:
            pass

    return work


def decoding(name: bytes) -> Callable[[], None]:
    def work() -> None:
        decode_name(name)

    return work


def cut(stream: bytes, piece: int) -> list[bytes]:
    return [stream[at : at + piece] for at in range(0, len(stream), piece)]


def nanoseconds_an_item(case: Case) -> float:
    work, clock = case.work, time.perf_counter_ns
    calls, best = 1, float("inf")
    for _ in range(ROUNDS):
        while True:
            began = clock()
            for _ in range(calls):
                work()
            elapsed = clock() - began
            if elapsed >= SECONDS_A_ROUND * 1e9:
                break
            calls *= 2
        best = min(best, elapsed / calls / case.items)
    return best


if __name__ == "__main__":
    main()
