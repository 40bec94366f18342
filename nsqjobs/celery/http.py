"""HTTP requests of Celery's transport besides nsqjobs/counts.py. They go to all nsqds."""

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
    """Return True if an nsqd has the topic."""
    return any(True for _ in _topics(producer, topic=topic))


def topics_with_deferred(producer: BlockingProducer) -> set[str]:
    """Return the topics that may have deferred jobs."""
    return {str(topic["topic_name"]) for topic in _topics(producer) if _may_have_deferred(topic)}


def _may_have_deferred(topic: Mapping[str, Any]) -> bool:
    """Return True if a topic may have deferred jobs. A topic without a channel doesn't report them."""
    jobs = next((it for it in topic["channels"] if it["channel_name"] == CHANNEL), topic)
    return bool(jobs.get("deferred_count", 1)) and not str(topic["topic_name"]).endswith("#ephemeral")


def delete(producer: BlockingProducer, topic: str) -> None:
    """Delete the topic and everything in it."""
    ask_all(producer, "POST", "/topic/delete?" + urlencode({"topic": topic}))


def cancel(producer: BlockingProducer, topic: str, key: str) -> Mapping[str, int]:
    """Cancel a job. Return the number of channels by nsqd's word for the state of the message."""
    counts: Counter[str] = Counter()
    for body in ask_all(producer, "POST", "/message/cancel?" + urlencode({"topic": topic, "key": key})):
        counts.update(json.loads(body) if body else {})
    return counts


def policy_of(producer: BlockingProducer, topic: str, channel: str) -> Mapping[str, Any]:
    """Return the values of the policy for a channel, as far as it is in force. Raise NSQError if an nsqd fails."""
    found: dict[str, Any] = {}
    for body in ask_all(producer, "GET", "/config/policy?" + urlencode({"topic": topic, "channel": channel})):
        keys = json.loads(body).get("channel") or {} if body else {}
        found |= {name: it["value"] for name, it in keys.items() if not it.get("dry_run")}
    return found


def _topics(producer: BlockingProducer, **only: str) -> Iterator[Mapping[str, Any]]:
    for body in ask_stats(producer, **only):
        yield from (json.loads(body)["topics"] or ()) if body else ()
