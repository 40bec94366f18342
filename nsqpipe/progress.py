"""What a stream does, while it does it: one line that is rewritten on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, Final, TextIO

from nsqpipe.lanes import lag_of

_ELSEWHERE: Final = 10.0  # seconds between two lines


class Progress:
    def __init__(self, stream: TextIO, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream = stream
        self._clock = clock
        self._on_terminal = stream.isatty()
        self._last = float("-inf")
        self._rows: dict[str, int] = {}
        self._is_open = False

    def observe(self, query: str, report: Mapping[str, Any]) -> None:
        self._rows[query] = self._rows.get(query, 0) + int(report["numInputRows"])
        self.say(told(query, report, self._rows[query]))

    def say(self, text: str) -> None:
        now = self._clock()
        if self._on_terminal:
            self._stream.write(f"\r\x1b[2K{text}")
            self._is_open = True
        elif now - self._last >= _ELSEWHERE:
            self._last = now
            self._stream.write(f"{text}\n")
        self._stream.flush()

    def close(self) -> None:
        if self._is_open:
            self._stream.write("\n")


def told(query: str, report: Mapping[str, Any], rows: int) -> str:
    """`land: batch 12, 60,000 rows read, 12,300/s, 3,210 behind`; the quarantine's query reads all of them, too."""
    speed = report.get("processedRowsPerSecond") or 0.0
    behind = sum(lag_of(report))
    return f"{query}: batch {report['batchId']}, {rows:,} rows read, {speed:,.0f}/s, {behind:,} behind"
