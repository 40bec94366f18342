"""How long the oldest message of a channel has waited: told by the node, estimated for others, and not lost in a blip."""

from __future__ import annotations

from typing import Any

import pytest

from nsqadmin.cluster.ages import Age, Ages
from nsqadmin.cluster.merge import Directory, Merger
from nsqadmin.cluster.node_stats import read_stats, silenced
from tests.support.picture import NOW, channel_node

TWO = ("n1:1", "n2:1")


class Watched:
    """A channel whose nodes are sampled every five seconds."""

    def __init__(self) -> None:
        self._ages = Ages()
        self._at = 0.0

    def sample(self, *rows: dict[str, Any], silent: tuple[str, ...] = ()) -> Age:
        self._at += 5.0
        self._ages.begin(self._at, NOW + self._at)
        nodes = [channel_node(node, **row) for node, row in zip(TWO, rows, strict=False)]
        return self._ages.of_channel("t", "c", nodes, silent)


def waiting(depth: int, message_count: int = 0, oldest_at: float | None = None) -> dict[str, Any]:
    return {"depth": depth, "message_count": message_count, "oldest_at": oldest_at}


def test_the_message_tells_its_age_itself_from_the_first_sample_on() -> None:
    assert Watched().sample(waiting(7, oldest_at=NOW - 1000.0)) == (1005.0, False)


def test_a_restart_of_the_node_costs_nothing_where_the_message_tells_its_age() -> None:
    channel = Watched()
    channel.sample(waiting(7, 50, oldest_at=NOW))
    assert channel.sample(waiting(7, 0, oldest_at=NOW)) == (10.0, False)


def test_a_node_that_has_to_read_the_message_from_disk_first_has_told_its_age_before() -> None:
    channel = Watched()
    channel.sample(waiting(7, oldest_at=NOW - 90.0))
    assert channel.sample(waiting(6)) == (100.0, False)


def test_the_oldest_of_all_nodes_counts_and_an_estimate_makes_it_a_lower_bound() -> None:
    channel = Watched()
    assert channel.sample(waiting(1, oldest_at=NOW), waiting(1, oldest_at=NOW - 60.0)) == (65.0, False)
    assert Watched().sample(waiting(1, oldest_at=NOW), waiting(9, 9)) == (5.0, True)


def test_an_estimate_survives_that_its_node_or_another_is_silent() -> None:
    channel = Watched()
    for _ in range(10):
        channel.sample(waiting(0, 100), waiting(0, 100))
    for _ in range(10):
        before = channel.sample(waiting(5, 105), waiting(5, 105))
    assert before == (50.0, False)
    assert channel.sample(waiting(5, 105), waiting(5, 105), silent=("n2:1",)) == (55.0, False)
    for _ in range(10):
        both = channel.sample(waiting(5, 105), waiting(5, 105), silent=TWO)
    assert both == (55.0, False)  # as of the last answer
    assert channel.sample(waiting(5, 105), waiting(5, 105)) == (110.0, False)


def test_what_came_while_the_node_was_silent_may_be_as_old_as_its_last_answer() -> None:
    channel = Watched()
    channel.sample(waiting(0, 100))
    channel.sample(waiting(0, 100), silent=TWO)
    channel.sample(waiting(0, 100), silent=TWO)
    assert channel.sample(waiting(5, 105)) == (15.0, False)


def test_one_node_that_starts_anew_does_not_cost_the_others_their_age() -> None:
    channel = Watched()
    channel.sample(waiting(0, 100), waiting(0, 100))
    channel.sample(waiting(5, 105), waiting(5, 105))
    assert channel.sample(waiting(5, 105), waiting(5, 5)) == (10.0, True)


def test_a_clock_that_is_wrong_is_taken_off_the_time_that_its_node_tells() -> None:
    document = {
        "topics": [
            {"topic_name": "t", "channels": [{"channel_name": "c", "depth": 1, "oldest_timestamp": int(NOW * 1e9)}]}
        ]
    }
    answer = read_stats("n1:1", document, at=0.0, skew=30.0)
    (topic,) = Merger().merge([answer], Directory(), now=0.0, wall=NOW + 5.0)
    assert topic.channels[0].oldest_age == 35.0


def test_the_age_on_a_silent_node_is_that_of_its_last_answer() -> None:
    document = {
        "topics": [
            {"topic_name": "t", "channels": [{"channel_name": "c", "depth": 1, "oldest_timestamp": int(NOW * 1e9)}]}
        ]
    }
    merger, answer = Merger(), read_stats("n1:1", document, at=0.0)
    merger.merge([answer], Directory(), now=0.0, wall=NOW + 60.0)
    (topic,) = merger.merge([silenced(answer)], Directory(), now=900.0, wall=NOW + 960.0)
    assert topic.channels[0].oldest_age == 60.0


def test_an_estimate_over_hours_is_about_right_and_takes_little_memory() -> None:
    channel = Watched()
    for sample in range(3000):
        published = 10 * sample
        age, is_older = channel.sample(waiting(min(published, 6000), published))
    assert not is_older
    assert age == pytest.approx(600 * 5.0, rel=0.05)
    assert max(map(len, channel._ages._points.values())) <= 64


def test_a_channel_in_which_nothing_happens_is_remembered_by_two_samples() -> None:
    channel = Watched()
    channel.sample(waiting(0, 100))
    for _ in range(500):
        found = channel.sample(waiting(5, 105))
    assert found == (2500.0, False)
    assert max(map(len, channel._ages._points.values())) <= 3
