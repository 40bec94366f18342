"""Groups of burial reasons that differ in numbers and ids only, such as `no address of customer *`.

A node selects buried messages by a text in their reason, and knows no patterns. So a kick of a group needs a text that
all its reasons contain, and no other listed reason: here `no address of customer `. If there is no such text, the reasons
of the group can only be kicked one by one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from nsqadmin.diagnosis.names import pattern_of

if TYPE_CHECKING:
    from nsqadmin.messages.buried import Reason

_SHORTEST: Final = 4  # characters of a text that selects a group: a shorter one is in too many reasons of tomorrow


@dataclass(frozen=True, slots=True, kw_only=True)
class ReasonGroup:
    """One reason, or several that differ in numbers and ids only."""

    text: str  # the reason, or the pattern of several
    count: int  # messages
    nodes: tuple[str, ...]
    clients: tuple[str, ...]
    reasons: tuple[Reason, ...]  # the most frequent first


def grouped(reasons: Iterable[Reason]) -> tuple[ReasonGroup, ...]:
    """Return the groups of these reasons, the most frequent first. The user sees whole reasons."""
    by_pattern: dict[str, list[Reason]] = {}
    for it in reasons:
        by_pattern.setdefault(pattern_of(it.text), []).append(it)
    groups = [_group(some[0].text if len(some) == 1 else pattern, some) for pattern, some in by_pattern.items()]
    return tuple(sorted(groups, key=lambda it: (-it.count, it.text)))


def each(reasons: Iterable[Reason]) -> tuple[ReasonGroup, ...]:
    """Return a group for each reason, for a user who doesn't see whole reasons: a pattern would tell about them."""
    return tuple(_group(it.text, [it]) for it in reasons)


def _group(text: str, some: Sequence[Reason]) -> ReasonGroup:
    return ReasonGroup(
        text=text,
        count=sum(it.count for it in some),
        nodes=tuple(dict.fromkeys(node for it in some for node in it.nodes)),
        clients=tuple(dict.fromkeys(client for it in some for client in it.clients)),
        reasons=tuple(some),
    )


def selecting_text(group: ReasonGroup, listed: Iterable[Reason]) -> str:
    """Return a text that is in all reasons of a group and in no other listed one; empty: there is none."""
    members = {it.text for it in group.reasons}
    others = [it.text for it in listed if it.text not in members]
    parts = _parts_of(pattern_of(group.text)) if len(members) > 1 else [group.text]
    return next((part for part in parts if not any(part in other for other in others)), "")


def parts_of(reasons: Iterable[str]) -> Iterator[str]:
    """Yield the texts that may select a group of these reasons."""
    for pattern, count in Counter(map(pattern_of, set(reasons))).items():
        if count > 1:
            yield from _parts_of(pattern)


def _parts_of(pattern: str) -> list[str]:
    """Return the texts between the numbers, the longest first."""
    parts = {part for part in pattern.split("*") if len(part.strip()) >= _SHORTEST}
    return sorted(parts, key=lambda it: (-len(it), it))


def most_frequent(counts: Mapping[str, int], most: int) -> list[tuple[str, int]]:
    """Return the most frequent reasons and patterns of several, each with its number of messages."""
    by_pattern: dict[str, list[str]] = {}
    for reason in counts:
        by_pattern.setdefault(pattern_of(reason), []).append(reason)
    named = [
        (some[0] if len(some) == 1 else pattern, sum(counts[it] for it in some)) for pattern, some in by_pattern.items()
    ]
    return sorted(named, key=lambda it: (-it[1], it[0]))[:most]


def is_named_by(reason: str, text: str) -> bool:
    """Return True if `text` is this reason, or the pattern of it and others, as `most_frequent` names them."""
    return reason == text or ("*" in text and pattern_of(reason) == text)
