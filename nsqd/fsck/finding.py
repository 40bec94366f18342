"""A finding of `nsqd fsck`, and its severity."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from enum import StrEnum


class FsckSeverity(StrEnum):
    NOTE = "note"  # normal, or normal after a kill; the next start deals with it
    WARNING = "warning"  # not what nsqd wrote, but no data is lost
    DAMAGE = "damage"  # missing, or not what nsqd wrote
    UNREADABLE = "unreadable"  # the disk refuses to read it, so its content is unknown


@dataclass(frozen=True, slots=True)
class FsckFinding:
    severity: FsckSeverity
    text: str
    topic: str = ""
    file: str = ""
    offset: int = 0
    first: int = 0  # the sequences [first, end)
    end: int = 0
    # Makes a safe repair and returns a text about it, or "" if it did nothing. Raises OSError.
    repair: Callable[[], str] | None = field(default=None, compare=False, repr=False)

    def as_line(self) -> str:
        words = [f"{self.severity}: {self.text}"]
        if self.topic:
            words.append(f"topic={self.topic}")
        if self.file:
            words.append(f"file={self.file} offset={self.offset}")
        if self.first < self.end:
            words.append(f"sequences={self.first}-{self.end - 1}")
        return " ".join(words)

    def as_object(self, *, repaired: str | None) -> dict[str, object]:
        return {
            "severity": self.severity.value,
            "text": self.text,
            "topic": self.topic,
            "file": self.file,
            "offset": self.offset,
            "first": self.first,
            "end": self.end,
            "repaired": repaired,
        }


def merge_adjacent(findings: Iterable[FsckFinding]) -> Iterator[FsckFinding]:
    """Merge neighbours: findings with the same text about adjacent parts of a file become one."""
    last: FsckFinding | None = None
    for finding in findings:
        if last is not None and (last.text, last.file, last.end) == (finding.text, finding.file, finding.first):
            last = replace(last, end=finding.end)
            continue
        if last is not None:
            yield last
        last = finding
    if last is not None:
        yield last
