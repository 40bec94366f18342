"""The backend of Django's tasks."""

from __future__ import annotations

import time
from collections.abc import Iterable
from functools import cache, cached_property
from typing import Any, Final

from django.core import checks
from django.utils import timezone
from django.utils.crypto import get_random_string

from nsqclient import ConfigError
from nsqjobs.addresses import parse_url
from nsqjobs.django import results
from nsqjobs.django.api import BaseTaskBackend, Task, TaskResult, task_enqueued
from nsqjobs.django.groups import NsqTask, group_of_task
from nsqjobs.django.messages import due_at, encode, enqueued, headers_of
from nsqjobs.django.priorities import Band, band_of, band_topic
from nsqjobs.link import Link
from nsqjobs.reporting import Reporter

DEFAULT_URL: Final = "nsq://127.0.0.1:4150"
MOST_ATTEMPTS: Final = 10  # deliveries without an answer before a message is buried: it may be killing the workers

_OPTIONS: Final = frozenset({"url", "results", "priority", "report"})
_LENGTH_OF_ID: Final = 32


class NsqBackend(BaseTaskBackend):
    """Publishes tasks to the nsqds of the option `url`, and keeps results in the database.

    A queue is a topic, plus two for tasks with a priority, unless the option `priority` is False. The option `results`
    says whether to write a row for each task. The default is to write them if `nsqjobs.django` is in INSTALLED_APPS.
    With `report`, workers bury tasks that fail, and report their runs.
    """

    task_class = NsqTask
    supports_defer = True
    supports_async_task = True
    supports_priority = True

    def __init__(self, alias: str, params: dict[str, Any]) -> None:
        super().__init__(alias, params)
        self.url = str(self.options.get("url", DEFAULT_URL))
        self.supports_priority = bool(self.options.get("priority", True))

    @property
    def supports_get_result(self) -> bool:  # type: ignore[override] # of an attribute: what it is depends on the settings
        return self.stores_results

    @cached_property
    def stores_results(self) -> bool:
        return bool(self.options.get("results", True)) and results.is_installed()

    @property
    def link(self) -> Link:
        return link_to(self.url)

    @property
    def reporter(self) -> Reporter | None:
        """This process's reporter; None without the option `report`."""
        return reporter_to(self.url) if self.options.get("report") else None

    def enqueue(self, task: Task, args: Any, kwargs: Any) -> TaskResult:
        """Publish a task, and return when nsqd has it, even inside a transaction that may still be rolled back.

        Raises NSQError if nsqd doesn't accept it, and ValueError for an invalid group.
        """
        self.validate_task(task)
        group = group_of_task(task, args, kwargs)
        result = enqueued(task, get_random_string(_LENGTH_OF_ID), args=args, kwargs=kwargs, enqueued_at=timezone.now())
        body = encode(result)
        if self.stores_results:
            results.add(result)
        try:
            self._publish(result, body, group)
        except Exception:
            if self.stores_results:
                results.remove(result)
            raise
        task_enqueued.send(type(self), task_result=result)
        return result

    def _publish(self, result: TaskResult, body: bytes, group: str | None) -> None:
        task = result.task
        due = due_at(task)
        self.link.publish(
            band_topic(task.queue_name, band_of(task.priority)),
            body,
            delay=0.0 if due is None else due - time.time(),
            headers=headers_of(result),
            group=group,
        )

    def get_result(self, result_id: str) -> TaskResult:
        """Return the result of a task. Raise TaskResultDoesNotExist."""
        if not self.stores_results:
            return super().get_result(result_id)  # it raises that this isn't supported
        return results.load(result_id)

    def check(self, **kwargs: Any) -> Iterable[checks.CheckMessage]:
        yield from super().check(**kwargs)
        try:
            parse_url(self.url)
        except (ValueError, ConfigError) as error:
            yield checks.Error(f"TASKS[{self.alias!r}]: {error}", id="nsqjobs.E001")
        for unknown in sorted(self.options.keys() - _OPTIONS):
            yield checks.Error(f"TASKS[{self.alias!r}]: no such option: {unknown}", id="nsqjobs.E002")
        if self.options.get("results") and not results.is_installed():
            hint = 'Add "nsqjobs.django" to INSTALLED_APPS.'
            yield checks.Error(f"TASKS[{self.alias!r}]: no table for results", hint=hint, id="nsqjobs.E003")
        for queue, topic in self._shared_topics():
            hint = 'Rename the queue, or set the option "priority" to False.'
            text = f"TASKS[{self.alias!r}]: tasks of {queue} with a priority would be in the topic of the queue {topic}"
            yield checks.Error(text, hint=hint, id="nsqjobs.E004")

    def _shared_topics(self) -> list[tuple[str, str]]:
        topics = {band_topic(queue, Band.NORMAL) for queue in self.queues} if self.supports_priority else set()
        bands = [(queue, band_topic(queue, band)) for queue in sorted(self.queues) for band in (Band.HIGH, Band.LOW)]
        return [(queue, topic) for queue, topic in bands if topic in topics]


@cache
def link_to(url: str) -> Link:
    """Return this process's link. Django makes a backend for each thread, and they share the connections."""
    return Link(parse_url(url, max_attempts=MOST_ATTEMPTS))


@cache
def reporter_to(url: str) -> Reporter:
    """Return this process's reporter."""
    return Reporter(parse_url(url))
