"""The headers of a job, for nsqadmin and `nsq_tail --print-headers`, the same for all libraries."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

LIBRARY: Final = "job-library"
NAME: Final = "job-name"
ID: Final = "job-id"
RETRIES: Final = "job-retries"
ETA: Final = "job-eta"  # milliseconds since 1970

_LONGEST: Final = 255  # bytes of a name or an id; all headers of a message may take 4 KiB


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """The job data in the headers."""

    library: str
    name: str
    id: str
    retries: int = 0
    eta: float | None = None  # seconds since 1970; None: due at once

    def headers(self) -> dict[str, bytes]:
        """Return the headers to publish the job with."""
        headers = {
            LIBRARY: _cut(self.library),
            NAME: _cut(self.name),
            ID: _cut(self.id),
            RETRIES: b"%d" % self.retries,
        }
        if self.eta is not None:
            headers[ETA] = b"%d" % round(self.eta * 1000)
        return headers


def eta_of(headers: Mapping[str, bytes]) -> float | None:
    """Return when the job is due, in seconds since 1970. None if that is missing or unreadable."""
    text = headers.get(ETA, b"")
    return int(text) / 1000 if text.isdigit() and len(text) < 16 else None


def eta_of_time(time: datetime) -> float:
    """Convert a time to seconds since 1970. Without a zone it is in UTC."""
    return (time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp()


def _cut(text: str) -> bytes:
    return text.encode("utf-8", "replace")[:_LONGEST]
