"""What workers of job queues report about their runs: the messages of an ephemeral topic, as JSON.

nsqjobs writes them, nsqadmin reads them. A message has some events of one process, because a message per event would
cost each side more than the event. See docs/decisions/0043-jobs.md.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

TOPIC: Final = "nsqjobs.outcomes#ephemeral"

MOST_EVENTS: Final = 1_000  # in one message
MOST_TRACEBACK: Final = 8 << 10  # bytes: the end of a traceback
MOST_TEXT: Final = 255  # characters of any other text

_VERSION: Final = 1
_ENVELOPE: Final = 300  # bytes of an event without its texts, about
_CUT: Final = "...\n"  # before the end of a long traceback
_LATEST: Final = 253402300799.0  # the end of the year 9999: we can't show a later time
_LONGEST: Final = 1e12  # milliseconds


class State(StrEnum):
    STARTED = "started"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    RETRYING = "retrying"  # it failed and will run again, because its library or its worker says so


@dataclass(frozen=True, slots=True, kw_only=True)
class JobEvent:
    """The start or the end of one run."""

    state: State
    name: str
    id: str
    library: str
    topic: str
    channel: str
    worker: str  # host:pid of the process that runs it
    started_at: float  # seconds since 1970
    message: str = ""  # nsqd's id
    attempts: int = 1
    retries: int = 0
    ms: float | None = None  # how long it took; None: it runs, or unknown
    outcome: str = ""  # what became of its message, such as "buried"
    error: str = ""  # one line: `Type: text`
    traceback: str = ""  # its end

    @property
    def ended_at(self) -> float:
        return self.started_at + (self.ms or 0.0) / 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class JobReport:
    """One message: what a process has to say since its last one."""

    worker: str  # host:pid of the process that reports
    events: tuple[JobEvent, ...]
    is_whole: bool = False  # the process has no other running jobs than the started ones in here
    dropped: int = 0  # events that it could not report, since its start


def encode(report: JobReport) -> bytes:
    return _encoded(
        {
            "version": _VERSION,
            "worker": report.worker,
            "is_whole": report.is_whole,
            "dropped": report.dropped,
            "events": [_document(event, report.worker) for event in report.events],
        }
    )


def size_of(event: JobEvent) -> int:
    """Return about how many bytes an event takes in a message, and never much less."""
    return size_of_texts(event.name, event.id, event.error, event.traceback)


def size_of_texts(*texts: str) -> int:
    """Return about how many bytes an event with these texts takes in a message."""
    return _ENVELOPE + sum(map(_size_of, texts))


def _size_of(text: str) -> int:
    if text.isascii() and text.isprintable():
        return len(text)
    return len(_encoded(text))  # a control character takes six bytes


def _encoded(value: Any) -> bytes:
    # Half a surrogate pair, as in the name of a file that isn't UTF-8, becomes an escape of JSON.
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "backslashreplace")


def _document(event: JobEvent, worker: str) -> dict[str, Any]:
    document: dict[str, Any] = {
        "state": event.state,
        "name": event.name,
        "id": event.id,
        "library": event.library,
        "topic": event.topic,
        "channel": event.channel,
        "started_at": round(event.started_at, 3),
        "message": event.message,
        "attempts": event.attempts,
        "retries": event.retries,
    }
    if event.worker != worker:
        document["worker"] = event.worker
    if event.ms is not None:
        document["ms"] = round(event.ms, 1)
    for name in ("outcome", "error", "traceback"):
        if text := getattr(event, name):
            document[name] = text
    return document


def decode(body: bytes | bytearray | memoryview) -> JobReport:
    """Parse a message. Raise ValueError for one that isn't a report: anyone may publish to the topic."""
    try:
        said = json.loads(bytes(body))
        if said["version"] != _VERSION:
            raise ValueError(f"version {said['version']!r:.20}, expected {_VERSION}")
        worker = _text(said, "worker")
        events = said["events"]
        if not isinstance(events, list) or len(events) > MOST_EVENTS:
            raise ValueError(f"events is no list of at most {MOST_EVENTS:,}")
        return JobReport(
            worker=worker,
            events=tuple(_event(it, worker) for it in events),
            is_whole=said.get("is_whole") is True,
            dropped=_whole(said, "dropped"),
        )
    except (KeyError, TypeError, AttributeError, RecursionError, OverflowError) as error:
        raise ValueError(f"not a report about jobs: {error!r:.200}") from error


def _event(said: Mapping[str, Any], worker: str) -> JobEvent:
    ms = said.get("ms")
    return JobEvent(
        state=State(said["state"]),
        name=_text(said, "name"),
        id=_text(said, "id"),
        library=_text(said, "library"),
        topic=_text(said, "topic"),
        channel=_text(said, "channel"),
        worker=_text(said, "worker") or worker,
        started_at=_number(said["started_at"], _LATEST),
        message=_text(said, "message"),
        attempts=_whole(said, "attempts"),
        retries=_whole(said, "retries"),
        ms=None if ms is None else _number(ms, _LONGEST),
        outcome=_text(said, "outcome"),
        error=_text(said, "error"),
        traceback=end_of(_any_text(said, "traceback")),
    )


def _any_text(said: Mapping[str, Any], name: str) -> str:
    text = said.get(name, "")
    if not isinstance(text, str):
        raise TypeError(f"{name} is no text")
    return printable(text)


def _text(said: Mapping[str, Any], name: str) -> str:
    return _any_text(said, name)[:MOST_TEXT]


def _whole(said: Mapping[str, Any], name: str) -> int:
    value = said.get(name, 0)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 1 << 53:
        raise TypeError(f"{name} is no count")
    return value


def _number(value: object, most: float) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= most:
        raise TypeError(f"{value!r:.40} is no number up to {most:g}")
    return float(value)


def printable(text: str) -> str:
    """Return a text that can be encoded: JSON may have half a surrogate pair, which would break a whole page."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()


def one_line(error: BaseException) -> str:
    """Return `Type: text`, short and on one line, even for an exception that can't be printed."""
    try:
        text = str(error)
    except Exception:  # the exception is a user's
        text = "(its text can't be printed)"
    return shortened(f"{type(error).__name__}: {text}".removesuffix(": "))


def shortened(text: str) -> str:
    """Return a text on one line, cut at `MOST_TEXT`."""
    return " ".join(text[: MOST_TEXT * 4].split())[:MOST_TEXT]


def end_of(traceback: str) -> str:
    """Return the last `MOST_TRACEBACK` bytes of a traceback, from the start of a line."""
    if len(traceback) * 4 <= MOST_TRACEBACK:  # no character has more than four bytes
        return traceback
    encoded = traceback.encode("utf-8", "replace")
    if len(encoded) <= MOST_TRACEBACK:
        return traceback
    kept = encoded[-(MOST_TRACEBACK - len(_CUT)) :].decode("utf-8", "ignore")
    _, newline, rest = kept.partition("\n")
    return _CUT + (rest if newline and rest else kept)
