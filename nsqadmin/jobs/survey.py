"""Reads which tasks the messages of job queues belong to: a look at headers, bounded, and only while somebody looks.

By task, what is buried, deferred and in flight is exact up to 10,000 messages of each, over all queues; what waits is
estimated from the first messages of each queue. Smaller queues come first, so that a large one doesn't hide them. Nodes
are read side by side, each with one request at a time, and those that don't answer are named.

Anyone can publish messages with any names, so we count by 1,000 names, and those that workers report. A name that has
found no room never gets it later, so the count of a listed name is never too small because of the others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlencode

import trio

from nsqadmin.messages.jobs import QueuedJob, job_in
from nsqadmin.messages.reading import Unreadable, headers_in, silence, waiting_in, why
from nsqadmin.messages.selection import runs_of
from nsqadmin.upstream.client import UpstreamError

if TYPE_CHECKING:
    from nsqadmin.cluster.model import Channel, ChannelNode, Snapshot
    from nsqadmin.messages.reading import Reader
    from nsqadmin.upstream.client import Upstream

CHANNEL: Final = "jobs"  # of each queue of nsqjobs
MOST_READ: Final = 10_000  # messages of each kind, over all queues
MOST_SAMPLED: Final = 2_000  # waiting messages of a queue
MOST_NAMES: Final = 1_000  # of tasks that no worker reports
_LONGEST_NAME: Final = 255  # characters; nsqjobs cuts longer ones
_LONGEST_REASON: Final = 1_024
_MOST_BYTES: Final = 8 << 20  # of one node's bodies of one kind
_LONGEST: Final = 4.0  # seconds; what hasn't been read by then is unknown
_IN_A_REQUEST: Final = 1_000  # messages
_MOST_PLACES: Final = 1_000  # of waiting messages that nsqd names
_NONSENSE: Final = (KeyError, TypeError, ValueError, AttributeError, RecursionError)
_NOTHING: Final = frozenset(("TOPIC_NOT_FOUND", "CHANNEL_NOT_FOUND", "EPHEMERAL_TOPIC", "EPHEMERAL_CHANNEL"))


class Kind(StrEnum):
    BURIED = "buried"
    DEFERRED = "deferred"
    IN_FLIGHT = "inflight"
    WAITING = "waiting"


@dataclass(slots=True)
class KindReading:
    """What was read of one kind of a queue's messages."""

    total: int = 0  # messages of this kind in the queue, by the snapshot, or as counted since
    read: int = 0
    by_task: Counter[str] = field(default_factory=Counter)
    retrying: Counter[str] = field(default_factory=Counter)  # those of them that are retries
    errors: dict[str, Counter[str]] = field(default_factory=dict)  # reasons of burials by task
    unlisted: int = 0  # jobs of tasks whose names have found no room
    is_guessed: bool = False  # some of what was read may be of another kind, or there are more than `total`
    missing: dict[str, str] = field(default_factory=dict)  # nodes that weren't read, or not to the end, and why

    @property
    def is_whole(self) -> bool:
        return not self.missing


class TaskNames:
    """The names by which a survey counts."""

    def __init__(self, reported: Iterable[str] = ()) -> None:
        self._reported = frozenset(reported)
        self._others: set[str] = set()

    def __contains__(self, name: object) -> bool:
        return name in self._reported or name in self._others

    def take(self, name: str) -> bool:
        """List a name if there is room. Return True if it is listed."""
        if name not in self and len(self._others) < MOST_NAMES and len(name) <= _LONGEST_NAME:
            self._others.add(name)
        return name in self


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueReading:
    topic: str
    channel: str
    kinds: Mapping[Kind, KindReading]
    libraries: Mapping[str, str]  # by task
    names: TaskNames = field(default_factory=TaskNames)  # those by which all queues are counted

    @property
    def unlisted(self) -> int:
        return sum(it.unlisted for it in self.kinds.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class SurveyResult:
    queues: tuple[QueueReading, ...] = ()
    taken_at: float = 0.0  # on the wall clock
    took: float = 0.0

    @property
    def missing(self) -> Mapping[str, str]:
        """The nodes that weren't read, or not to the end, and why."""
        return {
            node: reason
            for queue in self.queues
            for kind in queue.kinds.values()
            for node, reason in kind.missing.items()
        }


def queues_of(snapshot: Snapshot, reported: frozenset[tuple[str, str]]) -> list[Channel]:
    """Return the channels that have jobs: nsqjobs' own, and those whose workers report."""
    return [
        channel
        for topic in snapshot.topics
        for channel in topic.channels
        if not channel.is_ephemeral
        and not topic.name.endswith("#ephemeral")
        and (channel.name == CHANNEL or (topic.name, channel.name) in reported)
    ]


@dataclass(frozen=True, slots=True)
class _Errand:
    """One kind of messages of one queue on one node, and how many to read."""

    channel: Channel
    row: ChannelNode
    kind: Kind
    count: int  # in the snapshot
    limit: int


class Surveyor:
    """Reads, on trio."""

    def __init__(self, upstream: Upstream, reader: Reader) -> None:
        self._upstream = upstream
        self._reader = reader

    async def survey(
        self, snapshot: Snapshot, channels: Sequence[Channel], reported: Iterable[str] = ()
    ) -> list[QueueReading]:
        """Read the queues. `reported` are names of tasks that are counted in any case."""
        names = TaskNames(reported)
        found = {(it.topic, it.name): _empty(it) for it in channels}
        libraries: dict[tuple[str, str], dict[str, str]] = {key: {} for key in found}
        by_node: dict[str, list[_Errand]] = {}
        for errand in _errands(channels):
            by_node.setdefault(errand.row.node, []).append(errand)

        for channel in channels:
            for row in channel.nodes:
                if reason := silence(snapshot, row.node):  # also if it had none when it was last seen
                    for kind in found[channel.topic, channel.name].values():
                        kind.missing[row.node] = reason

        async def visit(node: str, errands: list[_Errand]) -> None:
            left = list(errands)
            if silence(snapshot, node):
                return
            with trio.move_on_after(_LONGEST):
                while left:
                    errand = left[0]
                    key = errand.channel.topic, errand.channel.name
                    kind = found[key][errand.kind]
                    problem = await self._read(errand, kind, _Count(kind, errand.kind, names, libraries[key]))
                    if problem:
                        kind.missing[node] = problem
                    left.pop(0)
            for errand in left:
                key = errand.channel.topic, errand.channel.name
                found[key][errand.kind].missing[node] = "it was not read in time"

        async with trio.open_nursery() as nursery:
            for node, errands in by_node.items():
                nursery.start_soon(visit, node, errands)
        return [
            QueueReading(topic=topic, channel=name, kinds=kinds, libraries=libraries[topic, name], names=names)
            for (topic, name), kinds in found.items()
        ]

    async def _read(self, errand: _Errand, kind: KindReading, count: _Count) -> str:
        """Read one kind. Return why that failed, or ended early; "": it is complete."""
        if not errand.limit:
            return "there are too many messages to read"
        try:
            if errand.kind is Kind.WAITING:
                return await self._sample(errand, kind, count)
            return await self._list(errand, count)
        except (Unreadable, UpstreamError) as error:
            return str(error) if isinstance(error, Unreadable) else why(error)
        except _NONSENSE as error:
            return f"its answer cannot be read: {error!r:.200}"

    async def _list(self, errand: _Errand, counted: _Count) -> str:
        channel, node = errand.channel, errand.row.node
        after, read, size = "", 0, 0
        while True:
            limit = min(_IN_A_REQUEST, errand.limit - read)
            asked = {"topic": channel.topic, "channel": channel.name, "limit": limit, "after": after}
            target = f"/channel/{errand.kind}?{urlencode({k: v for k, v in asked.items() if v != ''})}"
            count = 0
            async with aclosing(self._reader.documents(node, target, nothing=_NOTHING)) as lines:
                async for line in lines:
                    count += 1
                    size += len(line.get("body", "")) + len(line.get("body_base64", ""))
                    after = str(line["sequence"] if errand.kind is Kind.BURIED else line["after"])
                    counted.add(_job_of(line), str(line.get("reason", ""))[:_LONGEST_REASON])
                    if size > _MOST_BYTES:
                        return "its messages are large, and were not all read"
            read += count
            if count < limit:
                return ""
            if read >= errand.limit:
                return "there are too many messages to read"

    async def _sample(self, errand: _Errand, kind: KindReading, count: _Count) -> str:
        channel, node, size = errand.channel, errand.row.node, 0
        most = min(errand.limit, _MOST_PLACES)
        asked = {"topic": channel.topic, "channel": channel.name, "limit": most}
        raw = await self._upstream.get_json(node, f"/channel/position?{urlencode(asked)}")
        waiting = waiting_in(raw)
        if len(waiting) < most:  # these are all that wait now, so this number is newer than the snapshot's
            kind.total += len(waiting) - errand.count
        elif errand.limit > errand.count:  # more wait now than in the snapshot
            kind.total += max(0, len(waiting) - errand.count)
            kind.is_guessed = True
        runs = runs_of(waiting)
        if len(waiting) == _MOST_PLACES and errand.limit > _MOST_PLACES:  # then what follows in the log waits, mostly
            kind.is_guessed = True
            first = max(waiting) + 1
            runs.append((first, min(first + errand.limit - _MOST_PLACES, max(first, int(raw["end"])))))
        for first, end in runs:
            if first == end:
                continue
            async with aclosing(self._reader.lines(node, channel.topic, str(first), f"&to={end}")) as lines:
                async for line in lines:
                    if "gap" in line or "next" in line:
                        continue
                    size += len(line.get("body", "")) + len(line.get("body_base64", ""))
                    count.add(_job_of(line))
                    if size > _MOST_BYTES:
                        return ""  # a smaller sample
        return ""


def _empty(channel: Channel) -> dict[Kind, KindReading]:
    return {kind: KindReading(total=sum(_count_of(row, kind) for row in channel.nodes)) for kind in Kind}


def _count_of(row: ChannelNode, kind: Kind) -> int:
    return {
        Kind.BURIED: row.buried_count,
        Kind.DEFERRED: row.deferred_count,
        Kind.IN_FLIGHT: row.in_flight_count,
        Kind.WAITING: row.depth,
    }[kind]


def _errands(channels: Sequence[Channel]) -> Iterator[_Errand]:
    """Yield what to read, the smaller ones of a kind first."""
    for kind in Kind:
        rows = sorted(
            ((count, channel.topic, row.node, channel, row) for channel in channels for row in channel.nodes
             if (count := _count_of(row, kind))),
            key=lambda it: it[:3],
        )  # fmt: skip
        left = MOST_READ
        for place, (count, _, _, channel, row) in enumerate(rows):
            if kind is Kind.WAITING:
                limit = min(MOST_SAMPLED, max(1, left // (len(rows) - place)), count + _MORE_WAITING)
            else:
                limit = min(left, count + _MORE)  # some may have come since the snapshot
            left = max(0, left - min(limit, count))
            yield _Errand(channel, row, kind, count, limit)


_MORE: Final = 1_000
_MORE_WAITING: Final = 20


def _job_of(line: Mapping[str, Any]) -> QueuedJob | None:
    return job_in(headers_in(line.get("headers", {})))


@dataclass(frozen=True, slots=True)
class _Count:
    """Counts the messages of one kind of one queue."""

    reading: KindReading
    kind: Kind
    names: TaskNames
    libraries: dict[str, str]

    def add(self, job: QueuedJob | None, reason: str = "") -> None:
        reading = self.reading
        reading.read += 1
        if job is None:
            reading.by_task[""] += 1  # a message that is no job
            return
        if not self.names.take(job.name):
            reading.unlisted += 1
            return
        reading.by_task[job.name] += 1
        self.libraries.setdefault(job.name, job.library)
        if job.retries:
            reading.retrying[job.name] += 1
        if self.kind is Kind.BURIED:
            reading.errors.setdefault(job.name, Counter())[reason] += 1
