"""Cancels a job with an eta when Celery revokes it.

`AsyncResult.revoke`, `app.control.revoke` and `terminate` broadcast a command to the workers, which remember the id and
drop the job when it arrives. On nsqd no worker has a job with an eta, so the transport reads broadcasts and also
cancels the job at nsqd. The command has only an id, but nsqd needs topic and key, so we try all topics with deferred
jobs, with the keys of the first try and of the retries.

The workers that get the broadcast update the result backend.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from nsqclient import NSQError
from nsqjobs.celery import http
from nsqjobs.celery.envelope import job_key

if TYPE_CHECKING:
    from nsqclient.blocking import BlockingProducer

log = logging.getLogger(__name__)

_METHODS: Final = ("revoke", "terminate")
_RETRIES: Final = 10  # we try the keys of so many retries; a task's default is 3
_NESTINGS: Final = 2
_ENDING: Final = ".pidbox"
_FOUND: Final = ("cancelled", "in_flight", "buried")


def revoked_by(exchange: str, message: Mapping[str, Any]) -> Sequence[str]:
    """Return the ids of the jobs that a broadcast revokes."""
    if not exchange.endswith(_ENDING) or message.get("content-type") != "application/json":
        return ()
    try:
        command = json.loads(message["body"])
        if command["method"] not in _METHODS:
            return ()
        ids = command["arguments"]["task_id"]
    except (ValueError, TypeError, KeyError):
        return ()
    return [ids] if isinstance(ids, str) else [id for id in ids or () if isinstance(id, str)]


def cancel_jobs(producer: BlockingProducer, ids: Sequence[str]) -> None:
    """Cancel the deferred ones of these jobs. An error is only logged, because the workers get the broadcast anyway."""
    try:
        topics = sorted(http.topics_with_deferred(producer))
        for id in ids:
            if any(_cancel(producer, topic, id) for topic in topics):
                log.info("cancelled revoked job %s, which was deferred", id)
    except NSQError as error:
        log.warning("cannot cancel revoked jobs at nsqd, workers will drop them when they are due: %s", error)


def _cancel(producer: BlockingProducer, topic: str, id: str) -> bool:
    for nesting in range(_NESTINGS):
        for retries in range(_RETRIES + 1):
            found = http.cancel(producer, topic, job_key(id, retries, nesting))
            if any(found.get(word) for word in _FOUND):
                return found.get("cancelled", 0) > 0
    return False
