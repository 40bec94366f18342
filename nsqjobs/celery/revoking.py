"""Taking back a job with an eta when Celery revokes it.

`AsyncResult.revoke`, `app.control.revoke` and `terminate` broadcast a command to the workers, which remember the id and drop
the job when it comes. On nsqd a job with an eta is with no worker, so the transport looks at what is broadcast, and also
has nsqd cancel the job. The command names an id only, and nsqd wants topic and key: all topics that have deferred jobs
are tried, with the keys of the first try and of the retries.

The result backend is told by the workers that get the broadcast.
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
_RETRIES: Final = 10  # of which the keys are tried; a task has 3 unless it says otherwise
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
    """Take back what is deferred of these jobs. An error is logged: the workers are told in any case."""
    try:
        topics = sorted(http.topics_with_deferred(producer))
        for id in ids:
            if any(_cancel(producer, topic, id) for topic in topics):
                log.info("revoked job %s was deferred, and is cancelled", id)
    except NSQError as error:
        log.warning("cannot cancel revoked jobs at nsqd, so the workers drop them when they are due: %s", error)


def _cancel(producer: BlockingProducer, topic: str, id: str) -> bool:
    for nesting in range(_NESTINGS):
        for retries in range(_RETRIES + 1):
            found = http.cancel(producer, topic, job_key(id, retries, nesting))
            if any(found.get(word) for word in _FOUND):
                return found.get("cancelled", 0) > 0
    return False
