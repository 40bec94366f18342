"""How long a start, or a thread, waits for a disk that refuses to read."""

from __future__ import annotations

import errno

import pytest

from nsqd.log.reading import refusals as reading
from nsqd.log.reading.refusals import READ_PATIENCE, RETRY_INTERVAL, patiently


class SickDisk:
    """Takes this many seconds to refuse each read."""

    def __init__(self, seconds: float) -> None:
        self.now = 100.0
        self.reads = 0
        self._seconds = seconds

    def read(self) -> bytes:
        self.reads += 1
        self.now += self._seconds
        raise OSError(errno.EIO, "Input/output error")

    def pause(self, seconds: float) -> None:
        self.now += seconds


@pytest.mark.parametrize(("seconds", "reads"), [(0.0, round(READ_PATIENCE / RETRY_INTERVAL) + 1), (1.0, 3), (30.0, 1)])
def test_time_that_the_disk_takes_to_refuse_counts(monkeypatch: pytest.MonkeyPatch, seconds: float, reads: int) -> None:
    disk = SickDisk(seconds)
    monkeypatch.setattr(reading, "monotonic", lambda: disk.now)
    with pytest.raises(OSError, match="Input/output"):
        patiently(disk.read, disk.pause)
    assert disk.reads == reads
