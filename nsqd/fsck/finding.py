"""A finding of an examination."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from enum import StrEnum


class DamageSeverity(StrEnum):
    NOTE = "note"  # as it should be, or as a kill leaves it; the next start takes care of it
    WARNING = "warning"  # something is not as it was written, but nothing is lost by it
    DAMAGE = "damage"  # something is not what was written, or is missing
    UNREADABLE = "unreadable"  # the disk refuses to read it; its content is unknown


@dataclass(frozen=True, slots=True)
class Damage:
    severity: DamageSeverity
    text: str
    topic: str = ""
    file: str = ""
    offset: int = 0
    first: int = 0  # the sequences [first, end)
    end: int = 0
    # Makes a safe repair, and returns what it did ("" for nothing). Raises OSError.
    mend: Callable[[], str] | None = field(default=None, compare=False, repr=False)

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


def joined(findings: Iterable[Damage]) -> Iterator[Damage]:
    """Yield one finding for each stretch of a file: neighbours with the same text are one."""
    last: Damage | None = None
    for finding in findings:
        if last is not None and (last.text, last.file, last.end) == (finding.text, finding.file, finding.first):
            last = replace(last, end=finding.end)
            continue
        if last is not None:
            yield last
        last = finding
    if last is not None:
        yield last
