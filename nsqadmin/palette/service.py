"""The palette for request handlers: keeps the index of the newest snapshot, and asks nodes and workers about ids."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from nsqadmin.access import Right
from nsqadmin.jobs.instances import Finder
from nsqadmin.messages.filters import by_header
from nsqadmin.messages.searching import Search
from nsqadmin.palette.commands import Context, TaskQueue
from nsqadmin.palette.index import Index
from nsqadmin.palette.query import Kind, Query, Verb, parse
from nsqadmin.palette.results import Answer, Hit, find, short
from nsqcommon.web import run_trio

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from nsqadmin.access import Identity
    from nsqadmin.cluster.model import Channel, Snapshot
    from nsqadmin.jobs.service import Jobs
    from nsqadmin.messages.service import Messages
    from nsqadmin.parts.links import Links
    from nsqadmin.services import Services
    from nsqcommon.job_reports import JobEvent

_MOST_KNOWN: Final = 200_000  # rights to topics, over all users
_MOST_USERS: Final = 1000  # whose rights we keep: where no proxy is checked, anyone can have any name
_MOST_QUEUES: Final = 50  # to look for a job in
_SECONDS: Final = 3.0  # for the history of all queues
_MOST_NAMED: Final = 5  # nodes or queues in a note


@dataclass(slots=True)
class _Found:
    """What nodes and workers have for an id."""

    hits: list[Hit] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


class Palette:
    """The palette, for callers on asyncio."""

    def __init__(self, services: Services, links: Links) -> None:
        self._services = services
        self._links = links
        self._indexed: tuple[Snapshot, Index] | None = None
        self._rights: dict[Identity, dict[tuple[Right, str], bool]] = {}
        self._lookup = None
        if services.jobs is not None and services.messages is not None:
            self._lookup = _JobLookup(services.jobs, services.messages, links)

    async def answer(self, identity: Identity, text: str, scope: str = "") -> Answer:
        """Return the results of a text. `scope` is that of the page on which it is typed, such as `topic:orders`."""
        services = self._services
        query, snapshot = parse(text), await services.view.after_actions()
        if query.verb is Verb.RETRY and services.jobs is not None:
            await run_trio(services.jobs.surveyed)
        found = await self._found(query, snapshot, identity)
        topic, channel = _subject(scope)
        context = Context(
            snapshot=snapshot,
            identity=identity,
            links=self._links,
            incidents=services.incidents.seen_by(identity),
            tasks=tuple(self._tasks(identity)),
            can_change=services.executor is not None,
            has_jobs=self._lookup is not None,
            topic=topic,
            channel=channel,
            rights=self._rights_of(identity),
        )
        answer = find(self._index(snapshot), context, text, given=found.hits, notes=found.notes)
        if not answer.hits and not snapshot.has_all_clients:
            services.view.look_at()  # so that the next sample has all consumers
        return answer

    def _index(self, snapshot: Snapshot) -> Index:
        if self._indexed is None or self._indexed[0] is not snapshot:
            self._indexed = snapshot, Index(snapshot)
        return self._indexed[1]

    def _rights_of(self, identity: Identity) -> dict[tuple[Right, str], bool]:
        """Return the rights that we have looked up for this user. A changed roles file makes another identity."""
        if len(self._rights) > _MOST_USERS or sum(map(len, self._rights.values())) > _MOST_KNOWN:
            self._rights.clear()
        return self._rights.setdefault(identity, {})

    def _tasks(self, identity: Identity) -> Iterator[TaskQueue]:
        jobs = self._services.jobs
        for name, topic, channel, failed in jobs.queues_by_task(identity) if jobs is not None else ():
            yield TaskQueue(name=name, topic=topic, channel=channel, failed=failed)

    async def _found(self, query: Query, snapshot: Snapshot, identity: Identity) -> _Found:
        services, found = self._services, _Found()
        if query.message_id:
            if services.messages is None:
                found.notes.append("This is a snapshot: it has no messages.")
            else:
                await self._message(services.messages, query.message_id, identity, found)
        if query.job_id and self._lookup is None:
            found.notes.append("This is a snapshot: it has no jobs.")
        elif query.job_id and self._lookup is not None:
            await self._lookup.job(query.job_id, identity, found)
        elif services.jobs is not None and len(query.words) == 1:
            found.hits += _job_hits(self._links, services.jobs.with_id(query.text, identity))
        return found

    async def _message(self, messages: Messages, id: str, identity: Identity, found: _Found) -> None:
        told = await messages.find(id, identity)
        for it in told.places:
            place = {"topic": it.topic, "node": it.node, "sequence": str(it.sequence), "log": it.log}
            href = self._links.to("/message", **place)
            found.hits.append(Hit(name=f"{id} in {it.topic}", kind=Kind.MESSAGE, href=href, detail=it.node))
        if not told.places:
            found.notes.append(f"No match: no history that was searched has a message {id}.")
        found.notes += _not_searched(told.missing)


class _JobLookup:
    """Looks for jobs by their ids: in workers' reports, then in what nodes list, then in the history of the queues."""

    def __init__(self, jobs: Jobs, messages: Messages, links: Links) -> None:
        self._jobs = jobs
        self._messages = messages
        self._links = links
        self._finder = Finder(jobs, messages)

    async def job(self, id: str, identity: Identity, found: _Found) -> None:
        if reason := identity.why_not(Right.PAYLOAD):
            found.notes.append(f"Jobs are not searched: {reason}.")
            return
        if hits := _job_hits(self._links, self._jobs.with_id(id, identity)):
            found.hits += hits
            return
        channels = [it for it in self._jobs.channels(identity) if identity.may(Right.PAYLOAD, it.topic)]
        left_out = len(channels) - _MOST_QUEUES
        channels = channels[:_MOST_QUEUES]
        held = [it for it in channels if it.buried_count or it.deferred_count or it.in_flight_count or it.silent]
        queued = await self._finder.queued(id, held, identity)
        found.hits += [self._hit(id, it.channel) for it in queued if not it.is_empty]
        if found.hits:
            return
        missing = {node: why for it in queued for node, why in it.missing}
        partly = [it.channel.topic for it in queued if it.is_cut]
        partly += await self._in_history(id, channels, identity, found, missing)
        if not found.hits:
            found.notes.append(f"No match: no queue that was searched has a job {short(id)}.")
        found.notes += _not_searched(sorted((node, identity.quoted(why)) for node, why in missing.items()))
        if partly:
            found.notes.append(f"Searched in part: {_some(sorted(set(partly)))}.")
        if left_out > 0:
            found.notes.append(f"Not searched: {left_out:,} more queues.")

    async def _in_history(
        self, id: str, channels: Sequence[Channel], identity: Identity, found: _Found, missing: dict[str, str]
    ) -> list[str]:
        """Look for the job in the history of the queues, the newest messages first. Return those not searched to the end."""
        partly: list[str] = []
        by_topic = {it.topic: it for it in channels}
        share = max(0.3, _SECONDS / max(1, len(by_topic)))
        until = asyncio.get_running_loop().time() + _SECONDS
        for topic, channel in by_topic.items():
            left = until - asyncio.get_running_loop().time()
            if left <= 0:
                partly.append(topic)
                continue
            wanted = by_header("job-id", id)
            search = Search(topic=topic, wanted=wanted, identity=identity, limit=1, seconds=min(share, left))
            result = await self._messages.search(search)
            missing |= {it.node: it.reason for it in result.silent}
            if result.messages:
                found.hits.append(self._hit(id, channel))
                return partly
            if result.goes_on:
                partly.append(topic)
        return partly

    def _hit(self, id: str, channel: Channel) -> Hit:
        return Hit(name=id, kind=Kind.JOB, href=self._links.job(id, channel.topic, channel.name), detail=channel.topic)


def _job_hits(links: Links, events: Iterable[JobEvent]) -> list[Hit]:
    known = {(it.topic, it.id): it for it in events}
    return [
        Hit(name=f"{id} {it.name}", kind=Kind.JOB, href=links.job(id, topic, it.channel), detail=topic)
        for (topic, id), it in known.items()
    ]


def _not_searched(missing: Sequence[tuple[str, str]]) -> list[str]:
    return [f"Not searched: {_some([f'{node} ({why})' for node, why in missing])}."] if missing else []


def _some(names: Sequence[str]) -> str:
    more = len(names) - _MOST_NAMED
    return ", ".join(names[:_MOST_NAMED]) + (f" and {more:,} more" if more > 0 else "")


def _subject(scope: str) -> tuple[str, str]:
    """Return the topic and channel of a page, by its scope."""
    kind, _, name = scope.partition(":")
    if kind == "topic":
        return name, ""
    topic, _, channel = name.partition("/")
    return (topic, channel) if kind == "channel" else ("", "")
