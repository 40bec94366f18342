"""The trend of a channel is measured, what a policy removes is named apart, and a standstill has its true beginning."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqadmin.cluster.merge import Directory, Merger
from nsqadmin.cluster.model import Channel, Stall
from nsqadmin.cluster.node_stats import NodeAnswer, read_stats, silenced

STEP = 5.0
WALL = 1_700_000_000.0


class Play:
    """Plays a channel's counters on some nodes, sweep after sweep, and shows the channel as merged."""

    def __init__(self, *nodes: str) -> None:
        self.now = 0.0
        self._answers: dict[str, NodeAnswer] = {}
        self._merger = Merger()
        self._silent: set[str] = set()
        self._names = nodes or ("n1:1",)

    def sweep(self, silent: str = "", **channels: dict[str, Any]) -> Channel:
        """Let each node answer, by its short name, but for the silent ones."""
        self.now += STEP
        for name in self._names:
            fields = channels.get(name.partition(":")[0])
            if fields is not None and name.partition(":")[0] not in silent.split():
                document = stats(**fields)
                self._answers[name] = read_stats(name, document, at=self.now, before=self._answers.get(name))
        shown = [
            silenced(answer) if name.partition(":")[0] in silent.split() else answer
            for name, answer in self._answers.items()
        ]
        (topic,) = self._merger.merge(shown, Directory(), now=self.now, wall=WALL + self.now)
        (channel,) = topic.channels
        return channel


def stats(*, start_time: int = 1, published: int | None = None, **channel: Any) -> dict[str, Any]:
    described = {"channel_name": "c", "depth": 0, "message_count": 0, "paused": False, **channel}
    described.setdefault("client_count", len(described.get("clients") or ()))
    count = described["message_count"] if published is None else published
    return {"start_time": start_time, "topics": [{"topic_name": "t", "message_count": count, "channels": [described]}]}


def worker(finished: int = 0, **fields: Any) -> dict[str, Any]:
    return {"remote_address": "a:1", "connect_ts": 7, "ready_count": 5, "finish_count": finished, **fields}


def minutes(count: float) -> Iterator[int]:
    yield from range(1, int(count * 60 / STEP) + 1)


# The trend


def test_a_channel_that_drops_as_much_as_it_gets_does_not_grow() -> None:
    play = Play()
    for at in minutes(2):
        dropped = {"overflow, dropped": 100 * at}
        channel = play.sweep(n1={"message_count": 13_000 + 150 * at, "depth": 13_000, "policy_counts": dropped})
    assert channel.net_rate == 0.0
    assert (channel.rates.dropped, channel.rates.removed, channel.rates.finished) == (20.0, 20.0, 10.0)
    assert channel.growth == 20.0  # what it would be if nothing was dropped
    assert channel.drain_time is None


def test_a_queue_that_only_shrinks_because_messages_expire_has_no_time_to_drain() -> None:
    play = Play()
    for at in minutes(2):
        expired = {"ttl, dropped": 60 * at}
        channel = play.sweep(n1={"message_count": 50 * at, "depth": 9_000 - 10 * at, "policy_counts": expired})
    assert channel.net_rate == -2.0
    assert (channel.rates.expired, channel.growth, channel.drain_time) == (12.0, 10.0, None)


def test_what_is_buried_is_named_apart_and_is_no_growth() -> None:
    play = Play()
    for at in minutes(2):
        channel = play.sweep(n1={"message_count": 10 * at, "buried_count": 4 * at})
    assert (channel.net_rate, channel.rates.buried, channel.rates.finished) == (0.0, 0.8, 1.2)
    assert channel.buried_recent == 4 * 23


def test_the_trend_follows_a_change_within_a_minute_and_is_still_when_nothing_moves() -> None:
    play = Play()
    for at in minutes(3):
        channel = play.sweep(n1={"message_count": 50 * at, "depth": 50 * at})
    assert channel.net_rate == 10.0
    for _ in minutes(1):
        channel = play.sweep(n1={"message_count": 1800, "depth": 1800})
    assert channel.net_rate == 0.0


def test_a_silent_node_leaves_the_known_part_and_its_return_is_no_jump() -> None:
    play = Play("n1:1", "n2:1")

    def on(depth: int) -> dict[str, Any]:
        return {"message_count": depth, "depth": depth}

    for at in minutes(2):
        channel = play.sweep(n1=on(180 * at), n2=on(60 * at))
    assert channel.net_rate == 48.0
    for at in minutes(6):
        channel = play.sweep("n2", n1=on(180 * (24 + at)))
        assert (channel.net_rate, channel.silent, channel.drain_time) == (36.0, ("n2:1",), None)
    for at in minutes(2):
        channel = play.sweep(n1=on(180 * (96 + at)), n2=on(60 * (96 + at)))
        assert channel.net_rate == pytest.approx(48.0)


@pytest.mark.parametrize(
    "after",
    [
        pytest.param({"depth": 50_000, "buried_count": 0}, id="kick"),
        pytest.param({"depth": 50_010, "message_count": 51_000, "published": 1_000, "buried_count": 50_000}, id="seek"),
        pytest.param({"depth": 50_010, "buried_count": 50_000}, id="restore"),
        pytest.param({"depth": 50_010, "message_count": 900, "start_time": 2}, id="restart"),
        pytest.param({"depth": 50_010, "message_count": 7, "buried_count": 0}, id="created again"),
    ],
)
def test_what_an_operator_puts_back_is_no_growth_by_traffic(after: dict[str, Any]) -> None:
    play = Play()
    before = {"depth": 10, "message_count": 1_000, "buried_count": 50_000}
    for _ in minutes(2):
        play.sweep(n1=before)
    channel = play.sweep(n1={**before, **after})
    assert not channel.net_rate
    assert not channel.rates.incoming
    for _ in minutes(1):
        assert play.sweep(n1={**before, **after}).net_rate == 0.0


def test_a_backlog_that_a_first_channel_gets_from_its_topic_is_traffic() -> None:
    play = Play("n1:1")
    play.sweep(n1={"depth": 0, "message_count": 0, "published": 5_000})
    channel = play.sweep(n1={"depth": 5_000, "message_count": 5_000, "published": 10_000})
    assert channel.rates.incoming == 1_000.0
    assert channel.net_rate == 1_000.0


def test_an_emptied_channel_goes_on_from_there() -> None:
    play = Play()
    for at in minutes(1):
        play.sweep(n1={"depth": 9_000 + at, "message_count": 9_000 + at})
    for at in minutes(2):
        channel = play.sweep(n1={"depth": 50 * at, "message_count": 9_012 + 50 * at})
    assert channel.net_rate == 10.0


# What a policy does


def test_what_a_restarted_node_has_dropped_since_is_a_loss_of_the_last_minutes() -> None:
    play = Play()
    for at in minutes(1):
        play.sweep(n1={"message_count": 9, "policy_counts": {"overflow, dropped": at}})
    channel = play.sweep(n1={"start_time": 2, "message_count": 9, "policy_counts": {"overflow, dropped": 3}})
    assert channel.policy_recent == (("overflow, dropped", 3),)


# Standstill


def test_a_standstill_begins_with_the_last_finished_message_whatever_times_out() -> None:
    play = Play()
    for at in minutes(1):
        busy = worker(at, in_flight_count=5)
        play.sweep(n1={"depth": 9, "in_flight_count": 5, "message_count": 14 + at, "clients": [busy]})
    for at in minutes(3):
        stuck = worker(12, in_flight_count=5)
        stood = {
            "depth": 9 + at,
            "in_flight_count": 5,
            "message_count": 26 + at,
            "timeout_count": at,
            "clients": [stuck],
        }
        channel = play.sweep(n1=stood)
    assert channel.stall == Stall(since=WALL + 60.0, timed_out=36, has_held_up=True)
    finished = worker(13, in_flight_count=5)
    channel = play.sweep(n1={**stood, "depth": 44, "clients": [finished]})
    assert channel.stall is not None
    assert channel.stall.since == WALL + play.now


def test_a_standstill_from_before_us_is_at_least_as_long() -> None:
    play = Play()
    stuck = {"in_flight_count": 5, "clients": [worker(in_flight_count=5)]}
    for _ in minutes(2):
        channel = play.sweep(n1=stuck)
    assert channel.stall == Stall(since=WALL + STEP, is_older=True)


def test_an_idle_channel_that_gets_a_message_does_not_stand_still_since_its_last_one() -> None:
    play = Play()
    for _ in minutes(10):
        assert play.sweep(n1={"clients": [worker()]}).stall is None
    channel = play.sweep(n1={"in_flight_count": 1, "message_count": 1, "clients": [worker(in_flight_count=1)]})
    assert channel.stall is not None
    assert channel.stall.since == WALL + play.now


def test_emptying_a_channel_does_not_end_a_standstill() -> None:
    play = Play()
    stuck = [worker(in_flight_count=5)]
    for _ in minutes(2):
        play.sweep(n1={"depth": 500, "in_flight_count": 5, "message_count": 505, "clients": stuck})
    channel = play.sweep(n1={"depth": 0, "in_flight_count": 5, "message_count": 505, "clients": stuck})
    assert channel.stall == Stall(since=WALL + STEP, is_older=True, has_held_up=True)


def test_a_node_on_which_messages_are_finished_ends_the_standstill_of_the_channel() -> None:
    play = Play("n1:1", "n2:1")
    for at in minutes(2):
        stuck = {"depth": 9, "in_flight_count": 5, "message_count": 14, "clients": [worker(in_flight_count=5)]}
        well = {"in_flight_count": 1, "message_count": at, "clients": [worker(at, in_flight_count=1)]}
        channel = play.sweep(n1=stuck, n2=well)
    assert channel.stall is not None
    assert channel.stall.since == WALL + play.now


def test_a_new_standstill_is_seen_on_the_nodes_that_answer() -> None:
    play = Play("n1:1", "n2:1")
    for at in minutes(1):
        well = {"in_flight_count": 1, "message_count": at, "clients": [worker(at, in_flight_count=1)]}
        play.sweep(n1=well, n2=well)
    for _ in minutes(2):
        stuck = {"in_flight_count": 1, "depth": 5, "message_count": 17, "clients": [worker(12, in_flight_count=1)]}
        channel = play.sweep("n2", n1=stuck)
    assert channel.stall == Stall(since=WALL + 60.0, has_held_up=True)


# Against a simple reference

answers = st.tuples(st.booleans(), st.integers(0, 500), st.integers(0, 500), st.integers(0, 300))


@given(st.lists(st.lists(answers, min_size=3, max_size=3), min_size=2, max_size=40))
def test_the_trend_is_never_below_the_measured_change_of_the_known_part(
    sweeps: list[list[tuple[bool, int, int, int]]],
) -> None:
    """Each sweep is, for each of three nodes: does it answer, how much came, was finished, and was dropped."""
    names = ("n1", "n2", "n3")
    play = Play(*(f"{name}:1" for name in names))
    came, depth, dropped = dict.fromkeys(names, 0), dict.fromkeys(names, 0), dict.fromkeys(names, 0)
    seen: dict[str, list[tuple[float, int, int]]] = {name: [] for name in names}
    for number, sweep in enumerate(sweeps):
        silent = []
        for name, (is_there, incoming, finished, lost) in zip(names, sweep, strict=True):
            came[name] += incoming
            depth[name] += incoming
            depth[name] -= min(finished, depth[name])
            lost = min(lost, depth[name])
            depth[name] -= lost
            dropped[name] += lost
            if not is_there and number:
                silent.append(name)
        fields = {
            name: {
                "message_count": came[name],
                "depth": depth[name],
                "policy_counts": {"overflow, dropped": dropped[name]},
            }
            for name in names
        }
        channel = play.sweep(" ".join(silent), **fields)
        there = [name for name in names if name not in silent]
        for name in there:
            seen[name].append((play.now, depth[name], dropped[name]))
        known = [name for name in there if len(seen[name]) > 1]
        assert (channel.net_rate is None) == (not known)
        if not known:
            continue
        # Over some window of each node, which begins with an earlier answer of it, the depth has changed just so.
        bounds = [possible_changes(seen[name]) for name in known]
        assert channel.net_rate is not None
        assert sum(low for low, _ in bounds) - 1e-6 <= channel.net_rate <= sum(high for _, high in bounds) + 1e-6
        assert channel.growth is not None
        assert channel.growth >= channel.net_rate


def possible_changes(seen: list[tuple[float, int, int]]) -> tuple[float, float]:
    """Return the least and greatest change of the depth since an earlier answer that is at most a minute old.

    If all are older, the node was silent for long: then since the newest of them.
    """
    now, depth, _ = seen[-1]
    earlier = seen[:-1]
    recent = [it for it in earlier if now - it[0] <= 60.0 + STEP]
    gap = max((later[0] - it[0] for it, later in zip(earlier, seen[1:], strict=True)), default=0.0)
    if gap > STEP:  # the readings of a pace are then further apart
        recent = earlier
    changes = [(depth - before) / (now - at) for at, before, _ in recent]
    return min(changes), max(changes)


def test_a_node_whose_consumers_hang_is_named_while_others_go_on() -> None:
    play = Play("n1:1", "n2:1")

    def hangs(at: int) -> dict[str, Any]:
        return {"message_count": 100 + 50 * at, "depth": 50 * at, "in_flight_count": 5, "clients": [worker()]}

    def works(at: int) -> dict[str, Any]:
        in_flight = at % 3  # at some moments nothing is in flight
        clients = [worker(50 * at - in_flight)]
        return {"message_count": 50 * at, "in_flight_count": in_flight, "clients": clients}

    for at in minutes(10):
        stall = play.sweep(n1=hangs(at), n2=works(at)).stall
        if play.now < 300:
            assert stall is None or stall.since == WALL + play.now
        elif play.now > 300:
            assert stall == Stall(since=WALL + STEP, is_older=True, has_held_up=True, nodes=("n1:1",))
