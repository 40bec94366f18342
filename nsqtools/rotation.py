"""CORE of nsq_to_file: what a file is called, and when the next one is due. It opens and writes nothing.

A name is made in two steps: once for each topic (`FileNames`), and whenever the time is looked at. `<REV>` stays in
it until the file is opened, as only that shows which revisions there are.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Final

from nsqtools.datetime_format import format_datetime

REVISION: Final = "<REV>"
_GZIP_SUFFIX: Final = ".gz"


@dataclass(frozen=True, slots=True)
class FileNames:
    """The names of one topic's files."""

    pattern: str
    datetime_format: str

    def at(self, when: datetime) -> str:
        """With the time filled in, and `<REV>` still open."""
        return self.pattern.replace("<DATETIME>", format_datetime(self.datetime_format, when))


def file_names(
    filename_format: str,
    datetime_format: str,
    *,
    topic: str,
    host: str,
    host_identifier: str,
    pid: int,
    gzip: bool,
    has_revisions: bool,
) -> FileNames:
    """Raises ValueError where a revision is needed and has no place."""
    short_host = host.partition(".")[0]
    identifier = host_identifier.replace("<SHORT_HOST>", short_host).replace("<HOSTNAME>", host)
    pattern = filename_format.replace("<TOPIC>", topic).replace("<HOST>", identifier or short_host)
    pattern = pattern.replace("<PID>", str(pid))
    if not has_revisions:
        pattern = pattern.replace(REVISION, "")
    elif REVISION not in pattern:
        raise ValueError("missing <REV> in --filename-format when gzip, rotation, or work dir enabled")
    if gzip and not pattern.endswith(_GZIP_SUFFIX):
        pattern += _GZIP_SUFFIX
    return FileNames(pattern, datetime_format)


def with_revision(name: str, revision: int) -> str:
    return name.replace(REVISION, f"-{revision:06d}")


class Rotation:
    """Which file is open, and whether it still should be. Times are seconds on a clock that only goes forward."""

    def __init__(self, *, size: int = 0, interval: float = 0.0) -> None:
        self._size_limit = size
        self._interval = interval
        self._name = ""
        self._path = ""  # as it is told of
        self._opened_at = 0.0
        self._size = 0
        self.is_open = False
        self.revision = 0

    def due(self, name: str, now: float) -> str | None:
        """Why the next file should be opened, for the log (empty: there is none yet); None when it should not."""
        if not self.is_open:
            return ""
        if name != self._name:
            return f"new filename {name}, rotating..."
        if 0 < self._interval < now - self._opened_at:
            return f"{now - self._opened_at:.9f}s since last open, rotating..."
        if 0 < self._size_limit < self._size:
            return f"{self._path} currently {self._size} bytes (> {self._size_limit}), rotating..."
        return None

    def next_revision(self, name: str) -> int:
        """With which to begin to look for a free one."""
        return self.revision + 1 if name == self._name else 0

    def opened(self, name: str, path: str, revision: int, *, size: int, now: float) -> None:
        """`size` is what was in it already."""
        self._name, self._path, self.revision = name, path, revision
        self._opened_at, self._size = now, size
        self.is_open = True

    def grown(self, size: int) -> None:
        """Before compression."""
        self._size += size

    def closed(self) -> None:
        self.is_open = False
