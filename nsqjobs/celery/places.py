"""Refuses a worker that would free a place of its queue before the task has run.

A channel's policy may limit how many messages are in flight, in all or of each group. Celery acknowledges a task before
it runs, unless it has `acks_late`. Then nsqd would deliver the next one at once, and the limit would limit nothing.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

from nsqclient import NSQError
from nsqjobs.celery.http import policy_of

if TYPE_CHECKING:
    from nsqclient.blocking import BlockingProducer
    from nsqjobs.celery.routing import QueueChannel

log = logging.getLogger(__name__)

_LIMITS: Final = ("max_in_flight", "max_in_flight_per_group", "order")
_WORKER: Final = "celery.worker.consumer"  # loaded by workers only
_CELERYS_OWN: Final = "celery."
_FAILURE: Final = 1


def check_worker(producer: BlockingProducer, queue: str, sources: Iterable[QueueChannel]) -> None:
    """Raise WorkerShutdown in a worker whose tasks would free places of this queue too early, and log why."""
    if _WORKER not in sys.modules:
        return
    from celery import current_app  # kombu may be used without Celery
    from celery.exceptions import WorkerShutdown

    early = early_tasks(current_app.tasks)
    if early and (limit := _limit_of(producer, sources)) is not None:
        log.critical("%s", refusal(queue, limit, early))
        raise WorkerShutdown(_FAILURE)


def early_tasks(tasks: Mapping[str, Any]) -> list[str]:
    """Return the names of the tasks that are acknowledged before they run."""
    return sorted(name for name, task in tasks.items() if not name.startswith(_CELERYS_OWN) and not task.acks_late)


def refusal(queue: str, limit: str, early: list[str]) -> str:
    """Return the line that says why the worker doesn't start."""
    more = f" and {len(early) - 1} more" if len(early) > 1 else ""
    return (
        f"queue {queue} has {limit} in nsqd's policy, but {early[0]}{more} would be acknowledged, and free a place,"
        " before running: set task_acks_late = True, or acks_late=True for each task"
    )


def _limit_of(producer: BlockingProducer, sources: Iterable[QueueChannel]) -> str | None:
    """Return the limit of one of the channels, such as `max_in_flight = 3`."""
    for source in sources:
        try:
            policy = policy_of(producer, source.topic, source.channel)
        except (NSQError, ValueError) as error:  # without nsqd's HTTP port, the worker works otherwise
            log.warning("can't ask for the policy of %s/%s: %s", source.topic, source.channel, error)
            continue
        for name in _LIMITS:
            if value := policy.get(name):
                return f"{name} = {value!r}" if isinstance(value, int) else f'{name} = "{value}"'
    return None
