"""The task that polls the cluster: every node at each sweep, and every nsqlookupd every few sweeps.

A sweep only waits for fast answers, so that a slow node doesn't delay the others. A slow node is shown with its last
answer and that answer's age; its new answer appears in the next snapshot.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from time import thread_time, time
from typing import TYPE_CHECKING, Final

import trio

from nsqadmin.cluster.events import events_between
from nsqadmin.cluster.merge import Merger, totals_of
from nsqadmin.cluster.model import NOTHING_YET, Activity, Metric, Series, Snapshot, Span
from nsqadmin.cluster.series import METRICS, SeriesStore
from nsqadmin.cluster.versions import Versions
from nsqadmin.diagnosis.findings import diagnose
from nsqadmin.diagnosis.upkeep import Upkeep
from nsqadmin.upstream.asked import PATIENCE, Round
from nsqadmin.upstream.burial_survey import burial_survey
from nsqadmin.upstream.census import Census
from nsqadmin.upstream.group_survey import group_survey
from nsqadmin.upstream.groups import GroupQuestions
from nsqadmin.upstream.inquiry import Inquiry
from nsqadmin.upstream.interest import Interest
from nsqadmin.upstream.kept_nodes import KeptNodes
from nsqadmin.upstream.node_view import lookupd_to_show, nodes_to_show, producers_of, silent_among, unanswered_by
from nsqadmin.upstream.readers import ReaderSurvey
from nsqadmin.upstream.rows import Rows
from nsqadmin.upstream.stats import Stats
from nsqcommon.options import seconds
from nsqcommon.wakeup import Wakeup
from nsqcommon.web import run_trio

if TYPE_CHECKING:
    from nsqadmin.actions.audit import ActivityLog
    from nsqadmin.options import Options
    from nsqadmin.upstream.client import Upstream

_DONE: Final = frozenset(("ok", "partly"))  # results of actions that have changed something
_SHORTEST: Final = 1.0  # seconds between sweeps caused by nodes that come, go or change
_SHARE: Final = 8  # the pause between sweeps grows until a sweep's work is an eighth of the time: 12.5 % of a core


class Sampler:
    """The live `View`."""

    def __init__(
        self,
        options: Callable[[], Options],
        upstream: Upstream,
        activity: ActivityLog,
        *,
        wall: Callable[[], float] = time,
        shows_texts: bool = False,
    ) -> None:
        """`options()` is called at each sweep, because the list of nsqlookupds can change at run time.

        `shows_texts`: all users may see messages, so findings may quote names of groups and reasons of burials.
        """
        self.store = SeriesStore(most_coarse=options().history_series)
        self.started_at = wall()
        self.also_sampled: Callable[[], Mapping[Metric, float]] = dict  # of the cluster, but not in a snapshot
        self.busy_share = 0.0  # share of a core that the last sweep took
        self._options = options
        self._activity = activity
        self._wall = wall
        self._work = _Work()
        self._census = Census(options, upstream, wall, on_news=lambda: self._wake.set())
        self.kept_nodes = KeptNodes(self._census, wall)
        self._stats = Stats(upstream, wall, most=options().max_cluster_size)
        self._readers = ReaderSurvey(upstream, wall)
        self._groups = group_survey(GroupQuestions(upstream), shows_names=shows_texts)
        self._burials = burial_survey(upstream, shows_texts=shows_texts)
        self._upstream = upstream
        self._inquiry = Inquiry(upstream, activity)
        self._interest = Interest()
        self._merger = Merger()
        self._rows = Rows()
        self.upkeep = Upkeep()
        self._versions = Versions()
        self._snapshot = NOTHING_YET
        self._begun = 0  # number of sweeps started
        self._acted = 0  # the first sweep that sees the effects of all actions of this nsqadmin
        self._wake = Wakeup()
        self._swept = trio.Event()
        self._on_snapshot: list[Callable[[Snapshot], object]] = []

    # The view

    @property
    def snapshot(self) -> Snapshot:
        return self._snapshot

    def series(self, key: str, span: Span, metrics: Collection[Metric] = METRICS) -> Series | None:
        return self.store.series(key, span, metrics)

    def activity(self) -> tuple[Activity, ...]:
        return self._activity.newest()

    def look_at(self, topic: str = "") -> None:
        self._interest.look_at(topic, trio.current_time())

    async def refreshed(self, topic: str = "") -> Snapshot:
        return await run_trio(self.refresh, topic)

    async def refresh(self, topic: str = "") -> Snapshot:
        """Do the work of `refreshed`; for callers on trio."""
        if topic:
            self.look_at(topic)
        wanted = self._begun + 1  # a running sweep may have asked before the change that the caller waits for
        return await self._wait_for(wanted, 2 * PATIENCE + seconds(self._options().http_client_request_timeout))

    async def after_actions(self) -> Snapshot:
        if self._snapshot.index >= self._acted:
            return self._snapshot
        return await run_trio(self._wait_for, self._acted, 2 * PATIENCE)

    async def _wait_for(self, index: int, longest: float) -> Snapshot:
        """Return the snapshot of this sweep, which begins at once, or the newest one after `longest` seconds."""
        if self._begun < index:
            self._wake.set()
        with trio.move_on_after(longest):
            while self._snapshot.index < index:
                await self._swept.wait()
        return self._snapshot

    def note_activity(self, entry: Activity) -> None:
        """Take note of an action of this nsqadmin: whoever looks at a page next must see its effects."""
        if entry.is_action and entry.result in _DONE:
            self._acted = self._begun + 1

    def forget(self, address: str) -> bool:
        """Stop showing a silent node, from the next sweep on, which starts now. False: the node answers."""
        is_forgotten = self._census.forget(address)
        self._wake.set()
        return is_forgotten

    def on_snapshot(self, callback: Callable[[Snapshot], object]) -> None:
        """Call `callback` after each sweep."""
        self._on_snapshot.append(callback)

    # The task

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Sweep until cancelled. Started when there is a first snapshot."""
        async with trio.open_nursery() as nursery:
            while True:
                began = trio.current_time()
                await self._sweep(nursery)
                if self._snapshot.index == 1:
                    task_status.started()
                swept, self._swept = self._swept, trio.Event()
                swept.set()
                # The second sweep follows soon: rates need two samples, and clients are requested from the second on.
                pause = self._snapshot.interval if self._snapshot.index > 1 else min(1.0, self._snapshot.interval)
                with trio.move_on_at(began + pause):
                    await self._wake.wait()
                self._wake.clear()

    async def _sweep(self, nursery: trio.Nursery) -> None:
        self._begun += 1
        self._work.begin_sweep()
        census = self._census
        if census.is_due:
            # Before the first census we know no nodes to poll, and news would have to wait for the next sweep.
            is_awaited = census.has_news or not census.has_settled
            asked = census.start(nursery)
            if is_awaited:
                await asked.wait()
                census.settle()
        began = trio.current_time()
        readers = self._readers.start(nursery, census.nodes, self._interest.looked_at(began))
        await self._ask_nodes(nursery).wait()
        with trio.move_on_at(began + PATIENCE):
            await readers.wait()
        census.settle()
        self._stats.keep_only(census.nodes)
        self._work.count_reading(self._upstream.spent)
        before = self._snapshot
        with self._work.counted():
            self._snapshot = self._picture()
        self._inquiry.ask(nursery, before, self._snapshot)
        self._groups.start(nursery, self._snapshot)
        self._burials.start(nursery, self._snapshot)
        with self._work.counted():
            for callback in self._on_snapshot:
                callback(self._snapshot)
        self.busy_share = self._work.seconds / self._snapshot.interval
        census.shortest_interval = max(_SHORTEST, self._work.seconds * _SHARE)

    def _ask_nodes(self, nursery: trio.Nursery) -> Round:
        now, snapshot, interest = trio.current_time(), self._snapshot, self._interest
        has_clients = interest.is_in_all(snapshot, few=self._options().sample_clients, now=now)
        topics = () if has_clients else interest.topics(snapshot, now)
        return self._stats.start(nursery, self._census.nodes.values(), has_clients=has_clients, topics=topics)

    def _picture(self) -> Snapshot:
        now, before, census = self._wall(), self._snapshot, self._census
        successors = census.take_successors()
        nodes = nodes_to_show(census.nodes, has_lookupds=census.has_lookupds, successors=successors)
        lookupds = tuple(lookupd_to_show(address, state) for address, state in census.lookupds.items())
        answers = [
            answer
            for node in nodes
            if not node.successor and (answer := census.nodes[node.address].last_answer()) is not None
        ]
        merged = self._merger.merge(answers, census.directory(), now=trio.current_time(), wall=now)
        topics = self._burials.shown(self._groups.shown(self._readers.shown(merged)))
        drawn = Snapshot(
            index=before.index + 1,
            taken_at=now,
            interval=max(seconds(self._options().sample_interval), self._work.before * _SHARE),
            has_lookupds=census.has_lookupds,
            nodes=nodes,
            lookupds=lookupds,
            topics=topics,
            producers=producers_of(answers),
            unanswered=tuple(unanswered_by(nodes, lookupds)),
            silent=silent_among(nodes),
            totals=totals_of(topics),
            has_all_clients=all(answer.has_clients or answer.is_silent for answer in answers),
        )
        # Rules look at the present series, so the series get the number of findings one sweep late.
        self.store.put(self._rows.of(drawn, before.findings, self.also_sampled()), now=now)
        findings = diagnose(drawn, self.store, self.upkeep)
        found = replace(drawn, findings=findings)
        events = events_between(before, found, restarted=census.take_restarted())
        events += self._versions.events(found)
        return self._inquiry.look_into(found, events)


class _Work:
    """The sampler's processor time, sweep by sweep."""

    def __init__(self) -> None:
        self.seconds = 0.0  # of this sweep
        self.before = 0.0  # of the previous sweep
        self._spent = 0.0  # for parsing answers since the start, as of the last `count_reading`

    def begin_sweep(self) -> None:
        self.before, self.seconds = self.seconds, 0.0

    def count_reading(self, spent: float) -> None:
        """Add the time for parsing answers since the last call. `spent` is its sum since the start, in seconds."""
        self.seconds += spent - self._spent
        self._spent = spent

    @contextmanager
    def counted(self) -> Iterator[None]:
        """Add the processor time of the block. Wall time would include other programs on a busy machine."""
        began = thread_time()
        try:
            yield
        finally:
            self.seconds += thread_time() - began
