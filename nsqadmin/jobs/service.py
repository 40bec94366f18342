"""Jobs for request handlers: reads the nodes only while somebody looks, and shows each user what they may see."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import inf
from time import time
from typing import TYPE_CHECKING, Final

import trio

from nsqadmin.access import Right
from nsqadmin.cluster.view import seen_by
from nsqadmin.jobs.survey import Kind, SurveyResult, queues_of
from nsqadmin.jobs.tasks import QueueRow, TaskRow, queue_rows, task_rows, unlisted_row
from nsqcommon.web import run_trio

if TYPE_CHECKING:
    from nsqadmin.access import Identity
    from nsqadmin.cluster.model import Channel
    from nsqadmin.cluster.view import View
    from nsqadmin.jobs.listening import Listener
    from nsqadmin.jobs.run_book import RunBook, TaskRuns
    from nsqadmin.jobs.survey import Surveyor
    from nsqcommon.job_reports import JobEvent

_FRESHEST: Final = 0.5  # seconds that a survey is shown before there is another one, at least
_FRESH: Final = 5.0  # at most; in between, as long as a sample


@dataclass(frozen=True, slots=True, kw_only=True)
class JobsShown:
    """What a user sees of all jobs."""

    tasks: tuple[TaskRow, ...]
    queues: tuple[QueueRow, ...]
    hidden: tuple[str, ...]  # queues whose task names the user may not see
    missing: tuple[tuple[str, str], ...]  # nodes that weren't read, or not to the end, and why
    troubles: tuple[tuple[str, str], ...]  # nodes whose reports can't be heard, and why
    has_reports: bool  # some worker reports
    dropped: int  # events that workers could not send
    unlisted: int  # events of tasks beyond those we count
    unlisted_jobs: int  # messages that were read, of tasks whose names aren't listed
    is_running_cut: bool  # more jobs run than we keep
    taken_at: float  # when the messages were read


class Jobs:
    """All jobs, for callers on asyncio."""

    def __init__(self, view: View, surveyor: Surveyor, book: RunBook, listener: Listener) -> None:
        self.book = book
        self.listener = listener
        self._view = view
        self._surveyor = surveyor
        self._survey = SurveyResult()
        self._read_at = -inf
        self._reading: trio.Event | None = None  # set while a survey is under way

    async def shown(self, identity: Identity) -> JobsShown:
        """Return all tasks and queues that the user may see, after reading the nodes unless that was a moment ago."""
        return await run_trio(self._shown, identity)

    async def _shown(self, identity: Identity) -> JobsShown:
        survey = await self.surveyed()
        channels = self.channels(identity)
        readable = {it.topic for it in channels if identity.may(Right.PAYLOAD, it.topic)}
        queues = [it for it in survey.queues if it.topic in readable]
        missing = SurveyResult(queues=tuple(queues)).missing
        return JobsShown(
            tasks=task_rows(queues, self.runs(identity)),
            queues=queue_rows(channels, survey.queues),
            hidden=tuple(sorted({it.topic for it in channels} - readable)),
            missing=tuple(sorted((node, identity.quoted(why)) for node, why in missing.items())),
            troubles=tuple(sorted((node, identity.quoted(why)) for node, why in self.listener.troubles.items())),
            has_reports=self.book.has_reports,
            dropped=self.book.dropped,
            unlisted=self.book.unlisted,
            unlisted_jobs=sum(it.unlisted for it in queues),
            is_running_cut=self.book.is_running_cut,
            taken_at=survey.taken_at,
        )

    def unlisted(self, name: str, identity: Identity) -> TaskRow | None:
        """Return a row for a task whose name may not have found room in the last survey; None: it isn't there."""
        return unlisted_row(name, (it for it in self._survey.queues if identity.may(Right.PAYLOAD, it.topic)))

    def channels(self, identity: Identity) -> list[Channel]:
        """Return the queues that the user may see."""
        return queues_of(seen_by(self._view.snapshot, identity), self.book.queues())

    def channel(self, identity: Identity, topic: str, name: str = "") -> Channel | None:
        """Return the queue of a topic, or None if the user sees none there."""
        found = [it for it in self.channels(identity) if it.topic == topic]
        return next((it for it in found if it.name == name), found[0] if found else None)

    def runs(self, identity: Identity) -> Iterator[TaskRuns]:
        """Yield what is reported about tasks whose names the user may see."""
        return (it for it in self.book.tasks() if identity.may(Right.PAYLOAD, it.topic))

    async def surveyed(self) -> SurveyResult:
        """Return a survey of all queues. Callers at the same time share it. For callers on trio."""
        while self._reading is not None:
            await self._reading.wait()
        if trio.current_time() - self._read_at < min(_FRESH, max(_FRESHEST, self._view.snapshot.interval)):
            return self._survey
        self._reading = trio.Event()
        try:
            began = trio.current_time()
            snapshot = self._view.snapshot
            reported = {name for name, _, _ in self.book.queues_by_task()}
            found = await self._surveyor.survey(snapshot, queues_of(snapshot, self.book.queues()), reported)
            self._read_at = trio.current_time()
            self._survey = SurveyResult(queues=tuple(found), taken_at=time(), took=self._read_at - began)
        finally:
            done, self._reading = self._reading, None
            done.set()
        return self._survey

    def with_id(self, id: str, identity: Identity) -> Iterator[JobEvent]:
        """Yield what is reported about jobs with this id that the user may see."""
        return (it for it in self.book.jobs_with(id) if identity.may(Right.PAYLOAD, it.topic))

    def queues_by_task(self, identity: Identity) -> Iterator[tuple[str, str, str, int | None]]:
        """Yield name, topic and channel of known tasks, and how many of their jobs are buried there; None: unknown.

        Yields only tasks whose names the user may see, and reads nothing.
        """
        surveyed = {
            (name, it.topic, it.channel): it.kinds[Kind.BURIED].by_task[name]
            if it.kinds[Kind.BURIED].is_whole
            else None
            for it in self._survey.queues
            for name in it.libraries
        }
        known = dict.fromkeys(self.book.queues_by_task()) | surveyed
        for (name, topic, channel), failed in known.items():
            if identity.may(Right.PAYLOAD, topic):
                yield name, topic, channel, failed
