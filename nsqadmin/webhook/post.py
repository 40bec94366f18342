"""One post about an incident: its facts, and the JSON that receivers get.

The JSON is described in docs/how-to/monitor.md. It has a version, which changes only if a field changes its meaning or
goes away; new fields may come at any time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from nsqadmin import numbers
from nsqadmin.diagnosis.incident import (
    ChangeKind,
    IncidentChange,
    Numbers,
)
from nsqcommon import nsq_json

if TYPE_CHECKING:
    from collections.abc import Mapping

VERSION: Final = 1
_MOST_TOPICS: Final = 20  # to name in a post
_LONGEST: Final = 500  # characters of a subject or verdict in `text`
# Chat programs read `<!channel>`, `@all` or a link where a consumer has chosen its own name, so no sign may do anything.
_HARMLESS: Final = str.maketrans({"<": "‹", ">": "›", "@": "@\N{ZERO WIDTH SPACE}", "[": "(", "]": ")", "`": "'"})
_WORDS: Final[Mapping[str, str]] = {"problem": "Problem", "warning": "Warning", "info": "Note"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Post:
    """The news about one incident."""

    kind: ChangeKind
    key: str
    at: float  # when it changed, in seconds since 1970
    severity: str
    state: str  # open or acknowledged
    subject: str
    verdict: str
    since: float
    since_before: bool  # it was there when nsqadmin started, so it may have begun earlier
    is_recurring: bool = False  # it comes and goes, so it closes only after half an hour of quiet
    numbers: Numbers
    topics: tuple[str, ...] = ()


def post_of(change: IncidentChange) -> Post:
    it = change.it
    return Post(
        kind=change.kind,
        key=it.key,
        at=change.at,
        severity=it.incident.severity.value,
        state=it.state,
        subject=it.incident.subject,
        verdict=it.incident.verdict,
        since=it.began,
        since_before=it.began_before,
        is_recurring=it.incident.is_recurring,
        numbers=it.incident.numbers,
        topics=it.incident.topics[:_MOST_TOPICS],
    )


def body_of(post: Post, *, url: str, via: str) -> bytes:
    """Return the post as JSON. `url` is the incident's page, if it is known, and `via` the name of our machine."""
    counted = post.numbers
    return nsq_json.dumps(
        {
            "version": VERSION,
            "kind": post.kind.value,
            "key": post.key,
            "at": post.at,
            "severity": post.severity,
            "state": "closed" if post.kind is ChangeKind.CLOSED else post.state,
            "subject": post.subject,
            "verdict": post.verdict,
            "since": post.since,
            "since_before": post.since_before,
            "is_recurring": post.is_recurring,
            "numbers": {"waiting": counted.waiting, "incoming": counted.incoming, "channels": counted.channels},
            "topics": list(post.topics),
            "url": url,
            "via": via,
            "text": text_of(post, url),
        }
    )


def text_of(post: Post, url: str) -> str:
    """Return the post as text for a chat: `Problem: n1:4151: does not answer (3,008 waiting) https://...`."""
    title = f"{post.subject}: {post.verdict}" if post.subject else post.verdict
    title = (title if len(title) <= _LONGEST else f"{title[:_LONGEST]}…").translate(_HARMLESS)
    if post.kind is ChangeKind.CLOSED:
        text = f"Closed after {numbers.duration(max(post.at - post.since, 0.0))}: {title}"
    else:
        worse = "Worse, now a " if post.kind is ChangeKind.WORSE else ""
        word = post.severity if worse else _WORDS.get(post.severity, post.severity)
        text = f"{worse}{word}{' that comes and goes' if post.is_recurring else ''}: {title}"
        if post.numbers.waiting:
            text += f" ({numbers.exact(post.numbers.waiting)} waiting)"
    return f"{text} {url}" if url else text
