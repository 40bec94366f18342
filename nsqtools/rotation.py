"""CORE of nsq_to_file: file names, and when to start the next file. Opens and writes nothing.

A name is built in two steps: once for each topic (`FileNames`), and again for the current time. `<REV>` stays in the
name until we open the file, because only then we know which revisions exist.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final

REVISION: Final = "<REV>"
_GZIP_SUFFIX: Final = ".gz"
_MONTHS: Final = (
    "January", "February", "March", "April", "May", "June",
    "July", "August", "September", "October", "November", "December",
)  # fmt: skip
_DAYS: Final = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")

# The percent codes of --datetime-format, in English in every locale. Unknown codes are left as they are.
_CODES: Final[Mapping[str, Callable[[datetime], str]]] = {
    "Y": lambda when: f"{when.year:04d}",
    "y": lambda when: f"{when.year % 100:02d}",
    "m": lambda when: f"{when.month:02d}",
    "B": lambda when: _MONTHS[when.month - 1],
    "b": lambda when: _MONTHS[when.month - 1][:3],
    "d": lambda when: f"{when.day:02d}",
    "A": lambda when: _DAYS[when.weekday()],
    "a": lambda when: _DAYS[when.weekday()][:3],
    "H": lambda when: f"{when.hour:02d}",
    "I": lambda when: f"{(when.hour - 1) % 12 + 1:02d}",
    "M": lambda when: f"{when.minute:02d}",
    "S": lambda when: f"{when.second:02d}",
    "p": lambda when: "AM" if when.hour < 12 else "PM",
    "Z": lambda when: when.tzname() or "",
    "z": lambda when: _offset(when),
    "%": lambda when: "%",
}


@dataclass(frozen=True, slots=True)
class FileNames:
    """The names of one topic's files."""

    pattern: str
    datetime_format: str

    def at(self, when: datetime) -> str:
        """Return the name at this time, with `<REV>` still in it."""
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
    """Return the names of a topic's files. Raise ValueError if the format lacks a revision that is needed."""
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
    """Return the name with `<REV>` replaced."""
    return name.replace(REVISION, f"-{revision:06d}")


def format_datetime(pattern: str, when: datetime) -> str:
    """Replace the codes in `pattern`; `when` must have a time zone."""

    def replacement(found: re.Match[str]) -> str:
        code = _CODES.get(found[1])
        return found[0] if code is None else code(when)

    return re.sub("%(.)", replacement, pattern, flags=re.DOTALL)


def _offset(when: datetime) -> str:
    seconds = int(offset.total_seconds()) if (offset := when.utcoffset()) is not None else 0
    hours, minutes = divmod(abs(seconds) // 60, 60)
    return f"{'-' if seconds < 0 else '+'}{hours:02d}{minutes:02d}"


class Rotation:
    """The open file, and whether to go on using it. Times are seconds on a monotonic clock."""

    def __init__(self, *, size: int = 0, interval: float = 0.0) -> None:
        self._size_limit = size
        self._interval = interval
        self._name = ""
        self._path = ""  # for the log
        self._opened_at = 0.0
        self._size = 0
        self.is_open = False
        self.revision = 0

    def due(self, name: str, now: float) -> str | None:
        """Return the reason to open the next file, as a log line; None if there is none.

        The line is empty if no file is open.
        """
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
        """Return the first revision to try."""
        return self.revision + 1 if name == self._name else 0

    def opened(self, name: str, path: str, revision: int, *, size: int, now: float) -> None:
        """Record an opened file; `size` is its current size."""
        self._name, self._path, self.revision = name, path, revision
        self._opened_at, self._size = now, size
        self.is_open = True

    def grown(self, size: int) -> None:
        """Record data written to the file; `size` is before compression."""
        self._size += size

    def closed(self) -> None:
        """Record that the file was closed."""
        self.is_open = False
