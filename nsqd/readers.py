"""Readers of a topic's log that have no channel, such as Spark, and the progress that each has reported.

nsqd saves the progress of channels, but a reader saves its progress itself, in a checkpoint or a table. Its reports to
us are for people and monitoring only: nothing depends on them, and retention doesn't wait for readers. A reader that
has stopped reporting remains listed, with the time of its last report, until you remove it or newer readers need room.
"""

from __future__ import annotations

import json
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import expm1
from typing import Any, Final

MOST_OF_A_TOPIC: Final = 64
MOST: Final = 1024  # over all topics; for another one, the reader with the oldest report is removed
LONGEST_REPORT: Final = 8 * 1024  # bytes
_LONGEST: Final[Mapping[str, int]] = {"name": 128, "into": 1024, "format": 32, "host": 255, "log": 64}  # characters
_HIGHEST: Final = (1 << 63) - 1
_SMOOTHED_OVER: Final = 60.0  # seconds
_NANOSECONDS: Final = 1e9

Key = tuple[str, str]  # name and `into`, because one job may write a topic into two tables


class BadReport(ValueError):
    """A reader's report is malformed. The message says why."""


@dataclass(frozen=True, slots=True)
class Report:
    """One report: the reader has committed everything before `sequence` of this log to its destination."""

    name: str
    log: str
    sequence: int
    into: str = ""  # its destination
    format: str = ""
    host: str = ""


@dataclass(frozen=True, slots=True)
class LogConsumer:
    """A reader as of its last report. Times are wall-clock nanoseconds."""

    report: Report
    heard: int  # time of its last report
    committed: int  # time of the last report that showed progress
    rate: float | None = None  # messages committed per second, smoothed; None after a single report

    def missed(self, first: int, log: str) -> int:
        """Count the messages that left the log before the reader had committed them."""
        return max(0, first - self.report.sequence) if self.report.log == log else 0

    def place(self, first: int, log: str) -> int:
        """Return the sequence of the first message that the reader has not committed.

        If the last report is about another log, that is the first message of this log.
        """
        return max(first, self.report.sequence) if self.report.log == log else first


def parse_report(text: bytes) -> Report:
    """Parse a reader's report, and ignore unknown members. Raises BadReport."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadReport(f"expected JSON: {error}") from error
    if not isinstance(found, dict):
        raise BadReport("expected an object")
    return _report_in(found)


def _report_in(found: Mapping[str, Any]) -> Report:
    texts = {member: _text_in(found, member) for member in _LONGEST}
    for member in ("name", "log"):
        if not texts[member]:
            raise BadReport(f"{member} is missing")
    return Report(sequence=_number_in(found, "sequence"), **texts)


def _text_in(found: Mapping[str, Any], member: str) -> str:
    value = found.get(member, "")
    if not isinstance(value, str) or len(value) > _LONGEST[member] or not value.isprintable():
        raise BadReport(f"{member}: expected at most {_LONGEST[member]} printable characters")
    return value


def _number_in(found: Mapping[str, Any], member: str) -> int:
    value = found.get(member)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= _HIGHEST:
        raise BadReport(f"{member}: expected a whole number from 0 to {_HIGHEST}")
    return value


class Readers:
    """The readers of all topics of a node."""

    def __init__(self) -> None:
        self.is_saved = True
        self._topics: dict[str, dict[Key, LogConsumer]] = {}

    def __iter__(self) -> Iterator[tuple[str, LogConsumer]]:
        """Yield (topic, reader) pairs."""
        for topic, readers in self._topics.items():
            for reader in readers.values():
                yield topic, reader

    def of(self, topic: str) -> list[LogConsumer]:
        readers = self._topics.get(topic, {})
        return [readers[key] for key in sorted(readers)]

    @property
    def topics(self) -> list[str]:
        return list(self._topics)

    def heard(self, topic: str, report: Report, timestamp: int) -> None:
        readers = self._topics.setdefault(topic, {})
        key = report.name, report.into
        if (before := readers.get(key)) is None:
            self._make_room(topic)
        # Making room may have removed the topic, along with its last reader.
        self._topics.setdefault(topic, readers)[key] = _updated(before, report, timestamp)
        self.is_saved = False

    def forget(self, topic: str, name: str, into: str) -> bool:
        """Remove a reader, or return False if it is unknown. If it is still running, its next report adds it again."""
        if (name, into) not in self._topics.get(topic, {}):
            return False
        self._remove(topic, (name, into))
        self.is_saved = False
        return True

    def forget_topics_but(self, topics: Container[str]) -> None:
        for topic in [it for it in self._topics if it not in topics]:
            del self._topics[topic]
            self.is_saved = False

    def _make_room(self, topic: str) -> None:
        if len(self._topics[topic]) >= MOST_OF_A_TOPIC:
            self._remove_oldest([(topic, it) for it in self._topics[topic].values()])
        elif sum(map(len, self._topics.values())) >= MOST:
            self._remove_oldest(list(self))

    def _remove_oldest(self, readers: list[tuple[str, LogConsumer]]) -> None:
        topic, oldest = min(readers, key=lambda it: it[1].heard)
        self._remove(topic, (oldest.report.name, oldest.report.into))

    def _remove(self, topic: str, key: Key) -> None:
        del self._topics[topic][key]
        if not self._topics[topic]:
            del self._topics[topic]

    def restore(self, content: object) -> None:
        """Load content that `readers_json` has returned. Raises BadReport."""
        topics: dict[str, dict[Key, LogConsumer]] = {}
        for topic, readers in _expect(dict, content).items():
            for found in _expect(list, readers):
                reader = _reader_in(_expect(dict, found))
                topics.setdefault(topic, {})[reader.report.name, reader.report.into] = reader
        self._topics = topics


def readers_json(readers: Iterable[tuple[str, LogConsumer]]) -> dict[str, Any]:
    """Return the content of the readers' file, as JSON values: a list of readers for each topic."""
    topics: dict[str, Any] = {}
    for topic, reader in readers:
        topics.setdefault(topic, []).append(described(reader))
    return topics


def described(reader: LogConsumer) -> dict[str, Any]:
    report = reader.report
    return {
        "name": report.name,
        "into": report.into,
        "format": report.format,
        "host": report.host,
        "log": report.log,
        "sequence": report.sequence,
        "heard": reader.heard,
        "committed": reader.committed,
        "rate": reader.rate,
    }


def _updated(before: LogConsumer | None, report: Report, timestamp: int) -> LogConsumer:
    if before is None or before.report.log != report.log or report.sequence < before.report.sequence:
        return LogConsumer(report, heard=timestamp, committed=timestamp)
    has_moved = report.sequence > before.report.sequence
    return LogConsumer(
        report,
        heard=timestamp,
        committed=timestamp if has_moved else before.committed,
        rate=_smoothed(before, report.sequence - before.report.sequence, timestamp - before.heard),
    )


def _smoothed(before: LogConsumer, messages: int, nanoseconds: int) -> float | None:
    if nanoseconds <= 0:  # two reports at the same time, or the clock was set back
        return before.rate
    seconds = nanoseconds / _NANOSECONDS
    now = messages / seconds
    if before.rate is None:
        return now
    # Exponential smoothing: -expm1(-x) is 1 - exp(-x), the fraction of the way to the new rate.
    return before.rate - expm1(-seconds / _SMOOTHED_OVER) * (now - before.rate)


def _reader_in(found: Mapping[str, Any]) -> LogConsumer:
    rate = found.get("rate")
    if rate is not None and (isinstance(rate, bool) or not isinstance(rate, int | float)):
        raise BadReport("rate: expected a number or null")
    return LogConsumer(_report_in(found), _number_in(found, "heard"), _number_in(found, "committed"), rate)


def _expect(kind: type, value: object) -> Any:
    if not isinstance(value, kind):
        raise BadReport(f"expected {kind.__name__}, got {type(value).__name__}")
    return value


def silence(reader: LogConsumer, timestamp: int) -> float:
    """Return the seconds since the reader's last report."""
    return max(0, timestamp - reader.heard) / _NANOSECONDS
