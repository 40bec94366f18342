"""The one task that asks the cluster: at each sweep every node, and now and then every nsqlookupd who is there.

A sweep waits for those who answer quickly and no longer: who is slow is shown with what it said last, and with its age;
its answer, when it comes, is in the next picture. So nobody's slowness is anybody else's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from time import time
from typing import TYPE_CHECKING, Final

import trio

from common.options import seconds
from common.wakeup import Wakeup
from common.web import run_trio
from nsqadmin.cluster.events import events_between
from nsqadmin.cluster.merge import Merger, totals_of
from nsqadmin.cluster.model import NOTHING_YET, Activity, Series, Snapshot, Span
from nsqadmin.cluster.series import SeriesStore
from nsqadmin.diagnosis.findings import diagnose
from nsqadmin.sampling.census import Census
from nsqadmin.sampling.interest import Interest
from nsqadmin.sampling.node_view import drawn_lookupd, drawn_nodes, producers_of, unanswered_by
from nsqadmin.sampling.polling import PATIENCE, Round
from nsqadmin.sampling.readers import ReaderSurvey
from nsqadmin.sampling.rows import Rows
from nsqadmin.sampling.stats import Stats
from nsqadmin.sampling.work import Work

if TYPE_CHECKING:
    from nsqadmin.actions.audit import ActivityLog
    from nsqadmin.options import Options
    from nsqadmin.upstream.client import Upstream

_SHARE: Final = 8  # the work of a sweep is at most this part of the time: 12.5 % of a core


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
        self.store = SeriesStore(most_coarse=options().history_series)
        self.busy_share = 0.0  # of the time, as of the last sweep
        self._options = options
        self._activity = activity
        self._wall = wall
        self._work = Work()
        self._census = Census(options, upstream, wall)
        self._stats = Stats(upstream, wall, most=options().max_cluster_size)
        self._readers = ReaderSurvey(upstream, wall)
        self._upstream = upstream
        self._interest = Interest()
        self._merger = Merger()
        self._rows = Rows()
        self._snapshot = NOTHING_YET
        self._begun = 0  # sweeps
        self._wake = Wakeup()
        self._swept = trio.Event()
        self._on_snapshot: list[Callable[[Snapshot], None]] = []

    # As a view

    @property
    def snapshot(self) -> Snapshot:
        return self._snapshot

    def series(self, key: str, span: Span) -> Series | None:
        return self.store.series(key, span)

    def activity(self) -> tuple[Activity, ...]:
        return self._activity.newest()

    def look_at(self, topic: str = "") -> None:
        self._interest.look_at(topic, trio.current_time())

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
                self._wake.clear()

    async def _sweep(self, nursery: trio.Nursery) -> None:
        self._begun += 1
        self._work.begin_sweep()
        census = self._census
        if census.is_due:
            is_first = not census.nodes
            asked = census.start(nursery)
            if is_first:  # there is nobody to be asked yet
                await asked.wait()
                census.settle()
        began = trio.current_time()
        readers = self._readers.start(nursery, census.nodes, self._interest.looked_at(began))
        await self._ask_nodes(nursery).wait()
        with trio.move_on_at(began + PATIENCE):
            await readers.wait()
        census.settle()
        self._stats.forget_but(census.nodes)
        self._work.count_reading(self._upstream.spent)
        with self._work.counted():
            self._snapshot = self._picture()
        with self._work.counted():
            for told in self._on_snapshot:
                told(self._snapshot)
        self.busy_share = self._work.seconds / self._snapshot.interval

    def _ask_nodes(self, nursery: trio.Nursery) -> Round:
        now, snapshot, interest = trio.current_time(), self._snapshot, self._interest
        has_clients = interest.is_in_all(snapshot, few=self._options().sample_clients, now=now)
        topics = () if has_clients else interest.topics(snapshot, now)
        return self._stats.start(nursery, self._census.nodes.values(), has_clients=has_clients, topics=topics)

    def _picture(self) -> Snapshot:
        now, before, census = self._wall(), self._snapshot, self._census
        nodes = drawn_nodes(census.nodes, has_lookupds=census.has_lookupds)
        lookupds = tuple(drawn_lookupd(address, it) for address, it in census.lookupds.items())
        answers = [
            answer for node in nodes if node.is_reachable and (answer := census.nodes[node.address].answer) is not None
        ]
        merged = self._merger.merge(answers, census.directory(), now=trio.current_time())
        topics = self._readers.shown(merged)
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
            totals=totals_of(topics),
            has_all_clients=all(answer.has_clients for answer in answers),
        )
        self.store.put(self._rows.of(drawn, before.findings), now=now)
        found = replace(drawn, findings=diagnose(drawn, self.store, before=before.findings))
        for event in events_between(before, found, restarted=census.take_restarted()):
            self._activity.happened(event)
        return found
