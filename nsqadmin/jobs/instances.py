"""The jobs of one task, or the messages of one job: what nodes have of them now, and what is known of their past.

A job is named by its topic and the id that its library gave it. A retry has the same id, so a job may have several
messages. By its headers, we find those that are buried, deferred or in flight, and in the history those that were sent.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from nsqadmin.access import Right
from nsqadmin.jobs.arguments import Arguments, arguments_of
from nsqadmin.messages.filters import Filter, by_header
from nsqadmin.messages.lists import Look
from nsqadmin.messages.searching import Search
from nsqadmin.messages.selection import MOST
from nsqcommon.job_reports import JobEvent, State

if TYPE_CHECKING:
    from nsqadmin.access import Identity
    from nsqadmin.cluster.model import Channel
    from nsqadmin.jobs.service import Jobs
    from nsqadmin.messages.buried import Burial
    from nsqadmin.messages.deferred import Deferral
    from nsqadmin.messages.in_flight import MessageInFlight
    from nsqadmin.messages.jobs import QueuedJob
    from nsqadmin.messages.lists import ListedMessage
    from nsqadmin.messages.model import Message, SearchResult
    from nsqadmin.messages.service import Messages

MOST_LISTED: Final = 200  # jobs of a queue in each list
_MOST_IN_FLIGHT: Final = 500  # of a queue, to look through
MOST_RAISED: Final = 200  # jobs to run again at once
_SECONDS: Final = 2.0  # that a search may take
_PATIENT_SECONDS: Final = 6.0
_MOST_SENT: Final = 20  # messages of one job in the history
_MOST_QUEUES: Final = 50  # with messages, to look for a job in


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuedJobs:
    """The jobs of one queue that match."""

    channel: Channel
    buried: tuple[Burial, ...] = ()
    deferred: tuple[Deferral, ...] = ()
    in_flight: tuple[MessageInFlight, ...] = ()
    is_cut: bool = False  # there may be more of them
    missing: tuple[tuple[str, str], ...] = ()  # nodes that weren't read, or not to the end, and why

    @property
    def is_empty(self) -> bool:
        return not (self.buried or self.deferred or self.in_flight)

    @property
    def jobs(self) -> Iterator[QueuedJob]:
        listed: tuple[ListedMessage, ...] = (*self.buried, *self.deferred)
        found = [it.message.job for it in listed if it.message is not None]
        return (job for job in (*found, *(it.job for it in self.in_flight)) if job is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """A line of a job's timeline."""

    at: float
    text: str
    kind: str = ""  # problem, warning, ok; empty: neutral
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobView:
    """Everything that is known of one job."""

    topic: str
    channel: str
    id: str
    name: str
    library: str
    state: str  # in words
    kind: str  # problem, warning, ok, info, muted
    queued: QueuedJobs
    sent: tuple[Message, ...]  # the messages of the job in the history, the oldest first
    arguments: Arguments
    failures: tuple[JobEvent, ...]
    timeline: tuple[Moment, ...]
    error: str = ""
    traceback: str = ""
    no_traceback: str = ""  # why there is none
    worker: str = ""
    is_reported: bool = False

    @property
    def message(self) -> Message | None:
        """Its latest message."""
        return _message_in(self.queued, self.sent)


class Finder:
    """Finds jobs, for callers on asyncio."""

    def __init__(self, jobs: Jobs, messages: Messages) -> None:
        self._jobs = jobs
        self._messages = messages

    async def of_task(self, name: str, channels: Iterable[Channel], identity: Identity) -> list[QueuedJobs]:
        """Return the jobs of a task that are buried, deferred or in flight in these queues."""
        wanted = by_header("job-name", name)
        return await _together([_of(self._in_queue, it, wanted, name, "", identity) for it in channels])

    async def _in_queue(self, channel: Channel, wanted: Filter, name: str, id: str, identity: Identity) -> QueuedJobs:
        messages = self._messages
        look = Look(after={}, limit=MOST_LISTED, wanted=wanted, seconds=_SECONDS)
        buried: tuple[Burial, ...] = ()
        deferred: tuple[Deferral, ...] = ()
        in_flight: tuple[MessageInFlight, ...] = ()
        missing: dict[str, str] = {}
        is_cut = False
        if channel.buried_count or channel.silent:
            _, found = await messages.buried.read(channel, identity, look)
            buried, is_cut = found.lines, bool(found.after)
            missing |= dict(found.missing)
        if channel.deferred_count or channel.silent:
            _, later = await messages.deferred.read(channel, identity, look)
            deferred, is_cut = later.lines, is_cut or bool(later.after)
            missing |= dict(later.missing)
        if channel.in_flight_count or channel.silent:
            _, held = await messages.in_flight.read(channel, identity, Look(after={}, limit=_MOST_IN_FLIGHT))
            in_flight = tuple(it for it in held.lines if it.job is not None and _is(it.job.name, it.job.id, name, id))
            is_cut = is_cut or bool(held.after)
            missing |= dict(held.missing)
        return QueuedJobs(
            channel=channel,
            buried=buried,
            deferred=deferred,
            in_flight=in_flight,
            is_cut=is_cut,
            missing=tuple(sorted(missing.items())),
        )

    async def raised(
        self, topic: str, name: str, identity: Identity, ids: Collection[str] = ()
    ) -> tuple[tuple[Message, ...], tuple[str, ...]]:
        """Return the messages of jobs of a task that were reported as failed, but aren't buried, and notes for the user.

        With `ids`, only of these jobs. A job that was sent several times has its last message.
        """
        events = [it for it in self._jobs.book.raised() if (it.topic, it.name) == (topic, name)]
        wanted = {it.id for it in events if not ids or it.id in ids}
        notes: list[str] = []
        if len(wanted) > MOST_RAISED:
            wanted = {it.id for it in events[:MOST_RAISED]}
            notes.append(f"These are the last {MOST_RAISED} that failed. There are more.")
        search = Search(
            topic=topic, wanted=by_header("job-name", name), identity=identity, limit=MOST, seconds=_PATIENT_SECONDS
        )
        found: dict[str, Message] = {}
        for it in (await self._messages.search(replace(search, with_bodies=False))).messages:
            if it.job is not None and it.job.id in wanted and it.sequence is not None:
                last = found.get(it.job.id)
                found[it.job.id] = it if last is None or it.timestamp > last.timestamp else last
        if missing := len(wanted) - len(found):
            notes.append(
                f"{missing:,} of {len(wanted):,} failed jobs are not in the history any more, or were not found."
            )
        return tuple(found.values()), tuple(notes)

    async def topics_of(self, id: str, identity: Identity) -> list[str]:
        """Return the topics that have a job with this id, as far as it is known without reading history."""
        reported = {it.topic for it in self._jobs.book.jobs_with(id) if identity.may(Right.PAYLOAD, it.topic)}
        if reported:
            return sorted(reported)
        channels = [
            it
            for it in self._jobs.channels(identity)
            if identity.may(Right.PAYLOAD, it.topic) and (it.buried_count or it.deferred_count or it.in_flight_count)
        ]
        found = await self.queued(id, channels[:_MOST_QUEUES], identity)
        return sorted({it.channel.topic for it in found if not it.is_empty})

    async def queued(self, id: str, channels: Iterable[Channel], identity: Identity) -> list[QueuedJobs]:
        """Return what these queues have of a job: its buried, deferred and in-flight messages."""
        wanted = by_header("job-id", id)
        return await _together([_of(self._in_queue, it, wanted, "", id, identity) for it in channels])

    async def job(self, channel: Channel, id: str, identity: Identity) -> JobView | None:
        """Return what is known of a job; None if that is nothing. The caller has checked the right to see messages."""
        wanted = by_header("job-id", id)
        queued, found = await asyncio.gather(
            self._in_queue(channel, wanted, "", id, identity), self._sent(channel.topic, wanted, identity)
        )
        book = self._jobs.book
        failures = book.failures_of(channel.topic, id)
        success, running = book.success_of(channel.topic, id), book.running_job(channel.topic, id)
        sent = tuple(sorted(found.messages, key=lambda it: it.timestamp))
        if queued.is_empty and not (sent or failures or success or running):
            return None
        return _view(channel, id, queued, sent, failures, success, running, is_reported=book.has_reports)

    async def _sent(self, topic: str, wanted: Filter, identity: Identity) -> SearchResult:
        search = Search(topic=topic, wanted=wanted, identity=identity, limit=_MOST_SENT, seconds=_SECONDS)
        return await self._messages.search(search)


def _is(name: str, id: str, wanted_name: str, wanted_id: str) -> bool:
    return (not wanted_name or name == wanted_name) and (not wanted_id or id == wanted_id)


def _of(read: Callable[..., Awaitable[QueuedJobs]], *arguments: object) -> Callable[[], Awaitable[QueuedJobs]]:
    return lambda: read(*arguments)


async def _together(reads: Sequence[Callable[[], Awaitable[QueuedJobs]]]) -> list[QueuedJobs]:
    """Read several queues side by side, a few at a time, so that no node gets all requests at once."""
    limit = asyncio.Semaphore(4)

    async def one(read: Callable[[], Awaitable[QueuedJobs]]) -> QueuedJobs:
        async with limit:
            return await read()

    return list(await asyncio.gather(*(one(read) for read in reads)))


# One job


def _view(
    channel: Channel,
    id: str,
    queued: QueuedJobs,
    sent: tuple[Message, ...],
    failures: tuple[JobEvent, ...],
    success: JobEvent | None,
    running: JobEvent | None,
    *,
    is_reported: bool,
) -> JobView:
    message, job = _message_in(queued, sent), None
    if message is not None:
        job = message.job
    elif queued.in_flight:
        job = queued.in_flight[0].job
    event = running or success or (failures[-1] if failures else None)
    library = job.library if job is not None else event.library if event is not None else ""
    last = failures[-1] if failures else None
    state, kind = state_of(queued, last, success, running)
    error = queued.buried[-1].reason if queued.buried else last.error if last is not None else ""
    worker = running.worker if running is not None else event.worker if event is not None else ""
    return JobView(
        topic=channel.topic,
        channel=channel.name,
        id=id,
        name=job.name if job is not None else event.name if event is not None else "",
        library=library,
        state=state,
        kind=kind,
        queued=queued,
        sent=sent,
        arguments=(
            arguments_of(message.readable, library)
            if message is not None
            else Arguments(problem="Its message is not in the history any more")
        ),
        failures=failures,
        timeline=timeline_of(queued, sent, failures, success, running),
        error=error,
        traceback=last.traceback if last is not None else "",
        no_traceback=_no_traceback(queued, last, is_reported=is_reported),
        worker=worker,
        is_reported=event is not None,
    )


def _message_in(queued: QueuedJobs, sent: Sequence[Message]) -> Message | None:
    listed: list[ListedMessage] = [*queued.deferred, *queued.buried]
    return next((it.message for it in listed if it.message is not None), sent[-1] if sent else None)


def state_of(
    queued: QueuedJobs, last: JobEvent | None, success: JobEvent | None, running: JobEvent | None
) -> tuple[str, str]:
    """Return the job's state in words, and its kind. Where a message is counts more than a report, which may be old."""
    if queued.buried:
        return "Failed", "problem"
    if running is not None:
        return "Running", "info"
    if queued.in_flight:
        return "With a worker", "info"
    if queued.deferred:
        job = queued.deferred[0].message.job if queued.deferred[0].message is not None else None
        return ("Retrying", "warning") if job is not None and job.retries else ("Scheduled", "info")
    ended = max((it for it in (last, success) if it is not None), key=lambda it: it.ended_at, default=None)
    if ended is None:
        return "Waiting, or done", "muted"  # without reports, we can't tell these apart
    if ended.state is State.SUCCEEDED:
        return "Done", "ok"
    return ("Failed", "problem") if ended.state is State.FAILED else ("Retrying", "warning")


def _no_traceback(queued: QueuedJobs, last: JobEvent | None, *, is_reported: bool) -> str:
    if last is not None:
        return "" if last.traceback else "The worker sent none."
    if not queued.buried:
        return ""
    if not is_reported:
        return "Not reported: start workers with report=True."
    return "Traceback not kept: nsqadmin has those of the last 10,000 failures since its start, in 32 MiB."


def timeline_of(
    queued: QueuedJobs,
    sent: Iterable[Message],
    failures: Iterable[JobEvent],
    success: JobEvent | None,
    running: JobEvent | None,
) -> tuple[Moment, ...]:
    """Return what has happened to a job, and when it is due, the oldest first."""
    moments: list[Moment] = []
    known = {it.id: it for it in sent}
    known |= {it.message.id: it.message for it in (*queued.buried, *queued.deferred) if it.message is not None}
    for message in known.values():
        retries = message.job.retries if message.job is not None else None
        text = f"Sent again, retry {retries}" if retries else "Sent"
        moments.append(Moment(at=message.timestamp, text=text, detail=message.node))
    for event in failures:
        moments.append(_started(event))
        is_last = event.state is State.FAILED
        text = f"Failed after {_took(event)}" if is_last else f"Raised after {_took(event)}, runs again"
        kind = "problem" if is_last else "warning"
        moments.append(Moment(at=event.ended_at, text=text, kind=kind, detail=event.error))
    if success is not None:
        moments.append(_started(success))
        moments.append(Moment(at=success.ended_at, text=f"Finished after {_took(success)}", kind="ok"))
    if running is not None:
        moments.append(_started(running))
    for held in queued.in_flight:
        who = held.consumer.hostname or held.consumer.remote_address
        moments.append(Moment(at=held.since, text=f"Delivered to {who}", detail=held.consumer.client_id))
    moments += (Moment(at=it.due, text="Due") for it in queued.deferred)
    moments += (Moment(at=it.buried_at, text="Buried", kind="problem", detail=it.reason) for it in queued.buried)
    return tuple(sorted(moments, key=lambda it: it.at))


def _started(event: JobEvent) -> Moment:
    attempt = f", delivery {event.attempts}" if event.attempts > 1 else ""
    return Moment(at=event.started_at, text=f"Started by {event.worker}{attempt}")


def _took(event: JobEvent) -> str:
    if event.ms is None:
        return "an unknown time"
    return f"{event.ms:,.0f} ms" if event.ms < 10_000 else f"{event.ms / 1000:,.1f} s"
