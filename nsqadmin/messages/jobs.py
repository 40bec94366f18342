"""Jobs: messages published by a job queue, recognized by their headers. We don't read their bodies for that.

The names of the headers come from nsqjobs/headers.py. Other publishers may use them, too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

_LIBRARY: Final = "job-library"
_NAME: Final = "job-name"
_ID: Final = "job-id"
_RETRIES: Final = "job-retries"
_ETA: Final = "job-eta"  # milliseconds since 1970
_ALL: Final = frozenset({_LIBRARY, _NAME, _ID, _RETRIES, _ETA})
_MOST_DIGITS: Final = 15
_LATEST: Final = 253402300799.0  # the end of the year 9999: we can't show a later time


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuedJob:
    """The job in a message's headers."""

    name: str
    id: str = ""
    library: str = ""
    retries: int | None = None  # None: unknown
    eta: float | None = None  # when it is due, in seconds since 1970; None: at once, or unknown


def job_in(headers: Mapping[str, str]) -> QueuedJob | None:
    """Return the job of a message with these headers; None if there is none."""
    name = headers.get(_NAME, "")
    if not name:
        return None
    eta = _number(headers.get(_ETA, ""))
    return QueuedJob(
        name=name,
        id=headers.get(_ID, ""),
        library=headers.get(_LIBRARY, ""),
        retries=_number(headers.get(_RETRIES, "")),
        eta=eta / 1000 if eta is not None and eta / 1000 <= _LATEST else None,
    )


def without_job(headers: Mapping[str, str]) -> Mapping[str, str]:
    """Return the headers that aren't about the job."""
    if job_in(headers) is None:
        return headers
    return {name: value for name, value in headers.items() if name not in _ALL}


def job_json(job: QueuedJob) -> dict[str, Any]:
    """Return the known fields of the job."""
    fields = ("name", "id", "library", "retries", "eta")
    return {name: value for name in fields if (value := getattr(job, name)) not in ("", None)}


def tasks_of(jobs: Iterable[QueuedJob | None]) -> tuple[tuple[str, int], ...]:
    """Return how many jobs there are of each name, most frequent first."""
    counts = Counter(job.name for job in jobs if job is not None)
    return tuple(sorted(counts.items(), key=lambda item: (-item[1], item[0])))


def hint_for(jobs: Iterable[QueuedJob | None]) -> str:
    """Return an example search for the first job name that can be typed; "": there is none."""
    for job in jobs:
        if job is not None and '"' not in job.name:
            return f"header.{_NAME} = {_quoted(job.name)}"
    return ""


def _quoted(name: str) -> str:
    return f'"{name}"' if any(it.isspace() for it in name) else name


def _number(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= _MOST_DIGITS else None
