"""The one task that asks the cluster: at each sweep every node, and now and then every nsqlookupd who is there.

A sweep waits for those who answer quickly and no longer: who is slow is shown with what it said last, and with its age;
its answer, when it comes, is in the next picture. So nobody's slowness is anybody else's.

    discover (every 15 s) ─► nodes ─► ask each (5 s, its own deadline) ─► merge ─► put series ─► diagnose ─► Snapshot
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from time import thread_time, time
from typing import TYPE_CHECKING, Any, Final, TypeVarTuple, Unpack
from urllib.parse import quote_plus

import trio

from common.options import seconds
from common.web import run_trio
from nsqadmin.answered import NodeAnswer, NotUnderstood, read_stats
from nsqadmin.cluster import Directory, Merger, is_out_of_date, node_order, totals_of, version_key
from nsqadmin.diagnosis.findings import diagnose
from nsqadmin.discovery import Announced, merged_nodes, names_in, producers_in, read_info, unwrapped
from nsqadmin.events import events_between
from nsqadmin.model import (
    CLUSTER_SERIES,
    NOTHING_YET,
    Activity,
    Channel,
    Health,
    Lookupd,
    Node,
    Producer,
    Rates,
    Series,
    Severity,
    Snapshot,
    Span,
    Topic,
    Totals,
    Unanswered,
    channel_series,
    node_series,
    topic_series,
)
from nsqadmin.series import SeriesStore, row_of
from nsqadmin.upstream import Upstream, UpstreamError, explained

if TYPE_CHECKING:
    from array import array

    from nsqadmin.activity import ActivityLog
    from nsqadmin.options import Options

Ts = TypeVarTuple("Ts")

PATIENCE: Final = 1.0  # seconds that a sweep waits for the slower ones
_SHARE: Final = 8  # the work of a sweep is at most this part of the time: 12.5 % of a core
_AT_ONCE: Final = 16  # nodes that are asked at the same time
_LOOKED_FOR: Final = 60.0  # seconds that a topic counts as looked at
_MOST_LOOKED: Final = 20  # topics whose clients are asked for one by one, in a cluster with too many of them
_GONE_FOR: Final = 600.0  # seconds that a node that has left is still shown
_BAD_REQUEST: Final = 400
# What reading an answer raises that is none: that is the trouble of one node.
_NO_ANSWER: Final = (NotUnderstood, KeyError, TypeError, ValueError, AttributeError)
_MOST_INACTIVE: Final = 200  # topics whose registered channels are asked for


@dataclass(slots=True)
class _Asked:
    """Somebody who is asked again and again."""

    health: Health = Health.NEVER
    since: float = 0.0
    error: UpstreamError | None = None
    answered_in: float | None = None
    busy_since: float | None = None  # by the monotonic clock: a question is under way

    def succeeded(self, took: float, now: float) -> None:
        self.answered_in, self.error = took, None
        self._is(Health.SLOW if took > PATIENCE else Health.OK, now)

    def failed(self, error: UpstreamError, now: float) -> None:
        self.error = error
        self._is(Health.NEVER if self.answered_in is None else Health.DOWN, now)

    def overdue(self, now: float) -> None:
        """No answer yet, and no failure: what it said last still counts."""
        if self.health is Health.OK:
            self._is(Health.SLOW, now)

    def _is(self, health: Health, now: float) -> None:
        if health is not self.health or not self.since:
            self.health, self.since = health, now


@dataclass(slots=True)
class _NodeState(_Asked):
    announced: Announced = field(default_factory=lambda: Announced("", "", 0, 0))
    answer: NodeAnswer | None = None
    has_history: bool | None = None  # None: not known yet
    clock_skew: float | None = None
    left_at: float | None = None  # it is in no directory any more
    restarted: bool = False


@dataclass(slots=True)
class _LookupdState(_Asked):
    producers: list[Announced] = field(default_factory=list)
    topics: list[str] = field(default_factory=list)
    version: str = ""


class Sampler:
    """The live `View`."""

    def __init__(
        self,
        options: Callable[[], Options],
        upstream: Upstream,
        activity: ActivityLog,
        *,
        wall: Callable[[], float] = time,
    ) -> None:
        """`options()` is asked anew: the list of nsqlookupds can be changed at run time."""
        self._options = options
        self._upstream = upstream
        self._activity = activity
        self._wall = wall
        self._snapshot = NOTHING_YET
        self.store = SeriesStore(most_coarse=options().history_series)
        self._merger = Merger()
        self._nodes: dict[str, _NodeState] = {}
        self._lookupds: dict[str, _LookupdState] = {}
        self._registered_channels: dict[str, tuple[str, ...]] = {}
        self._discovered_at = -1e9
        self._static: dict[str, Announced] = {}  # by configured address, without nsqlookupds
        self._looked_at: dict[str, float] = {}
        self._known_rows: dict[str, tuple[Topic, tuple[tuple[str, array[float]], ...]]] = {}
        self._begun = 0  # sweeps
        self._worked = self._worked_before = 0.0  # seconds, in this sweep and in the one before
        self._limiter = trio.CapacityLimiter(_AT_ONCE)
        self._wake = trio.Event()
        self._swept = trio.Event()
        self._on_snapshot: list[Callable[[Snapshot], None]] = []
        self.busy_share = 0.0  # of the time, as of the last sweep

    # As a view

    @property
    def snapshot(self) -> Snapshot:
        return self._snapshot

    def series(self, key: str, span: Span) -> Series | None:
        return self.store.series(key, span)

    def activity(self) -> tuple[Activity, ...]:
        return self._activity.newest()

    def look_at(self, topic: str = "") -> None:
        self._looked_at[topic] = trio.current_time()

    async def refreshed(self, topic: str = "") -> Snapshot:
        return await run_trio(self.refresh, topic)

    async def refresh(self, topic: str = "") -> Snapshot:
        """As `refreshed`, on trio."""
        if topic:
            self.look_at(topic)
        wanted = self._begun + 1  # one that runs already may have asked before what is to be seen happened
        self._wake.set()
        with trio.move_on_after(2 * PATIENCE + seconds(self._options().http_client_request_timeout)):
            while self._snapshot.index < wanted:
                await self._swept.wait()
        return self._snapshot

    def on_snapshot(self, told: Callable[[Snapshot], None]) -> None:
        """`told` is called after each sweep."""
        self._on_snapshot.append(told)

    # The task

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Never returns. Started when there is a first picture."""
        async with trio.open_nursery() as nursery:
            while True:
                began = trio.current_time()
                await self._sweep(nursery)
                if self._snapshot.index == 1:
                    task_status.started()
                swept, self._swept = self._swept, trio.Event()
                swept.set()
                # Rates need two samples, and consumers are asked for from the second one on.
                pause = self._snapshot.interval if self._snapshot.index > 1 else min(1.0, self._snapshot.interval)
                with trio.move_on_at(began + pause):
                    await self._wake.wait()
                self._wake = trio.Event()

    async def _sweep(self, nursery: trio.Nursery) -> None:
        self._begun += 1
        self._worked_before, self._worked = self._worked, 0.0
        if trio.current_time() - self._discovered_at >= seconds(self._options().discovery_interval):
            is_first = not self._nodes
            asked = self._start_discovery(nursery)
            if is_first:  # there is nobody to be asked yet
                await asked.wait()
                self._settle_directory()
        asked = self._start_asking(nursery)
        await asked.wait()
        self._settle_directory()
        with self._working():
            self._snapshot = self._picture()
        with self._working():
            for told in self._on_snapshot:
                told(self._snapshot)
        self.busy_share = self._worked / self._snapshot.interval

    @contextmanager
    def _working(self) -> Iterator[None]:
        # Of the processor, and not of the clock: on a busy machine everything takes longer, and that is no work of ours.
        began = thread_time()
        try:
            yield
        finally:
            self._worked += thread_time() - began

    # Who is there

    def _start_discovery(self, nursery: trio.Nursery) -> _Round:
        self._discovered_at = trio.current_time()
        options = self._options()
        asked = _Round()
        if options.lookupd_http_address:
            for address in dict.fromkeys(options.lookupd_http_address):
                state = self._lookupds.setdefault(address, _LookupdState())
                if state.busy_since is None:
                    asked.start(nursery, self._ask_lookupd, address, state)
        else:
            for address in dict.fromkeys(options.nsqd_http_address):
                asked.start(nursery, self._ask_info, address)
        for address in self._lookupds.keys() - set(options.lookupd_http_address):
            del self._lookupds[address]
        return asked

    async def _ask_lookupd(self, address: str, state: _LookupdState) -> None:
        began = state.busy_since = trio.current_time()
        try:
            state.producers = producers_in(await self._upstream.get_json(address, "/nodes"))
            state.topics = names_in(await self._upstream.get_json(address, "/topics"), "topics")
            state.version = str(unwrapped(await self._upstream.get_json(address, "/info")).get("version") or "")
            state.succeeded(trio.current_time() - began, self._wall())
            await self._ask_inactive(address, state)
        except UpstreamError as error:
            state.failed(error, self._wall())
        except _NO_ANSWER as error:
            state.failed(UpstreamError(f"{address} {error!r}"), self._wall())
        finally:
            state.busy_since = None

    async def _ask_inactive(self, address: str, state: _LookupdState) -> None:
        """For the channels of topics that no node has: one question each, so not for too many."""
        active = {topic for it in self._lookupds.values() for producer in it.producers for topic in producer.topics}
        for topic in [it for it in state.topics if it not in active][:_MOST_INACTIVE]:
            document = await self._upstream.get_json(address, f"/channels?topic={quote_plus(topic)}")
            channels = {*self._registered_channels.get(topic, ()), *names_in(document, "channels")}
            self._registered_channels[topic] = tuple(sorted(channels))

    async def _ask_info(self, configured: str) -> None:
        try:
            self._static[configured] = read_info(
                unwrapped(await self._upstream.get_json(configured, "/info")), configured
            )
        except (UpstreamError, *_NO_ANSWER):
            # Why is told by the question for numbers, which goes to the same place.
            self._static.setdefault(configured, read_info({}, configured))

    def _settle_directory(self) -> None:
        """Who is there, after what everybody has said up to now."""
        options = self._options()
        if options.lookupd_http_address:
            answered = [(at, it) for at, it in self._lookupds.items() if it.health in (Health.OK, Health.SLOW)]
            if not answered and self._nodes:
                return  # nobody knows: those that were there are asked further
            announced = merged_nodes((at, it.producers) for at, it in answered)
        else:
            announced = list(self._static.values())
        now = trio.current_time()
        there = set()
        for it in announced:
            there.add(it.address)
            state = self._nodes.setdefault(it.address, _NodeState())
            state.announced, state.left_at = it, None
        for address in self._nodes.keys() - there:
            state = self._nodes[address]
            state.left_at = state.left_at or now
            state.announced = replace(state.announced, sources=[], remote_addresses=[], topics={})
            if now - state.left_at > _GONE_FOR:
                del self._nodes[address]

    # What they have

    def _start_asking(self, nursery: trio.Nursery) -> _Round:
        asked = _Round()
        has_clients = self._wants_all_clients()
        topics = () if has_clients else self._topics_to_ask_for()
        for state in self._nodes.values():
            if state.busy_since is None:
                asked.start(nursery, self._ask_node, state, has_clients, topics)
            else:
                state.overdue(self._wall())
        return asked

    def _wants_all_clients(self) -> bool:
        if not self._snapshot.index:
            return False  # how many there are is not known yet
        is_looked_at = trio.current_time() - self._looked_at.get("", -1e9) < _LOOKED_FOR
        return is_looked_at or self._snapshot.totals.client_count <= self._options().sample_clients

    def _topics_to_ask_for(self) -> tuple[str, ...]:
        """Those that somebody looks at, and those that wait although there are consumers: why, only clients can tell."""
        since = trio.current_time() - _LOOKED_FOR
        self._looked_at = {topic: at for topic, at in self._looked_at.items() if at >= since}
        looked = [topic for topic in self._looked_at if topic]
        waiting = [
            (max(channel.depth for channel in topic.channels), topic.name)
            for topic in self._snapshot.topics
            if any(channel.depth and channel.client_count for channel in topic.channels)
        ]
        worst = [name for _, name in sorted(waiting, reverse=True)]
        return tuple(dict.fromkeys([*looked, *worst]))[:_MOST_LOOKED]

    async def _ask_node(self, state: _NodeState, has_clients: bool, topics: Sequence[str]) -> None:
        began = state.busy_since = trio.current_time()
        # Who was slow before must not take the place of those who are quick.
        gate = self._limiter if state.health is Health.OK else trio.CapacityLimiter(1)
        try:
            async with gate:
                began = trio.current_time()
                await self._ask(state, has_clients, topics)
            state.succeeded(trio.current_time() - began, self._wall())
        except UpstreamError as error:
            state.failed(error, self._wall())
        except _NO_ANSWER as error:
            state.failed(UpstreamError(f"{state.announced.address} {error!r}"), self._wall())
        finally:
            state.busy_since = None

    async def _ask(self, state: _NodeState, has_clients: bool, topics: Sequence[str]) -> None:
        address = state.announced.address
        if state.has_history is None:
            state.has_history = await self._keeps_history(address)
        words = "true" if has_clients else "false"
        document, date = await self._upstream.get_dated_json(address, f"/stats?format=json&include_clients={words}")
        state.clock_skew = date - self._wall() if date is not None else None
        document = dict(unwrapped(document))
        if topics:
            await self._add_clients(address, document, topics)
        with self._working():
            answer = read_stats(
                address,
                document,
                at=trio.current_time(),
                before=state.answer,
                has_clients=has_clients,
                has_history=state.has_history,
            )
        if answer.restarted:
            state.has_history, state.restarted = None, True  # it may be another program now
        state.answer = answer

    async def _add_clients(self, address: str, document: dict[str, Any], topics: Sequence[str]) -> None:
        there = {it["topic_name"]: at for at, it in enumerate(document.get("topics") or ())}
        for topic in topics:
            if topic in there:
                asked = f"/stats?format=json&topic={quote_plus(topic)}"
                for it in unwrapped(await self._upstream.get_json(address, asked)).get("topics") or ():
                    document["topics"][there[topic]] = it

    async def _keeps_history(self, address: str) -> bool:
        """Ours say which argument is missing, where a Go nsqd knows no such endpoint."""
        try:
            await self._upstream.get(address, "/topic/log")
        except UpstreamError as error:
            if not error.status:
                raise
            return error.status == _BAD_REQUEST
        return False

    # The picture

    def _picture(self) -> Snapshot:
        now, before = self._wall(), self._snapshot
        states = self._nodes
        newest = max((version_key(it.announced.version) for it in states.values()), default=(0, 0, 0))
        has_lookupds = bool(self._options().lookupd_http_address)
        nodes = sorted(
            (
                self._node(address, it, has_lookupds and is_out_of_date(it.announced.version, newest))
                for address, it in states.items()
            ),
            key=node_order,
        )
        answers = [
            answer for node in nodes if node.is_reachable and (answer := self._nodes[node.address].answer) is not None
        ]
        topics = self._merger.merge(answers, self._directory(), now=trio.current_time())
        lookupds = tuple(self._lookupd(address, it) for address, it in self._lookupds.items())
        interval = max(seconds(self._options().sample_interval), self._worked_before * _SHARE)
        drawn = Snapshot(
            index=before.index + 1,
            taken_at=now,
            interval=interval,
            has_lookupds=has_lookupds,
            nodes=tuple(nodes),
            lookupds=lookupds,
            topics=topics,
            producers=_producers(answers),
            unanswered=tuple(_unanswered(nodes, lookupds)),
            totals=totals_of(topics),
            has_all_clients=all(answer.has_clients for answer in answers),
        )
        self.store.put(self._rows(drawn), now=now)
        found = replace(drawn, findings=diagnose(drawn, self.store, before=before.findings))
        restarted = frozenset(address for address, it in states.items() if it.restarted)
        for state in states.values():
            state.restarted = False
        for event in events_between(before, found, restarted=restarted):
            self._activity.happened(event)
        return found

    def _directory(self) -> Directory:
        topics: dict[str, list[str]] = {}
        for address, state in self._lookupds.items():
            if state.health in (Health.OK, Health.SLOW):
                for topic in state.topics:
                    topics.setdefault(topic, []).append(address)
        return Directory(
            topics={topic: tuple(addresses) for topic, addresses in topics.items()},
            channels=self._registered_channels,
            tombstones=frozenset(
                (topic, address)
                for address, state in self._nodes.items()
                for topic, is_tombstoned in state.announced.topics.items()
                if is_tombstoned
            ),
        )

    def _node(self, address: str, state: _NodeState, out_of_date: bool) -> Node:
        announced, answer = state.announced, state.answer
        node = Node(
            address=address,
            hostname=announced.hostname,
            broadcast_address=announced.broadcast_address,
            tcp_port=announced.tcp_port,
            http_port=announced.http_port,
            version=announced.version or (answer.version if answer is not None else ""),
            region=announced.region,
            zone=announced.zone,
            health=state.health,
            since=state.since,
            answered_in=state.answered_in,
            error=str(state.error) if state.error is not None else "",
            explanation=self._explanation(address, state),
            has_history=bool(state.has_history),
            lookupds=tuple(announced.sources),
            remote_addresses=tuple(announced.remote_addresses),
            tombstones=tuple(sorted(topic for topic, is_tombstoned in announced.topics.items() if is_tombstoned)),
            out_of_date=out_of_date,
            clock_skew=state.clock_skew,
        )
        if answer is None or not node.is_reachable:
            return node
        return replace(
            node,
            own_health=answer.own_health,
            start_time=answer.start_time,
            memory=answer.memory,
            **_numbers(answer),
        )

    def _explanation(self, address: str, state: _NodeState) -> str:
        if state.left_at is not None and state.error is not None:
            return "It was stopped, or has died: every nsqlookupd that answers has lost it, too. " + explained(
                address, state.error
            )
        if state.error is not None:
            return explained(address, state.error)
        if state.health is Health.SLOW:
            return "It takes more than a second to answer: it is overloaded, or the way to it is."
        return ""

    def _lookupd(self, address: str, state: _LookupdState) -> Lookupd:
        is_slow = state.health is Health.SLOW
        return Lookupd(
            address=address,
            health=state.health,
            since=state.since,
            answered_in=state.answered_in,
            error=str(state.error) if state.error is not None else "",
            explanation=explained(address, state.error)
            if state.error is not None
            else "It takes more than a second to answer."
            if is_slow
            else "",
            version=state.version,
            topics=tuple(state.topics),
            nodes=tuple(it.address for it in state.producers),
        )

    # Series

    def _rows(self, snapshot: Snapshot) -> Iterator[tuple[str, array[float]]]:
        totals = snapshot.totals
        wrong = sum(1 for it in self._snapshot.findings if it.severity is not Severity.INFO)
        yield CLUSTER_SERIES, _row(totals, totals.rates, clients=totals.client_count, findings=wrong)
        for node in snapshot.nodes:
            if node.is_reachable:
                yield node_series(node.address), _row(node, node.rates, clients=node.client_count)
        known, self._known_rows = self._known_rows, {}
        for topic in snapshot.topics:
            if topic.is_inactive:
                continue
            rows = known.get(topic.name)
            if rows is None or rows[0] is not topic:
                rows = topic, tuple(_rows_of(topic))
            self._known_rows[topic.name] = rows
            yield from rows[1]


class _Round:
    """Some questions at once, of which those are waited for that are answered quickly."""

    def __init__(self) -> None:
        self._left = 0
        self._all = trio.Event()

    def start(self, nursery: trio.Nursery, ask: Callable[[Unpack[Ts]], Awaitable[None]], *arguments: *Ts) -> None:
        self._left += 1

        async def asked() -> None:
            try:
                await ask(*arguments)
            finally:
                self._left -= 1
                if not self._left:
                    self._all.set()

        nursery.start_soon(asked)

    async def wait(self) -> None:
        if self._left:
            with trio.move_on_after(PATIENCE):
                await self._all.wait()


def _producers(answers: Sequence[NodeAnswer]) -> tuple[Producer, ...] | None:
    if any(answer.producers is None for answer in answers):
        return None
    return tuple(producer for answer in answers for producer in answer.producers or ())


def _unanswered(nodes: Sequence[Node], lookupds: Sequence[Lookupd]) -> Iterator[Unanswered]:
    everybody: list[Node | Lookupd] = [*lookupds, *nodes]
    for it in everybody:
        if not it.is_reachable:
            what = "nsqd" if isinstance(it, Node) else "nsqlookupd"
            yield Unanswered(
                what=f"{what} {it.address} {'has never answered' if it.health is Health.NEVER else 'does not answer'}",
                where=it.address,
                advice=it.explanation,
                raw=it.error,
            )


def _numbers(answer: NodeAnswer) -> dict[str, Any]:
    """Sums over all that a node has."""
    topics = answer.topics.values()
    channels = [part for topic in topics for part in topic.channels.values()]
    return {
        "topic_count": len(topics),
        "channel_count": len(channels),
        "client_count": sum(it.row.client_count for it in channels),
        "depth": sum(it.row.depth for it in topics) + sum(it.row.depth for it in channels),
        "in_flight_count": sum(it.row.in_flight_count for it in channels),
        "message_count": sum(it.row.message_count for it in topics),
        "rates": Rates(
            incoming=_sum(it.rates.incoming for it in topics),
            finished=_sum(it.rates.finished for it in channels),
            requeued=_sum(it.rates.requeued for it in channels),
            timed_out=_sum(it.rates.timed_out for it in channels),
            bytes=_sum(it.rates.bytes for it in topics),
        ),
    }


def _sum(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _rows_of(topic: Topic) -> Iterator[tuple[str, array[float]]]:
    yield topic_series(topic.name), _row(topic, topic.rates)
    for channel in topic.channels:
        yield channel_series(topic.name, channel.name), _row(channel, channel.rates, clients=channel.client_count)


def _row(counts: Topic | Channel | Node | Totals, rates: Rates, *, clients: int = 0, findings: int = 0) -> array[float]:
    return row_of(
        depth=counts.depth,
        backend_depth=getattr(counts, "backend_depth", 0),
        in_flight=getattr(counts, "in_flight_count", 0),
        deferred=getattr(counts, "deferred_count", 0),
        clients=clients,
        incoming=rates.incoming,
        finished=rates.finished if not isinstance(counts, Topic) else 0.0,
        requeued=rates.requeued if not isinstance(counts, Topic) else 0.0,
        timed_out=rates.timed_out if not isinstance(counts, Topic) else 0.0,
        bytes=rates.bytes if not isinstance(counts, Channel) else 0.0,
        findings=findings,
    )
