"""What a stream does, while it does it: one line that is rewritten on a terminal, a line now and then elsewhere."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, TextIO

from nsqpipe.lanes import lag_of

_ELSEWHERE: Final = 10.0  # seconds between two lines


class Progress:
    def __init__(self, stream: TextIO, *, quiet: bool) -> None:
        self._stream = stream
        self._quiet = quiet
        self._on_terminal = stream.isatty()
        self._last = float("-inf")
        self._rows: dict[str, int] = {}
        self._is_open = False

    def show(self, name: str, report: Mapping[str, Any], now: float) -> None:
        self._rows[name] = self._rows.get(name, 0) + int(report["numInputRows"])
        if self._quiet or (not self._on_terminal and now - self._last < _ELSEWHERE):
            return
        self._last = now
        text = told(name, report, self._rows[name])
        self._stream.write(f"\r\x1b[2K{text}" if self._on_terminal else f"{text}\n")
        self._stream.flush()
        self._is_open = self._on_terminal

    def close(self) -> None:
        if self._is_open:
            self._stream.write("\n")


def told(name: str, report: Mapping[str, Any], rows: int) -> str:
    """`land: batch 12, 60,000 rows, 12,300/s, 3,210 behind`"""
    speed = report.get("processedRowsPerSecond") or 0.0
    behind = sum(lag_of(report))
    return f"{name}: batch {report['batchId']}, {rows:,} rows, {speed:,.0f}/s, {behind:,} behind"
