"""The same loads, each carried out by another Python client: `python -m bench.clients.NAME PORT MODE TOPIC SECONDS`.
nsqclient's take a number behind that: it stops consuming after so many messages.

    one    publish, the next when the last is answered
    many   publish, 64 in flight
    mpub   publish 200 at once, 4 times in flight
    sub    consume and finish, 200 in flight, a handler that does nothing else

Each in the way that its own documentation shows: tasks, greenlets or callbacks. Prints `msgs=... msgs_per_s=...
cpu_us=...`, the last being the client's own processor time for a message.
"""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from typing import Final

BODY: Final = b"x" * 200
IN_FLIGHT: Final = {"one": 1, "many": 64, "mpub": 4}  # unanswered publishes
AT_ONCE: Final = 200
MAX_IN_FLIGHT: Final = 200
CHANNEL: Final = "ch"
LIMIT: Final = 30.0  # seconds to wait for anything


@dataclass(frozen=True)
class Task:
    port: int
    mode: str
    topic: str
    seconds: float
    most: int = 0  # messages to consume; 0: as many as come in this time

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"


def task() -> Task:
    port, mode, topic, seconds, *most = sys.argv[1:]
    return Task(int(port), mode, topic, float(seconds), *map(int, most))


class Meter:
    """Counts and times from the first message on."""

    def __init__(self, seconds: float, most: int = 0) -> None:
        self.messages = 0
        self._seconds, self._most = seconds, most
        self._began = self._processor = 0.0
        self._ends = float("inf")

    def start(self) -> None:
        self._began, self._processor = time.perf_counter(), time.process_time()
        self._ends = self._began + self._seconds

    @property
    def is_over(self) -> bool:
        return time.perf_counter() >= self._ends

    def count(self) -> bool:
        """Count a message, and return whether it is the last one, or the time is over."""
        if not self.messages:
            self.start()
        self.messages += 1
        # The clock is read only now and then, because that costs quick clients more than slow ones.
        return self.messages == self._most or (self.messages % 64 == 0 and self.is_over)

    def report(self) -> None:
        elapsed, used = time.perf_counter() - self._began, time.process_time() - self._processor
        print(f"msgs={self.messages} msgs_per_s={self.messages / elapsed:.1f} cpu_us={used * 1e6 / self.messages:.3f}")
