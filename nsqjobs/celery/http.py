"""What nsqd is asked over HTTP: how many jobs wait, and to empty or delete a queue. All nsqds are asked."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlencode

from nsqclient import ConnectError, NSQError
from nsqjobs.celery.routing import CHANNEL

if TYPE_CHECKING:
    from nsqclient._blocking import BlockingProducer

_OK: Final = 200
_NOT_FOUND: Final = 404


class Overview:
    """The part of each nsqd's /stats that tells of one topic, or of all."""

    def __init__(self, producer: BlockingProducer, topic: str = "") -> None:
        arguments = {"format": "json", "include_clients": "false", "include_mem": "false"}
        if topic:
            arguments["topic"] = topic
        self._topics = [
            topic
            for status, body in _answers(producer, "GET", f"/stats?{urlencode(arguments)}").values()
            for topic in _topics(status, body)
        ]

    @property
    def exists(self) -> bool:
        return bool(self._topics)

    def waiting(self) -> int:
        """Return how many jobs wait for a worker: neither deferred, nor with a worker, nor buried."""
        return sum(int(found["depth"]) for found in map(_jobs, self._topics))

    def with_deferred(self) -> set[str]:
        """Return the topics that may have deferred jobs."""
        return {str(it["topic_name"]) for it in self._topics if _may_have_deferred(it)}


def _jobs(topic: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the channel of the jobs, or the topic, where the jobs are as long as it has no such channel."""
    return next((it for it in topic["channels"] if it["channel_name"] == CHANNEL), topic)


def _may_have_deferred(topic: Mapping[str, Any]) -> bool:
    found = _jobs(topic)
    return bool(found.get("deferred_count", 1)) and not str(topic["topic_name"]).endswith("#ephemeral")


def empty(producer: BlockingProducer, topic: str) -> None:
    """Remove all jobs that no worker has."""
    found = _answers(producer, "POST", "/channel/empty?" + urlencode({"topic": topic, "channel": CHANNEL}))
    if any(status == _NOT_FOUND for status, _ in found.values()):
        _answers(producer, "POST", "/topic/empty?" + urlencode({"topic": topic}))


def delete(producer: BlockingProducer, topic: str) -> None:
    """Remove the topic, with all that is in it."""
    _answers(producer, "POST", "/topic/delete?" + urlencode({"topic": topic}))


def cancel(producer: BlockingProducer, topic: str, key: str) -> Mapping[str, int]:
    """Take back a job, and return the number of channels by what was found, as nsqd calls it."""
    counts: dict[str, int] = {}
    for status, body in _answers(
        producer, "POST", "/message/cancel?" + urlencode({"topic": topic, "key": key})
    ).values():
        for word, count in (json.loads(body) if status == _OK else {}).items():
            counts[word] = counts.get(word, 0) + int(count)
    return counts


def _answers(producer: BlockingProducer, method: str, target: str) -> dict[str, tuple[int, bytes]]:
    """Return the answers by address. Raise NSQError if one is missing, or is neither OK nor "not found"."""
    answers: dict[str, tuple[int, bytes]] = {}
    for address, answer in producer.ask_all(method, target).items():
        if isinstance(answer, NSQError):
            raise answer
        status, body = answer
        if status not in (_OK, _NOT_FOUND):
            raise ConnectError(f"{address}: {method} {target}: {status} {body[:200].decode('utf-8', 'replace')}")
        answers[address] = answer
    return answers


def _topics(status: int, body: bytes) -> Iterator[Mapping[str, Any]]:
    if status == _OK:
        yield from json.loads(body)["topics"] or ()
