"""A soak from its beginning to its verdict.

    start -> warm-up -> ... a line a minute ... -> no more publishing -> everything arrives -> stop -> slopes, verdict

A signal (SIGINT, SIGTERM) leads to "no more publishing" at once; a second one skips the rest, and the verdict is bad.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Final

import trio

from nsqcommon.http_client import HttpFailed
from tests.soak.cluster import Cluster, a_cluster, ask
from tests.soak.ledger import Ledger
from tests.soak.load import CHANNELS, MSG_TIMEOUT, Load, Pace
from tests.soak.operations import Operations, Rhythm, be_quiet, end
from tests.soak.slopes import Sample, Series, Slope

Say = Callable[[str], None]

MOST_RSS: Final = 1.0  # largest growth of memory, in percent an hour
MOST_DESCRIPTORS: Final = 10.0  # the same for descriptors; an hour's line is less certain, as clients come and go
SHORTEST_JUDGED: Final = 1800.0  # seconds after the warm-up; a shorter line says nothing about an hour
_SAMPLE_EVERY: Final = 5.0
_SAY_EVERY: Final = 60.0
_READY: Final = 60.0  # seconds for everybody to know each other, on a busy machine
_LOOK: Final = 0.2
_MEGABYTE: Final = 1e6


@dataclass(frozen=True, slots=True)
class Plan:
    seconds: float
    rate: float = 200.0
    seed: int = 0
    longest_delay: float = 60.0  # longest delay of a message
    rhythm: Rhythm = field(default_factory=Rhythm)
    least: Mapping[str, int] = field(default_factory=dict)  # what has to have happened how often; else it goes on

    @property
    def warm_up(self) -> float:
        """Return the seconds until caches, histories and deferred messages have reached their size.

        nsqadmin takes longest: all names that come and go have been seen once after eight minutes, and the rows that it
        keeps of the last of them are complete another twelve minutes later.
        """
        return min(self.seconds / 3, 1200.0)


async def run(plan: Plan, folder: Path, say: Say) -> int:
    """Run the soak, and return the exit status: 0 if nothing was lost or wrong, and nothing grew."""
    say(f"seed {plan.seed}, {plan.seconds:.0f} s, {plan.rate:.0f} messages a second, process {os.getpid()}")
    ledger = Ledger(CHANNELS)
    async with a_cluster(folder) as cluster:
        soak = _Soak(plan, cluster, ledger, say)
        await soak.run()
        series = list(cluster.series.values())
        is_closed = soak.is_closed
    began = soak.began
    for it in series:
        say(slopes_of(it, began + plan.warm_up))
    return verdict(ledger, series, began + plan.warm_up, say, is_closed=is_closed)


class _Soak:
    def __init__(self, plan: Plan, cluster: Cluster, ledger: Ledger, say: Say) -> None:
        self.plan = plan
        self.cluster = cluster
        self.ledger = ledger
        self.say = say
        self.began = trio.current_time()
        self.is_closed = False
        self._enough = trio.Event()
        self._told = 0  # number of errors that were printed

    async def run(self) -> None:
        async with trio.open_nursery() as everything:
            everything.start_soon(self._heed_signals, everything.cancel_scope)
            await self._prepare()
            chance = Random(self.plan.seed)
            load = Load(self.cluster, self.ledger, Pace(self.plan.rate, self.plan.longest_delay), chance)
            everything.start_soon(self._sample)
            async with trio.open_nursery() as consumers:
                for topic, channel in CHANNELS:
                    consumers.start_soon(load.consume, topic, channel)
                self.say("ready")
                await self._load(load)
                await self._drain()
                consumers.cancel_scope.cancel()
            self._stop()
            self._tell()
            everything.cancel_scope.cancel()

    async def _prepare(self) -> None:
        """Create the channels before the first message, and wait until nsqlookupd and nsqadmin know them."""
        for node in (self.cluster.steady, self.cluster.victim):
            for topic, channel in CHANNELS:
                await ask(node, f"/topic/create?topic={topic}", method="POST")
                await ask(node, f"/channel/create?topic={topic}&channel={channel}", method="POST")
        with trio.fail_after(_READY):
            while not await _is_known("orders", self.cluster):  # noqa: ASYNC110 -- other processes give no event
                await trio.sleep(_LOOK)
        for daemon in (self.cluster.steady, self.cluster.victim):
            await be_quiet(daemon)

    async def _load(self, load: Load) -> None:
        """Publish and operate for the planned time, and until enough has happened, or until a signal."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(load.publish)
            nursery.start_soon(Operations(load, self.plan.rhythm).run)
            with trio.move_on_after(self.plan.seconds):
                await self._enough.wait()
            while not self._enough.is_set() and self._is_missing_something():  # noqa: ASYNC110 -- counts go up
                await trio.sleep(_LOOK)
            nursery.cancel_scope.cancel()

    def _is_missing_something(self) -> bool:
        return any(self.ledger.counts[what] < count for what, count in self.plan.least.items())

    async def _drain(self) -> None:
        """Wait until everything has arrived. What has not arrived by then is lost."""
        with trio.move_on_after(2 * MSG_TIMEOUT + 1.5 * self.plan.longest_delay):
            while self.ledger.waiting():  # noqa: ASYNC110 -- a count, which goes down with each FIN
                await trio.sleep(0.2)
        self.ledger.close()
        self.is_closed = True

    def _stop(self) -> None:
        for daemon in self.cluster.daemons.values():
            if trouble := end(daemon):
                self.ledger.failed("end", trouble)

    async def _heed_signals(self, scope: trio.CancelScope) -> None:
        with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
            async for _ in signals:
                if self._enough.is_set():
                    scope.cancel()
                    return
                self.say("stopping: waiting for what is under way; once more to give that up")
                self._enough.set()

    async def _sample(self) -> None:
        next_line = self.began + _SAY_EVERY
        while True:
            now = trio.current_time()
            await self.cluster.sample(now)
            if now >= next_line:
                self._tell()
                self.say(self._line(now))
                next_line += _SAY_EVERY
            await trio.sleep(_SAMPLE_EVERY)

    def _tell(self) -> None:
        """Say what went wrong since the last call."""
        for text in self.ledger.texts[self._told :]:
            self.say(f"  {text}")
        self._told = len(self.ledger.texts)

    def _line(self, now: float) -> str:
        counts = ", ".join(f"{what} {count:,}" for what, count in self.ledger.counts.items())
        wrong = ", ".join(f"{what} {count:,}" for what, count in self.ledger.wrong.items()) or "nothing wrong"
        waiting = f"waiting {self.ledger.waiting():,} (the oldest for {self.ledger.oldest(now):.1f} s)"
        used = [f"    {name:<14}{_shown(it.samples[-1])}" for name, it in self.cluster.series.items() if it.samples]
        head = f"{(now - self.began) / 60:4.0f} min  {wrong}; {waiting}; latest {self.ledger.latest:.1f} s; {counts}"
        return "\n".join([head, *used])


async def _is_known(topic: str, cluster: Cluster) -> bool:
    """Return whether nsqlookupd knows both nodes of the topic, and nsqadmin has a page for it."""
    try:
        found = json.loads((await ask(cluster.lookupd, f"/lookup?topic={topic}")).body)["producers"]
        await ask(cluster.admin, f"/topics/{topic}")
    except HttpFailed:
        return False
    return {it["tcp_port"] for it in found} == {cluster.steady.tcp[1], cluster.victim.tcp[1]}


def _shown(sample: Sample) -> str:
    return (
        f"RSS {sample.rss / _MEGABYTE:7.1f} MB, {sample.descriptors:4} descriptors, {sample.threads:3} threads, "
        f"disk {sample.disk / _MEGABYTE:7.1f} MB"
    )


def slopes_of(series: Series, since: float) -> str:
    parts = [
        f"{name} {_percent(series.slope(what, since))}"
        for name, what in (("RSS", "rss"), ("descriptors", "descriptors"), ("threads", "threads"), ("disk", "disk"))
    ]
    return f"{series.name}: an hour, over {series.span(since) / 60:.0f} min: {', '.join(parts)}"


def _percent(slope: Slope | None) -> str:
    return "unknown" if slope is None else f"{slope.percent:+.2f} % (± {slope.percent_error:.2f})"


def verdict(ledger: Ledger, series: list[Series], since: float, say: Say, *, is_closed: bool) -> int:
    """Print the reasons, and return the exit status."""
    reasons = [f"{what}: {count}" for what, count in ledger.wrong.items()]
    if not is_closed:
        reasons.append("given up before everything had arrived")
    for it in series:
        if it.is_judged and it.span(since) >= SHORTEST_JUDGED:
            reasons += growth(it, since)
    counts = ", ".join(f"{what} {count:,}" for what, count in ledger.counts.items())
    lost = f"lost {ledger.wrong['lost']}, early {ledger.wrong['early']}, latest {ledger.latest:.1f} s"
    say(f"{lost}; {counts}")
    say(f"NOT GOOD: {'; '.join(reasons)}" if reasons else "good")
    return 1 if reasons else 0


def growth(series: Series, since: float) -> list[str]:
    """Return a sentence for each thing that grows faster than it may."""
    found = []
    for what, most in (("rss", MOST_RSS), ("descriptors", MOST_DESCRIPTORS)):
        slope = series.slope(what, since)
        if slope is not None and slope.percent > most:
            found.append(f"{what} of {series.name} grows by {slope.percent:.2f} % an hour, more than {most:.0f} %")
    return found
