"""Whatever nodes answer, fall silent, restart, drop and finish: no severity falls while messages are lost."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

from hypothesis import given
from hypothesis import strategies as st

from nsqadmin.cluster.merge import Directory, Merger
from nsqadmin.cluster.model import Finding, Health, Severity, Silent, Snapshot
from nsqadmin.cluster.node_stats import NodeAnswer, read_stats, silenced
from nsqadmin.cluster.series import SeriesStore
from nsqadmin.diagnosis.findings import diagnose
from nsqadmin.diagnosis.upkeep import SEVERITIES, Upkeep
from nsqadmin.upstream.rows import Rows
from tests.support.picture import node

STEP: Final = 5.0
WALL: Final = 1_700_000_000.0
CALM: Final = len(SEVERITIES)


@dataclass
class Queue:
    """One channel on one node, as its nsqd counts it."""

    depth: int = 0
    came: int = 0
    finished: int = 0
    started: int = 1
    in_flight: int = 0
    counts: dict[str, int] = field(default_factory=dict)

    def publish(self, count: int) -> None:
        self.came += count
        self.depth += count

    def finish(self, count: int) -> None:
        count = min(count, self.depth)
        self.depth -= count
        self.finished += count

    def lose(self, cause: str, count: int) -> int:
        count = min(count, self.depth)
        self.depth -= count
        if count:
            self.counts[cause] = self.counts.get(cause, 0) + count
        return count

    def restart(self) -> None:
        self.started += 1
        self.came, self.finished, self.counts = self.depth, 0, {}

    def stats(self, *, consumers: int) -> dict[str, Any]:
        reader = {"remote_address": "a:1", "connect_ts": 7 + self.started, "ready_count": 5}
        clients = [{**reader, "finish_count": self.finished, "in_flight_count": 5}] * consumers
        channel = {
            "channel_name": "c",
            "depth": self.depth,
            "message_count": self.came,
            "in_flight_count": 5 * consumers,
            "policy_counts": dict(self.counts),
            "clients": clients,
        }
        topic = {"topic_name": "t", "message_count": self.came, "channels": [channel]}
        return {"start_time": self.started, "release": "1.0", "topics": [topic]}


class Cluster:
    """Does what the sampler does with the answers."""

    def __init__(self, nodes: int) -> None:
        self.queues = {f"n{at}:4151": Queue() for at in range(nodes)}
        self.findings: tuple[Finding, ...] = ()
        self._upkeep = Upkeep()
        self._answers: dict[str, NodeAnswer] = {}
        self._merger, self._store, self._rows = Merger(), SeriesStore(most_coarse=10), Rows()
        self._index, self._now = 0, 0.0

    def sweep(self, silent: set[str], *, consumers: int) -> int:
        """Return the worst severity of the channel, lower is worse."""
        self._index, self._now = self._index + 1, self._now + STEP
        for address, queue in self.queues.items():
            before = self._answers.get(address)
            if address in silent:
                if before is not None:
                    self._answers[address] = silenced(before)
            else:
                document = queue.stats(consumers=consumers)
                self._answers[address] = read_stats(address, document, at=self._now, before=before)
        shown = [answer for _, answer in sorted(self._answers.items())]
        wall = WALL + self._now
        drawn = Snapshot(
            index=self._index,
            taken_at=wall,
            interval=STEP,
            has_lookupds=False,
            topics=self._merger.merge(shown, Directory(), now=self._now, wall=wall),
            nodes=tuple(
                node(it, health=Health.DOWN if it in silent else Health.OK, answered_at=wall) for it in self.queues
            ),
            silent=tuple(Silent(node=it, since=wall, answered_at=wall) for it in sorted(silent & self._answers.keys())),
        )
        self._store.put(self._rows.of(drawn, self.findings), now=wall)
        self.findings = diagnose(drawn, self._store, self._upkeep)
        return min((SEVERITIES[it.severity] for it in self.findings if it.channel), default=CALM)


CAUSES: Final = ("ttl, dropped", "overflow, dropped", "full, dropped")
on_a_node = st.fixed_dictionaries(
    {
        "answers": st.sampled_from((True, True, True, False)),
        "restarts": st.sampled_from((False, False, False, False, True)),
        "came": st.integers(0, 60),
        "finished": st.sampled_from((0, 0, 5, 60, 5_000)),
        "lost": st.sampled_from((0, 1, 20, 5_000)),
        "cause": st.sampled_from(CAUSES),
    }
)
sweeps = st.lists(
    st.tuples(st.lists(on_a_node, min_size=2, max_size=2), st.sampled_from((0, 1, 1, 1))), min_size=3, max_size=30
)


@given(sweeps)
def test_no_severity_falls_while_messages_are_lost(played: list[tuple[list[dict[str, Any]], int]]) -> None:
    cluster, worst, is_losing = Cluster(2), CALM, False
    for number, (nodes, consumers) in enumerate(played):
        silent, was_seen = set(), False
        for (address, queue), it in zip(cluster.queues.items(), nodes, strict=True):
            if it["restarts"] and number:
                queue.restart()
            queue.publish(it["came"])
            lost = queue.lose(it["cause"], it["lost"])
            queue.finish(it["finished"])
            if number and not it["answers"]:
                silent.add(address)
            elif number:
                was_seen |= bool(lost)
        found = cluster.sweep(silent, consumers=consumers)
        if is_losing and was_seen:
            assert found <= worst
        if was_seen:
            assert found == SEVERITIES[Severity.PROBLEM]
        worst, is_losing = found, was_seen


def test_a_queue_that_its_ttl_keeps_short_is_a_problem_all_the_time() -> None:
    """Recorded: quotes.eur/trader changed 105 times in 40 minutes between problem and warning."""
    cluster = Cluster(1)
    (queue,) = cluster.queues.values()
    severities = []
    for second in range(0, 600, int(STEP)):
        queue.publish(100)
        queue.finish(40)
        if queue.depth > 900:
            queue.lose("ttl, dropped", queue.depth - 900)
        severities.append(cluster.sweep(set(), consumers=1))
        if second > 120:
            assert {"D6", "D23"} <= {it.rule for it in cluster.findings}
    assert set(severities[3:]) == {SEVERITIES[Severity.PROBLEM]}


def test_a_stuck_channel_is_a_problem_without_a_break_until_it_finishes_something() -> None:
    """Recorded: P to W at 12:10, W to P at 12:15, P to W at 12:20 ... for 47 minutes."""
    cluster = Cluster(1)
    (queue,) = cluster.queues.values()
    for _ in range(12):
        queue.publish(100)
        queue.finish(80)
        cluster.sweep(set(), consumers=1)
    for at in range(47 * 12):
        queue.publish(100)
        cluster.sweep(set(), consumers=1)
        if at > 12:
            (finding,) = [it for it in cluster.findings if it.rule == "D7"]
            assert finding.verdict.endswith(f"{queue.depth:,} waiting")
    assert finding.verdict.startswith("Consumers are stuck: nothing finished for 47 min")
    queue.finish(10)
    cluster.sweep(set(), consumers=1)
    assert "D7" not in {it.rule for it in cluster.findings}
