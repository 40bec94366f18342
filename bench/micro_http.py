"""The cost of a request on publishing's short path, without sockets: `python -m bench.micro_http`.

The broker is a stand-in that does nothing, so that only parsing, deciding and answering are measured.
"""

from __future__ import annotations

import platform
import sys
from collections.abc import Sequence
from time import perf_counter_ns

from nsqcommon.http_api import HttpDate
from nsqcommon.wire.limits import SizeLimits
from nsqd.broker.batch import Receipt
from nsqd.http.publishing import Publishing
from nsqd.http.quick import QuickHttp, QuickRoutes

BODY = b"x" * 200
ROUNDS = 7
REQUESTS = 20_000


class IdleTopic:
    def __init__(self) -> None:
        self._receipt = Receipt()
        self._receipt.settle()

    def publish_one(self, sized_body: bytes, delay_ms: int = 0) -> Receipt:
        return self._receipt

    def publish(self, payload: bytes, offsets: Sequence[int], delay_ms: int = 0) -> Receipt:
        return self._receipt


class IdleBroker:
    def __init__(self) -> None:
        self._topic = IdleTopic()

    def topic(self, name: str) -> IdleTopic:
        return self._topic

    def health(self) -> str:
        return "OK"


def request(target: str, body: bytes = b"", *, headers: str = "") -> bytes:
    head = (
        f"POST {target} HTTP/1.1\r\nHost: 127.0.0.1:4151\r\nUser-Agent: Go-http-client/1.1\r\n"
        f"Content-Length: {len(body)}\r\nContent-Type: application/octet-stream\r\n{headers}Accept-Encoding: gzip\r\n\r\n"
    )
    return head.encode() + body


def measure(name: str, packets: list[bytes], *, requests: int) -> None:
    broker = IdleBroker()
    publishing = Publishing(broker, SizeLimits(), max_defer_ms=3_600_000)  # type: ignore[arg-type]  # a stand-in
    routes = QuickRoutes(broker, publishing, HttpDate())  # type: ignore[arg-type]  # the same
    best = float("inf")
    for _ in range(ROUNDS):
        quick = QuickHttp(routes, hand_off=lambda received: sys.exit("handed off"), wake=lambda: None)
        start = perf_counter_ns()
        for packet in packets:
            quick.receive(packet, 0.0)
            quick.bytes_to_send()
            quick.sent(0)
        best = min(best, (perf_counter_ns() - start) / requests)
    print(f"{name:<44} {best:8.0f} ns/request")


def main() -> None:
    print(f"Python {platform.python_version()}, {platform.machine()}")
    pub = request("/pub?topic=test", BODY)
    measure("POST /pub, 200 bytes", [pub] * REQUESTS, requests=REQUESTS)
    measure("POST /pub, 200 bytes, 10 pipelined", [pub * 10] * (REQUESTS // 10), requests=REQUESTS)
    sizes = [request("/pub?topic=test", b"x" * (1 + n % 1000)) for n in range(REQUESTS)]
    measure("POST /pub, 1,000 sizes", sizes, requests=REQUESTS)
    unique = [request("/pub?topic=test", BODY, headers=f"X-Request-Id: {n}\r\n") for n in range(REQUESTS)]
    measure("POST /pub, every head another", unique, requests=REQUESTS)
    measure("POST /pub, head and body in two packets", [pub[:-200], BODY] * REQUESTS, requests=REQUESTS)
    measure(
        "POST /mpub, 100 lines of 200 bytes",
        [request("/mpub?topic=test", b"\n".join([BODY] * 100))] * 2000,
        requests=2000,
    )
    counted = (100).to_bytes(4, "big") + (len(BODY).to_bytes(4, "big") + BODY) * 100
    measure(
        "POST /mpub, binary, 100 of 200 bytes", [request("/mpub?topic=test&binary=true", counted)] * 2000, requests=2000
    )
    measure("GET /ping", [b"GET /ping HTTP/1.1\r\nHost: x\r\n\r\n"] * REQUESTS, requests=REQUESTS)


if __name__ == "__main__":
    main()
