"""What Celery's transport asks nsqd over HTTP, beyond nsqjobs/counts.py. All nsqds are asked."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from nsqjobs.counts import ask_all, ask_stats
from nsqjobs.names import CHANNEL

if TYPE_CHECKING:
    from nsqclient.blocking import BlockingProducer


def has_topic(producer: BlockingProducer, topic: str) -> bool:
    """Return whether an nsqd has the topic."""
    return any(True for _ in _topics(producer, topic=topic))


def topics_with_deferred(producer: BlockingProducer) -> set[str]:
    """Return the topics that may have deferred jobs."""
    return {str(topic["topic_name"]) for topic in _topics(producer) if _may_have_deferred(topic)}


def _may_have_deferred(topic: Mapping[str, Any]) -> bool:
    """Return whether jobs may be deferred in a topic. As long as it has no channel, it does not tell."""
    jobs = next((it for it in topic["channels"] if it["channel_name"] == CHANNEL), topic)
    return bool(jobs.get("deferred_count", 1)) and not str(topic["topic_name"]).endswith("#ephemeral")


def delete(producer: BlockingProducer, topic: str) -> None:
    """Remove the topic, with all that is in it."""
    ask_all(producer, "POST", "/topic/delete?" + urlencode({"topic": topic}))


def cancel(producer: BlockingProducer, topic: str, key: str) -> Mapping[str, int]:
    """Take back a job, and return the number of channels by what was found, as nsqd calls it."""
    counts: Counter[str] = Counter()
    for body in ask_all(producer, "POST", "/message/cancel?" + urlencode({"topic": topic, "key": key})):
        counts.update(json.loads(body) if body else {})
    return counts


def _topics(producer: BlockingProducer, **only: str) -> Iterator[Mapping[str, Any]]:
    for body in ask_stats(producer, **only):
        yield from (json.loads(body)["topics"] or ()) if body else ()
