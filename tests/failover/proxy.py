"""A bad network between one machine and an S3 server: an HTTP proxy that knows where requests begin and end.

    nsqd on machine 1 ──> StoreProxy ──┐
                                       ├──> the S3 server
    nsqd on machine 2 ──> StoreProxy ──┘

A proxy of bytes could only cut connections. What goes wrong with stores is about whole requests: an answer is lost
although the object is stored, an object arrives a minute after its sender gave up, or twice. Each machine has a proxy of its
own, so that one of them can be cut off.

Signatures stay valid, because all headers are passed on, with the name of the host that the client has asked.
"""

from __future__ import annotations

import http.client
import random
import threading
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from math import inf
from types import TracebackType
from typing import Final

from tests.support.http_server import HttpServer, Reply, Request

TIMEOUT: Final = 60.0  # seconds for an answer of the server
_OF_CONNECTIONS: Final = ("connection", "content-length", "keep-alive", "transfer-encoding", "date", "server")
_SLOW_DOWN: Final = b"<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>"
_CONFLICT: Final = b"<Error><Code>ConditionalRequestConflict</Code><Message>Try again.</Message></Error>"
_INTERNAL: Final = b"<Error><Code>InternalError</Code><Message>We encountered an internal error.</Message></Error>"


class Fault(StrEnum):
    """What happens to one request."""

    DROPPED = "dropped before the server had it"
    UNANSWERED = "carried out, and the answer was lost"
    FAILED = "carried out, and answered with 500"
    DOUBLED = "carried out twice"
    HELD = "carried out after its sender has given up"  # a PUT; any other one is dropped
    CONFLICT = "answered with 409, and not carried out"  # a PUT; any other one is dropped
    SLOWED = "answered with 503, and not carried out"


@dataclass(slots=True)
class Weather:
    """How the requests of one machine fare. Change it at any time; it holds for requests that come later."""

    latency: float = 0.0  # seconds added to each request
    faults: Mapping[Fault, float] = field(default_factory=dict)  # how many of 1 request have it
    holds_for: float = 60.0
    is_cut: bool = False  # connections are closed, and requests that wait get no answer
    is_silent: bool = False  # requests are taken, and get no answer while this is so
    loses_answers: bool = False  # requests are carried out, and get no answer
    slows_down: bool = False  # all requests are answered with 503
    rate: float = inf  # bytes a second, of bodies in both directions together


class StoreProxy(HttpServer):
    """Passes the requests of one machine on to `target`, an address as "127.0.0.1:9000"."""

    def __init__(self, target: str, chance: random.Random, weather: Weather | None = None) -> None:
        super().__init__(keeps_requests=False)
        self.weather = weather or Weather()
        self.counts: Counter[str] = Counter()  # requests by method, and faults by kind
        self._target = target
        self._chance = chance
        self._lock = threading.Lock()
        self.carried = 0  # bytes of bodies, in both directions
        self._free_at = 0.0  # when the wire has carried everything so far
        self._held: list[_Held] = []
        self._idle: list[http.client.HTTPConnection] = []
        self._closed = threading.Event()

    def deliver_held(self) -> int:
        """Have the server carry out all that is held, now. Return how many there were."""
        with self._lock:
            held, self._held = self._held, []
        for it in held:
            it.timer.cancel()
            self._forward(it.request)
        return len(held)

    def close(self) -> None:
        """End the requests that wait. Those that are held are never carried out."""
        with self._lock:
            self._closed.set()
            held, self._held = self._held, []
            idle, self._idle = self._idle, []
        for it in held:
            it.timer.cancel()
        for connection in idle:
            connection.close()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
        super().__exit__(kind, error, trace)

    # In a thread of each connection

    def reply(self, request: Request) -> Reply:
        reply = self._reply(request)
        self._carry(len(request.body) + len(reply.body))
        return reply

    def _carry(self, size: int) -> None:
        """Wait as long as the wire takes for so many bytes, after what others have on it."""
        with self._lock:
            self.carried += size
            self._free_at = max(self._free_at, time.monotonic()) + size / self.weather.rate
            free_at = self._free_at
        self._closed.wait(max(0.0, free_at - time.monotonic()))

    def _reply(self, request: Request) -> Reply:
        self.counts[request.method] += 1
        weather = self.weather
        if weather.latency:
            time.sleep(weather.latency)
        while weather.is_silent and not self._closed.is_set():
            time.sleep(0.02)  # no event would tell that a client has gone, either
        if weather.is_cut or self._closed.is_set():
            raise ConnectionAbortedError
        if weather.slows_down:
            return self._suffer(Fault.SLOWED, request)
        fault = self._draw_fault(weather)
        if fault is not None:
            return self._suffer(fault, request)
        reply = self._forward(request)
        if weather.loses_answers:
            raise ConnectionAbortedError
        return reply

    def _draw_fault(self, weather: Weather) -> Fault | None:
        with self._lock:
            luck = self._chance.random()
        for fault, share in weather.faults.items():
            luck -= share
            if luck < 0:
                return fault
        return None

    def _suffer(self, fault: Fault, request: Request) -> Reply:
        self.counts[fault] += 1
        is_put = request.method == "PUT"
        match fault:
            case Fault.SLOWED:
                return Reply(503, _SLOW_DOWN)
            case Fault.CONFLICT if is_put:
                return Reply(409, _CONFLICT)
            case Fault.UNANSWERED:
                self._forward(request)
            case Fault.FAILED:
                self._forward(request)
                return Reply(500, _INTERNAL)
            case Fault.DOUBLED:
                replies = [self._forward(request) for _ in range(2)]
                with self._lock:
                    return self._chance.choice(replies)
            case Fault.HELD if is_put:
                self._hold(request)
                self._closed.wait(self.weather.holds_for)
        raise ConnectionAbortedError

    def _hold(self, request: Request) -> None:
        held = _Held(request, threading.Timer(self.weather.holds_for, self._deliver, [request]))
        held.timer.daemon = True
        with self._lock:
            self._held.append(held)
        held.timer.start()

    def _deliver(self, request: Request) -> None:
        with self._lock:
            if not any(it.request is request for it in self._held):
                return
            self._held = [it for it in self._held if it.request is not request]
        self._forward(request)

    def _forward(self, request: Request) -> Reply:
        """Have the server carry out the request. Raise OSError or HTTPException if it gives no answer."""
        connection = self._connection()
        try:
            connection.request(
                request.method, request.target, request.body, headers={**request.headers, "connection": "keep-alive"}
            )
            response = connection.getresponse()
            body = response.read()
        except (OSError, http.client.HTTPException):
            connection.close()
            raise
        self._keep(connection)
        headers = {name: value for name, value in response.getheaders() if name.lower() not in _OF_CONNECTIONS}
        return Reply(response.status, body, headers)

    def _connection(self) -> http.client.HTTPConnection:
        with self._lock:
            if self._idle:
                return self._idle.pop()
        return http.client.HTTPConnection(self._target, timeout=TIMEOUT)

    def _keep(self, connection: http.client.HTTPConnection) -> None:
        with self._lock:
            if not self._closed.is_set():
                self._idle.append(connection)
                return
        connection.close()


@dataclass(eq=False, slots=True)
class _Held:
    request: Request
    timer: threading.Timer
