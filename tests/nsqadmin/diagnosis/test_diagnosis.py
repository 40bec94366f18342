"""Each rule finds what it is made for, with its evidence, and nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqadmin.cluster.model import (
    Channel,
    ChannelNode,
    Finding,
    Health,
    Lookupd,
    Metric,
    Producer,
    Rates,
    Severity,
    Silent,
    Snapshot,
    Stall,
    TopicNode,
)
from nsqadmin.diagnosis.findings import diagnose
from nsqadmin.diagnosis.upkeep import SEVERITIES, Upkeep
from nsqadmin.parts.status import Standing
from tests.support import picture
from tests.support.picture import NOW, channel, channel_node, client, node, snapshot, topic


class Trends:
    """Returns the given trends, whatever the time."""

    def __init__(self, **values: Sequence[float]) -> None:
        self._values = values

    def recent(self, key: str, metric: Metric, seconds: float) -> Sequence[float]:
        return self._values.get(metric.value, ())


QUIET = Trends()


def found(shown: Snapshot, trends: Trends = QUIET) -> list[Finding]:
    return list(diagnose(shown, trends))


def about(it: Channel, trends: Trends = QUIET, **fields: Any) -> list[Finding]:
    nodes = tuple(node(row.node) for row in it.nodes)
    rows = tuple(TopicNode(node=row.node) for row in it.nodes)
    return found(snapshot(topic(it, nodes=rows), nodes=nodes, **fields), trends)


def only(findings: list[Finding]) -> Finding:
    (finding,) = findings
    return finding


def said(finding: Finding) -> dict[str, str]:
    return {it.label: it.value for it in finding.evidence}


def test_a_healthy_cluster_has_nothing_to_say() -> None:
    reader = client(ready_count=10, in_flight_count=2, finish_rate=50.0)
    busy = channel(channel_node(depth=3, in_flight_count=2, clients=(reader,)))
    assert about(busy, Trends(depth=[4, 3], finished=[50, 50], incoming=[50, 50])) == []


# Channels


def test_d1_paused() -> None:
    finding = only(about(channel(channel_node(depth=7, paused=True))))
    assert (finding.rule, finding.severity, finding.action) == ("D1", Severity.WARNING, "unpause_channel")
    assert said(finding) == {"waiting": "7"}


def test_d1_paused_with_nothing_waiting_is_only_worth_knowing() -> None:
    assert only(about(channel(channel_node(paused=True)))).severity is Severity.INFO


def test_d2_paused_on_some_nodes() -> None:
    rows = channel_node("n1:4151", paused=True), channel_node("n2:4151", clients=(client("n2:4151"),))
    finding = only(about(channel(*rows)))
    assert (finding.rule, finding.verdict) == ("D2", "Paused on 1 of 2 nodes")
    assert said(finding)["paused on"] == "n1:4151"


def test_d3_nobody_is_connected() -> None:
    finding = only(about(channel(channel_node(depth=1200), oldest_age=65.0)))
    assert (finding.rule, finding.severity) == ("D3", Severity.PROBLEM)
    assert said(finding) == {"waiting": "1,200", "consumers": "0", "oldest message": "1m 5s"}


def away(*counts: float, **fields: Any) -> list[tuple[str, Severity]]:
    """Return the rules about a channel whose consumers had these numbers in the last samples, five seconds apart."""
    trends = Trends(clients=counts)
    return [
        (it.rule, it.severity) for it in about(channel(channel_node(depth=50), **fields), trends) if it.rule == "D3"
    ]


def test_d3_a_deploy_of_all_consumers_is_only_a_remark() -> None:
    problem, remark = [("D3", Severity.PROBLEM)], [("D3", Severity.INFO)]
    assert away(*[4] * 60, *[0] * 15) == remark
    assert away(*[4] * 60, *[0] * 16) == problem
    assert away(*[0] * 3) == problem  # it never had one, or nsqadmin has just started
    assert away() == problem
    assert away(4, 0, policy_recent=(("overflow, dropped", 5),)) == problem  # it loses messages meanwhile
    assert away(4, 0, policy_recent=(("ttl, buried", 5),)) == problem


def test_d3_consumers_that_crash_again_and_again_are_no_deploy() -> None:
    assert away(*[4, 0, 0, 0] * 6) == [("D3", Severity.PROBLEM)]


def test_d4_nobody_where_messages_wait() -> None:
    rows = channel_node("n1:4151", depth=40), channel_node("n2:4151", clients=(client("n2:4151", ready_count=1),))
    finding = only(about(channel(*rows)))
    assert (finding.rule, finding.verdict) == ("D4", "1 of 2 nodes has no consumer, and messages wait there")
    assert said(finding)["nodes without a consumer"] == "n1:4151"
    assert finding.is_inferred


def test_d5_consumers_ask_for_nothing() -> None:
    finding = only(about(channel(channel_node(depth=9, clients=(client(ready_count=0),)))))
    assert finding.rule == "D5"
    assert "RDY 0" in finding.verdict


def test_d5_needs_to_know_the_clients() -> None:
    row = channel_node(depth=9, clients=None, client_count=1)
    assert about(channel(row, ready_count=None)) == []


def test_d6_saturated() -> None:
    reader = client(ready_count=10, in_flight_count=10, finish_rate=40.0)
    it = channel(channel_node(depth=500, in_flight_count=10, clients=(reader,)))
    finding = only(about(replace(it, net_rate=56.0), Trends(finished=[40, 40], incoming=[95, 97])))
    assert (finding.rule, finding.is_inferred) == ("D6", True)
    assert finding.verdict == "Consumers are saturated: they finish 40/s, 96/s arrive (over 2 min)"
    assert "2.4 times" in finding.advice


def test_d6_a_queue_that_shrinks_is_none() -> None:
    reader = client(ready_count=10, in_flight_count=10, finish_rate=40.0)
    it = channel(channel_node(depth=100, in_flight_count=10, clients=(reader,)), net_rate=-35.0)
    assert about(it, Trends(finished=[40, 40], incoming=[5, 5])) == []


def test_d6_is_not_over_because_the_rest_is_dropped_or_expires() -> None:
    """Recorded: quotes.eur/trader was a problem until its ttl dropped messages, and then a warning."""
    reader = client(ready_count=10, in_flight_count=10, finish_rate=40.0)
    loses = Rates(incoming=97.0, finished=40.0, expired=57.0, removed=57.0)
    it = channel(channel_node(depth=500, in_flight_count=10, clients=(reader,)), net_rate=0.0, rates=loses)
    finding = only(about(it, Trends(finished=[40, 40], incoming=[97, 97])))
    assert (finding.rule, finding.severity) == ("D6", Severity.PROBLEM)
    assert said(finding)["expired"] == "57/s"


def test_d6_a_burst_of_less_than_a_minute_is_none() -> None:
    reader = client(ready_count=10, in_flight_count=10, finish_rate=40.0)
    it = channel(channel_node(depth=500, in_flight_count=10, clients=(reader,)), net_rate=56.0)
    assert about(it, Trends(finished=[40, 40], incoming=[95, 97], depth=[0, 250, 500])) == []
    assert only(about(it, Trends(finished=[40, 40], incoming=[95, 97], depth=[1, 250, 500]))).rule == "D6"


def bursts(*, every: int, of: int, minutes: float = 11.0) -> dict[str, list[float]]:
    """Return the trends of a channel that gets `of` messages every so many samples, and finishes 50 a second.

    The newest burst was half a minute ago, or earlier if the time between them isn't over by then.
    """
    depth, incoming = [1000.0], [0.0]
    for sample in range(1, int(minutes * 12)):
        arrives = of if (int(minutes * 12) - sample) % every == every // 2 else 0
        depth.append(max(depth[-1] + arrives - 250, 0.0))
        incoming.append(arrives / 5)
    return {"depth": depth, "incoming": incoming, "finished": [50.0] * len(depth)}


class Sampled(Trends):
    """Returns as much of the given trends, five seconds apart, as was asked for."""

    def recent(self, key: str, metric: Metric, seconds: float) -> Sequence[float]:
        return self._values.get(metric.value, ())[-int(seconds / 5) - 1 :]


def saturated_by(trends: dict[str, list[float]], net_rate: float) -> list[Finding]:
    reader = client(ready_count=10, in_flight_count=10, finish_rate=50.0)
    row = channel_node(depth=int(trends["depth"][-1]), in_flight_count=10, clients=(reader,))
    return [it for it in about(channel(row, net_rate=net_rate), Sampled(**trends)) if it.rule == "D6"]


@pytest.mark.parametrize("net_rate", [150.0, -50.0], ids=["the burst was just now", "it is over"])
def test_d6_a_great_burst_that_drains_before_the_next_one_is_none(net_rate: float) -> None:
    """Seen: 10,000 print jobs every four minutes, finished after three, were a red problem for an hour."""
    every_four_minutes = bursts(every=48, of=10_000)
    every_four_minutes["depth"] = [it + 1000 for it in every_four_minutes["depth"]]  # so never empty
    just_now = {name: values[:-20] for name, values in every_four_minutes.items()}
    assert saturated_by(every_four_minutes, net_rate) == []
    assert saturated_by(just_now, net_rate) == []


@pytest.mark.parametrize("net_rate", [150.0, -50.0], ids=["the burst was just now", "between two of them"])
def test_d6_bursts_that_leave_more_each_time_are_said_all_the_time(net_rate: float) -> None:
    (finding,) = saturated_by(bursts(every=24, of=12_000), net_rate)
    assert "arrive (over 10 min)" in finding.verdict
    assert finding.verdict.endswith("; now falling 50/s") is (net_rate < 0)


@pytest.mark.parametrize(("step", "rules"), [(4, ["D6", "D41"]), (0, ["D41"])], ids=["grows", "stays"])
def test_d6_consumers_that_only_send_touch_while_more_and_more_waits(step: int, rules: list[str]) -> None:
    """Their handlers hang, and something in the background goes on with TOUCH: for ten minutes, that may be long work."""
    worker = client(ready_count=1, in_flight_count=1, finish_rate=0.0, oldest_in_flight=700.0, last_touch=NOW - 5)
    row = channel_node(depth=900, in_flight_count=1, clients=(worker,))
    it = channel(row, net_rate=step / 5, stall=Stall(since=NOW - 700))
    depths = [900 - step * back for back in reversed(range(120))]
    still = [0.0] * 120
    found = about(it, Trends(finished=still, incoming=[step / 5] * 120, depth=depths))
    assert [finding.rule for finding in found] == rules
    assert [finding.rule for finding in about(it, Trends(finished=still, incoming=still, depth=depths[-60:]))] == [
        "D41"
    ]


def limited(**fields: Any) -> Channel:
    """Return a channel with two consumers and a limit of one message in flight, which is reached."""
    holder = client(ready_count=100, in_flight_count=1, oldest_in_flight=68.0, **fields)
    idle = client(ready_count=100, **fields)
    row = channel_node(depth=500, in_flight_count=1, clients=(holder, idle), max_in_flight=1)
    return channel(replace(row, in_flight_full_since=NOW - 60), net_rate=56.0)


def test_d6_where_a_limit_holds_up_messages_it_is_named() -> None:
    trends = Trends(finished=[40, 40], incoming=[95, 97])
    finding = only(about(limited(finish_rate=20.0), trends))
    assert (finding.rule, finding.verdict) == (
        "D6",
        "max_in_flight is reached: consumers finish 40/s, 96/s arrive (over 2 min)",
    )
    assert "lets 1 message be in flight" in finding.advice
    assert "2.4 times as many" in finding.advice


def test_d7_who_hangs_with_all_places_of_a_limit() -> None:
    finding = only(about(replace(limited(finish_rate=0.0), stall=stalled(68.0))))
    assert finding.rule == "D7"
    assert "raise max_in_flight in the policy file" in finding.advice


def stalled(seconds: float, **fields: Any) -> Stall:
    return Stall(since=NOW - seconds, **fields)


def stuck(stall: Stall | None, *, depth: int = 59_157, **fields: Any) -> list[Finding]:
    """Return the findings about a channel whose only consumer holds five messages."""
    known = {"oldest_in_flight": 400.0, **fields}
    reader = client(ready_count=5, in_flight_count=5, finish_rate=0.0, client_id="c1", hostname="c1", **known)
    row = channel_node(depth=depth, in_flight_count=5, clients=(reader,))
    return about(channel(row, stall=stall, net_rate=20.0), Trends(finished=[0, 0], incoming=[20, 20]))


@pytest.mark.parametrize("timed_out", [0, 300])
def test_d7_stuck_consumers_are_a_problem_whatever_the_timeouts_do(timed_out: int) -> None:
    """Recorded: with an msg_timeout of ten minutes it went to and fro between warning and problem for 47 minutes."""
    finding = only(stuck(stalled(46 * 60.0 + 5, timed_out=timed_out, has_held_up=True)))
    assert (finding.rule, finding.severity, finding.is_inferred) == ("D7", Severity.PROBLEM, not timed_out)
    assert finding.verdict == "Consumers are stuck: nothing finished for 46 min, 59,157 waiting"
    assert said(finding)["worst consumers"] == "c1 stuck"


@pytest.mark.parametrize(
    ("stall", "depth", "rules"),
    [
        (stalled(61.0), 50, {"D7"}),
        (stalled(59.0), 50, set()),
        (stalled(61.0), 0, set()),  # nothing waits, so a slow handler does no harm yet
        (stalled(301.0), 0, {"D7"}),
        (stalled(61.0, has_held_up=True), 0, {"D7"}),  # emptied or expired meanwhile
        (stalled(31.0, timed_out=1), 0, {"D7"}),
        (stalled(29.0, timed_out=1), 50, set()),
        (None, 50, set()),
    ],
)
def test_d7_begins_after_a_minute_and_stays_until_something_is_finished(
    stall: Stall | None, depth: int, rules: set[str]
) -> None:
    assert {finding.rule for finding in stuck(stall, depth=depth)} == rules


def test_d7_stuck_on_one_node_says_so() -> None:
    reader = client(ready_count=5, in_flight_count=5, finish_rate=0.0, oldest_in_flight=400.0)
    rows = (
        channel_node(depth=50, in_flight_count=5, clients=(reader,)),
        channel_node("n2:4151", depth=7, in_flight_count=1, clients=(client("n2:4151", finish_rate=40.0),)),
    )
    found = about(channel(*rows, stall=stalled(400.0, has_held_up=True, nodes=("n1:4151",))))
    (finding,) = [it for it in found if it.rule == "D7"]
    assert finding.verdict == "Consumers are stuck on 1 of 2 nodes: nothing finished there for 6 min, 50 waiting there"
    assert said(finding)["stuck on"] == "n1:4151"


def test_d7_a_consumer_with_room_for_more_may_collect_messages_to_finish_them_together() -> None:
    batcher = client(ready_count=1000, in_flight_count=30, finish_rate=0.0, oldest_in_flight=400.0)
    row = channel_node(depth=0, in_flight_count=30, clients=(batcher,))
    assert about(channel(row, stall=stalled(400.0))) == []
    full = replace(row, clients=(replace(batcher, ready_count=30),))
    assert only(about(channel(full, stall=stalled(400.0)))).rule == "D7"


def test_d7_tells_that_it_may_have_begun_before_nsqadmin() -> None:
    finding = only(stuck(stalled(125.0, is_older=True)))
    assert finding.verdict == "Consumers are stuck: nothing finished for at least 2 min, 59,157 waiting"


@pytest.mark.parametrize("age", [None, 1700.0], ids=["NSQ's nsqd", "an earlier one of ours"])
def test_d42_where_an_nsqd_does_not_report_touches_nothing_finished_may_be_long_work(age: float | None) -> None:
    fields: dict[str, Any] = {"oldest_in_flight": age, "reports_touches": False}
    finding = only(stuck(stalled(1700.0, has_held_up=True), **fields))
    assert (finding.rule, finding.severity) == ("D42", Severity.INFO)
    assert finding.verdict == (
        "Nothing finished for 28 min, and nothing timed out: stuck or long work, this nsqd doesn't report touches"
    )
    finding = only(stuck(stalled(120.0, timed_out=5), **fields))
    assert (finding.rule, finding.severity) == ("D7", Severity.PROBLEM)
    assert stuck(stalled(59.0), **fields) == []


def test_d42_hides_no_growing_backlog() -> None:
    reader = client(ready_count=5, in_flight_count=5, finish_rate=0.0, reports_touches=False)
    row = channel_node(depth=90_000, in_flight_count=5, clients=(reader,))
    trends = Trends(finished=[0, 0], incoming=[20, 20], depth=[100 * it for it in range(1, 121)])
    found = about(channel(row, stall=stalled(600.0, has_held_up=True), net_rate=20.0), trends)
    assert [(it.rule, it.severity) for it in found] == [("D6", Severity.PROBLEM), ("D42", Severity.INFO)]


def test_d7_waits_for_the_consumers_where_they_are_not_known_yet() -> None:
    def rules(seconds: float, release: str) -> list[tuple[str, Severity]]:
        row = channel_node(depth=9, in_flight_count=5, clients=None, client_count=1)
        rows, nodes = (TopicNode(node="n1:4151"),), (node(release=release),)
        shown = snapshot(topic(channel(row, stall=stalled(seconds)), nodes=rows), nodes=nodes)
        return [(it.rule, it.severity) for it in found(shown)]

    assert rules(120.0, "1.0") == []
    assert rules(301.0, "1.0") == [("D7", Severity.WARNING)]
    assert rules(301.0, "") == [("D42", Severity.INFO)]


def test_d7_is_found_on_the_nodes_that_answer() -> None:
    reader = client("n1:4151", ready_count=5, in_flight_count=5, finish_rate=0.0, oldest_in_flight=90.0)
    other = channel_node("n2:4151", depth=70, in_flight_count=1, clients=(replace(reader, node="n2:4151"),))
    rows = channel_node("n1:4151", depth=9, in_flight_count=5, clients=(reader,)), other
    shown = hung("n2:4151", at=on_two(*rows, stall=stalled(90.0)))
    finding = next(it for it in found(shown) if it.rule == "D7")
    # The card has the same number, so it must include the last known one.
    assert finding.verdict == "Consumers are stuck: nothing finished for 1 min, 79 waiting"
    assert said(finding)["waiting"] == "79, of them last known 70"


@pytest.mark.parametrize(
    ("touched", "held", "is_busy"),
    [
        (20.0, 1700.0, True),
        (119.0, 30.0, True),  # it touched earlier ones
        (400.0, 1700.0, True),  # its msg_timeout is longer: otherwise they would have timed out
        (400.0, 300.0, False),  # it has never touched these
        (None, 1700.0, False),
    ],
)
def test_d41_consumers_that_touch_their_messages_have_long_work(
    touched: float | None, held: float, is_busy: bool
) -> None:
    last = None if touched is None else NOW - touched
    finding = only(stuck(stalled(1500.0), last_touch=last, oldest_in_flight=held))
    assert (finding.rule, finding.severity) == (("D41", Severity.INFO) if is_busy else ("D7", Severity.PROBLEM))


def test_fifty_jobs_of_half_an_hour_are_no_incident() -> None:
    workers = tuple(
        client(
            ready_count=1,
            in_flight_count=1,
            finish_rate=0.0,
            remote_address=f"a:{it}",
            connect_time=NOW - 7200,
            oldest_in_flight=36.0 * it,
            last_touch=NOW - it % 20,
        )
        for it in range(50)
    )
    it = channel(channel_node(depth=10, in_flight_count=50, clients=workers), stall=stalled(1700.0, has_held_up=True))
    finding = only(about(it))
    assert (finding.rule, finding.severity) == ("D41", Severity.INFO)
    assert finding.verdict == "50 consumers have long work: nothing finished for 28 min, but they touch their messages"


def test_d9_a_stuck_consumer_beside_busy_ones_is_named() -> None:
    busy = client(ready_count=1, in_flight_count=1, finish_rate=0.0, oldest_in_flight=900.0, last_touch=NOW - 9)
    hangs = client(ready_count=1, in_flight_count=1, finish_rate=0.0, oldest_in_flight=900.0, hostname="b-03")
    it = channel(channel_node(depth=5, in_flight_count=2, clients=(busy, hangs)), stall=stalled(900.0))
    assert [(it.rule, it.severity) for it in about(it)] == [("D9", Severity.WARNING), ("D41", Severity.INFO)]


def test_those_who_requeue_everything_are_failing_and_not_stuck() -> None:
    reader = client(ready_count=5, in_flight_count=5, finish_rate=0.0, requeue_rate=9.0, oldest_in_flight=1.0)
    it = channel(channel_node(depth=50, in_flight_count=5, clients=(reader,)), stall=stalled(600.0))
    finding = only(about(it, Trends(requeued=[9, 9], finished=[0, 0])))
    assert (finding.rule, finding.verdict) == (
        "D8",
        "Consumers are failing: 100 % of deliveries are requeued (over 5 min)",
    )


def test_d8_consumers_are_failing() -> None:
    reader = client(ready_count=10, finish_rate=15.0, requeue_rate=10.0, client_id="bad", hostname="bad")
    it = channel(channel_node(depth=5, in_flight_count=1, clients=(reader,)))
    finding = only(about(it, Trends(requeued=[10, 10], finished=[20, 20], depth=[5, 5])))
    assert (finding.rule, finding.verdict) == (
        "D8",
        "Consumers are failing: 33 % of deliveries are requeued (over 5 min)",
    )
    assert said(finding)["worst consumers"] == "bad failing 40 %"


def test_d8_a_few_requeues_are_ordinary() -> None:
    it = channel(channel_node(clients=(client(ready_count=1),)))
    assert about(it, Trends(requeued=[1, 1], finished=[20, 20])) == []


def test_d9_one_slow_consumer() -> None:
    quick = [client(ready_count=10, in_flight_count=5, finish_rate=50.0, remote_address=f"a:{it}") for it in range(3)]
    slow = client(ready_count=10, in_flight_count=10, finish_rate=1.0, client_id="fraud-01", hostname="fraud-01")
    it = channel(channel_node(depth=5, in_flight_count=25, clients=(*quick, slow)))
    finding = only(about(it))
    assert (finding.rule, finding.verdict) == ("D9", "One slow consumer: fraud-01")


def test_d9_a_stuck_consumer_among_others_that_work() -> None:
    quick = client(ready_count=10, in_flight_count=5, finish_rate=50.0)
    stuck = client(ready_count=5, in_flight_count=5, finish_rate=0.0, client_id="b-03", hostname="b-03")
    finding = only(about(channel(channel_node(depth=5, in_flight_count=10, clients=(quick, stuck)))))
    assert (finding.rule, finding.verdict) == ("D9", "One stuck consumer: b-03")


def test_d9_a_consumer_that_finishes_nothing_for_long_beside_others_that_do_is_named_whatever_its_nsqd_reports() -> (
    None
):
    quick = client(ready_count=10, in_flight_count=5, finish_rate=50.0, reports_touches=False)
    hangs = client(ready_count=5, in_flight_count=5, finish_rate=0.0, client_id="b-03", hostname="b-03")
    hangs = replace(hangs, reports_touches=False)
    it, upkeep = channel(channel_node(depth=5, in_flight_count=10, clients=(quick, hangs))), Upkeep()
    shown = {}
    for at in range(0, 660, 10):
        moment = snapshot(topic(it) if at >= 30 else topic(), taken_at=NOW + at, index=at)
        shown[at] = [each.verdict for each in diagnose(moment, QUIET, upkeep)]
    assert shown[620] == []
    assert shown[630] == ["1 consumer finishes nothing while others do: b-03"]


def test_d9_where_all_are_stuck_none_of_them_is_to_blame() -> None:
    stuck = [client(ready_count=5, in_flight_count=5, finish_rate=0.0, client_id=f"b-{it}") for it in range(4)]
    assert about(channel(channel_node(in_flight_count=20, clients=tuple(stuck)))) == []


def test_d18_one_consumer_gives_much_back_while_the_channel_as_a_whole_does_not() -> None:
    well = [
        client(ready_count=5, in_flight_count=1, finish_rate=10.0, requeue_rate=0.2, remote_address=f"a:{it}")
        for it in range(3)
    ]
    bad = client(
        ready_count=5, in_flight_count=1, finish_rate=6.5, requeue_rate=3.5, client_id="settle-01", hostname="settle-01"
    )
    it = channel(channel_node(clients=(*well, bad)))
    finding = only(about(it, Trends(requeued=[4.1, 4.1], finished=[36.5, 36.5])))
    assert (finding.rule, finding.severity) == ("D18", Severity.WARNING)
    assert finding.verdict == "settle-01 requeues 35 % of its messages"
    assert said(finding)["it requeues"] == "3.5/s"


def test_d10_deferred_messages_are_explained() -> None:
    finding = only(about(channel(channel_node(deferred_count=161))))
    assert (finding.rule, finding.severity) == ("D10", Severity.INFO)
    assert finding.verdict == "161 messages wait for their delay"


def test_d12_a_sampling_consumer() -> None:
    it = channel(channel_node(clients=(client(ready_count=1, sample_rate=10, client_id="archive", hostname=""),)))
    finding = only(about(it))
    assert (finding.rule, finding.verdict) == ("D12", "archive takes 10 %, by design")


def test_d15_spilling_to_disk() -> None:
    reader = client(ready_count=10, in_flight_count=1)
    it = channel(channel_node(depth=12_000, backend_depth=2000, in_flight_count=1, clients=(reader,)))
    finding = only(about(it, Trends(backend_depth=[0, 500, 2000], depth=[12_000, 12_000])))
    assert (finding.rule, finding.severity) == ("D15", Severity.INFO)


def test_channels_of_our_own_are_not_diagnosed() -> None:
    assert about(channel(channel_node(depth=9), name="nsqadmin_tail_1#ephemeral")) == []


# Topics


def test_d11_a_burst_and_who_makes_it() -> None:
    producer = Producer(node="n1:4151", client_id="p", hostname="shop", remote_address="a:1", counts=(("t", 9, 90.0),))
    it = topic(channel(), rates=Rates(incoming=100.0))
    trends = Trends(incoming=[10.0] * 20 + [100.0] * 3)
    finding = only(found(snapshot(it, producers=(producer,)), trends))
    assert (finding.rule, finding.severity) == ("D11", Severity.INFO)
    assert finding.verdict == "A burst: 100/s are published, usually 10/s; most of it by shop"


def test_d13_messages_wait_for_a_channel() -> None:
    finding = only(found(snapshot(topic(nodes=(TopicNode(node="n1:4151", depth=8),)))))
    assert (finding.rule, finding.action) == ("D13", "create_channel")


def test_d14_nsqd_does_not_hand_over() -> None:
    it = topic(channel(), nodes=(TopicNode(node="n1:4151", depth=90),))
    finding = only(found(snapshot(it), Trends(depth=[50, 70, 90])))
    assert finding.rule == "D14"


def test_d1_and_d2_of_topics() -> None:
    rows = TopicNode(node="n1:4151", depth=3, paused=True), TopicNode(node="n2:4151")
    assert only(found(snapshot(topic(channel(), nodes=rows)))).rule == "D2"
    assert only(found(snapshot(topic(channel(), nodes=rows[:1])))).rule == "D1"


# Nodes


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"health": Health.DOWN, "error": "refused"}, "does not answer"),
        ({"health": Health.NEVER, "error": "no such host"}, "has never answered"),
        ({"health": Health.SLOW}, "is slow to answer"),
        ({"own_health": "NOK - disk"}, "reports that it is unhealthy"),
        ({"lookupds": ()}, "is not registered with l1:4161"),
        ({"out_of_date": True}, "is older than the others"),
        ({"clock_skew": -30.0}, "is 30 s behind"),
    ],
)
def test_d16_of_a_node(fields: dict[str, Any], text: str) -> None:
    finding = only(found(snapshot(nodes=(node(**fields),))))
    assert (finding.rule, finding.node) == ("D16", "n1:4151")
    assert text in finding.verdict


REFUSED = ("l1:4161: dial n1:4150: connection refused",)


def test_d27_a_node_that_nsqadmin_reaches_and_clients_do_not() -> None:
    one = node(unreachable=REFUSED, remote_addresses=("l1:4161/10.0.0.5:51234",))
    finding = only(found(snapshot(nodes=(one,))))
    assert (finding.rule, finding.node, finding.severity) == ("D27", "n1:4151", Severity.WARNING)
    assert finding.verdict == "n1:4151 cannot be reached by clients, says nsqlookupd"
    assert "nsqadmin reaches its HTTP port from here" in finding.advice
    assert (
        "--broadcast-address=<a name or address that clients can reach> (it connects from 10.0.0.5)" in finding.advice
    )
    assert said(finding) == {"nsqlookupd says": REFUSED[0]}


def test_d27_a_node_that_nobody_reaches_runs_all_the_same() -> None:
    one = node(health=Health.NEVER, error="no such host", unreachable=("l1:4161: lookup n1: no such host",))
    findings = {it.rule: it for it in found(snapshot(nodes=(one,)))}
    assert {*findings} == {"D16", "D27"}
    assert findings["D27"].severity is Severity.PROBLEM
    assert "It is registered, so it runs" in findings["D27"].advice


def test_d16_newest_version_is_found_by_its_numbers() -> None:
    old, new = node("n1:4151", version="1.9.0", out_of_date=True), node("n2:4151", version="1.10.0")
    finding = only(found(snapshot(nodes=(old, new))))
    assert said(finding) == {"version": "1.9.0", "newest": "1.10.0"}


def test_d16_two_nodes_that_cannot_be_told_apart() -> None:
    twins = node("n1:4151", hostname="a"), node("n1:4161", hostname="b", tcp_port=4150)
    assert {it.rule for it in found(snapshot(nodes=twins))} == {"D16"}


def test_d16_of_an_nsqlookupd_since_it_went() -> None:
    gone = Lookupd(address="l1:4161", health=Health.DOWN, since=NOW - 60, error="refused")
    finding = only(found(snapshot(lookupds=(gone,))))
    assert (finding.verdict, finding.since) == ("nsqlookupd l1:4161 does not answer", NOW - 60)


# All of them


def test_the_worst_is_first_and_keeps_the_time_when_it_began() -> None:
    cluster = snapshot(
        topic(channel(channel_node(depth=5)), name="small"),
        topic(channel(channel_node(depth=5000), topic="big"), name="big"),
        topic(channel(channel_node(paused=True), topic="calm"), name="calm"),
    )
    upkeep = Upkeep()
    first = diagnose(cluster, QUIET, upkeep)
    assert [it.severity for it in first] == [Severity.PROBLEM, Severity.PROBLEM, Severity.INFO]
    assert first[0].topic == "big"
    later = diagnose(snapshot(*cluster.topics, taken_at=NOW + 60), QUIET, upkeep)
    assert {it.since for it in later} == {NOW}


def test_every_rule_has_evidence_or_is_about_a_node() -> None:
    cluster = snapshot(topic(channel(channel_node(depth=5))), nodes=(picture.node(health=Health.SLOW),))
    findings = found(cluster)
    assert len(findings) >= 2
    assert all(it.evidence or it.node for it in findings)


# Silent nodes


def hung(*addresses: str, at: Snapshot) -> Snapshot:
    """Return the picture in which these nodes do not answer any more."""

    def silent_in(rows: Sequence[Any]) -> tuple[str, ...]:
        return tuple(row.node for row in rows if row.node in addresses)

    topics = tuple(
        replace(
            it,
            silent=silent_in(it.nodes),
            channels=tuple(replace(each, silent=silent_in(each.nodes)) for each in it.channels),
        )
        for it in at.topics
    )
    return replace(
        at,
        index=at.index + 1,
        topics=topics,
        nodes=tuple(replace(it, health=Health.DOWN) if it.address in addresses else it for it in at.nodes),
        silent=tuple(Silent(node=it, since=NOW, answered_at=NOW) for it in addresses),
        _by_name={},
        _by_address={},
    )


TWO_NODES = (node("n1:4151"), node("n2:4151"))


def on_two(*rows: ChannelNode, **fields: Any) -> Snapshot:
    return snapshot(
        topic(channel(*rows, **fields), nodes=tuple(TopicNode(node=row.node) for row in rows)), nodes=TWO_NODES
    )


def test_d17_a_channel_with_a_silent_node_is_never_fine() -> None:
    fine = on_two(
        channel_node("n1:4151"), channel_node("n2:4151", depth=3, clients=(client("n2:4151", ready_count=9),))
    )
    assert found(fine) == []
    finding = next(it for it in found(hung("n2:4151", at=fine)) if it.channel)
    assert (finding.rule, finding.verdict) == ("D17", "Partly unknown: n2:4151 does not answer")
    assert said(finding) == {"waiting there, last known": "3", "consumers there, last known": "1"}


def test_a_finding_freezes_while_its_node_is_silent() -> None:
    full = client("n2:4151", ready_count=10, in_flight_count=10)
    cluster = on_two(
        channel_node("n1:4151"), channel_node("n2:4151", depth=500, in_flight_count=10, clients=(full,)), net_rate=56.0
    )
    growing = Trends(finished=[40, 40], incoming=[95, 97])
    upkeep = Upkeep()
    first = diagnose(cluster, growing, upkeep)
    assert [it.rule for it in first] == ["D6"]
    later = diagnose(hung("n2:4151", at=cluster), QUIET, upkeep)
    frozen = next(it for it in later if it.channel)
    assert (frozen.rule, frozen.is_frozen, frozen.since) == ("D6", True, NOW)
    assert "D17" not in {it.rule for it in later}


def test_a_finding_can_get_worse_while_a_node_is_silent() -> None:
    waiting = channel_node("n2:4151", paused=True)
    upkeep = Upkeep()
    first = diagnose(on_two(channel_node("n1:4151", paused=True), waiting), QUIET, upkeep)
    assert [it.severity for it in first] == [Severity.INFO]
    worse = hung("n2:4151", at=on_two(channel_node("n1:4151", paused=True, depth=9), waiting))
    finding = next(it for it in diagnose(worse, QUIET, upkeep) if it.channel)
    assert (finding.rule, finding.severity, finding.is_frozen) == ("D1", Severity.WARNING, False)


def test_a_silent_node_is_no_proof_that_handlers_hang_or_ask_for_nothing() -> None:
    reader = client("n2:4151", ready_count=5, in_flight_count=5)
    rows = channel_node("n1:4151", depth=5), channel_node("n2:4151", in_flight_count=5, clients=(reader,))
    shown = hung("n2:4151", at=on_two(*rows))
    assert "D7" not in {it.rule for it in found(shown, Trends(finished=[0, 0], timed_out=[0, 0.5], depth=[5, 5]))}
    unknown = channel_node("n1:4151", depth=5), channel_node("n2:4151", clients=(), client_count=3)
    assert "D5" not in {it.rule for it in found(hung("n2:4151", at=on_two(*unknown)))}


channel_rows = st.fixed_dictionaries(
    {
        "depth": st.integers(0, 2000),
        "in_flight_count": st.integers(0, 20),
        "deferred_count": st.sampled_from([0, 500]),
        "paused": st.booleans(),
        "ready": st.none() | st.integers(0, 20),
    }
)
trends = st.fixed_dictionaries(
    {
        name: st.lists(st.floats(0, 100), max_size=4)
        for name in ("depth", "finished", "incoming", "timed_out", "requeued")
    }
)


@given(st.lists(channel_rows, min_size=1, max_size=3), trends, trends, st.data())
def test_no_verdict_improves_when_nodes_fall_silent(
    rows: list[dict[str, Any]], before: dict[str, Any], after: dict[str, Any], data: st.DataObject
) -> None:
    addresses = [f"n{at}:4151" for at in range(len(rows))]
    made = []
    for address, row in zip(addresses, rows, strict=True):
        ready = row.pop("ready")
        clients = () if ready is None else (client(address, ready_count=ready, in_flight_count=row["in_flight_count"]),)
        made.append(channel_node(address, clients=clients, **row))
    cluster = replace(on_two(*made), nodes=tuple(map(node, addresses)), _by_address={})
    silent = data.draw(st.sets(st.sampled_from(addresses), min_size=1))
    upkeep = Upkeep()
    first = diagnose(cluster, Trends(**before), upkeep)
    shown = hung(*silent, at=cluster)
    later = diagnose(shown, Trends(**after), upkeep)
    worst = {it.key: SEVERITIES[it.severity] for it in later}
    for finding in first:
        assert worst[finding.key] <= SEVERITIES[finding.severity]
    (it,) = shown.topics
    standing, (before_state,) = Standing(later), [Standing(first).channel(each) for each in cluster.topics[0].channels]
    kinds = ["ok", "warning", "problem"]
    assert kinds.index(standing.channel(it.channels[0]).kind) >= max(1, kinds.index(before_state.kind))
    assert kinds.index(standing.whole_topic(it).kind) >= kinds.index(
        Standing(first).whole_topic(cluster.topics[0]).kind
    )


def test_topics_between_workers_are_not_diagnosed() -> None:
    """A mailbox of Celery often has messages and no channel, which is no problem."""
    rows = (TopicNode(node="n1:4151", depth=37),)
    assert found(snapshot(topic(name="mails#ephemeral", nodes=rows))) != []
    assert found(snapshot(topic(name="reply.celery.pidbox.b4a3#ephemeral", nodes=rows))) == []
