"""A survey of queues: bounded, small queues first, side by side, and with words for what wasn't read."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any
from urllib.parse import parse_qs

import pytest
import trio
import trio.testing

from nsqadmin.cluster.model import Channel, Health
from nsqadmin.jobs.survey import MOST_NAMES, MOST_READ, Kind, QueueReading, Surveyor, queues_of
from nsqadmin.jobs.tasks import UNKNOWN, Quantity, Trust, task_rows, unlisted_row
from nsqadmin.messages.reading import Unreadable
from tests.support.picture import channel, channel_node, node, snapshot, topic


class Names:
    """Deferred jobs on one node, each of another task; and one buried job of a task of the same length of name."""

    def __init__(self, length: int = 200) -> None:
        self.length = length

    async def documents(self, node: str, target: str, *, nothing: object) -> AsyncGenerator[dict[str, Any], None]:
        arguments = parse_qs(target.partition("?")[2])
        topic, limit = arguments["topic"][0], int(arguments["limit"][0])
        first = int(arguments.get("after", ["-1"])[0].rpartition(",")[2]) + 1
        for number in range(first, first + limit):
            name = f"{number:0{self.length}}" if topic == "flood" else "known"
            yield {"sequence": number, "after": f"r,0,{number}", "body": "{}", "headers": {"job-name": name}}
            if topic != "flood":
                break


class Nodes:
    """Nodes with as many buried and deferred jobs of each topic as one asks for, and some that wait."""

    def __init__(self, *, breaks: str = "", hangs: str = "", large: bool = False, waiting: int = 100_000) -> None:
        self._breaks = breaks
        self._waiting = waiting  # messages of each topic
        self._hangs = hangs
        self._body = "x" * 100_000 if large else "{}"
        self.read: dict[str, int] = {}  # lines by topic
        self.at_once = 0
        self.most_at_once: dict[str, int] = {}  # requests by node

    async def documents(self, node: str, target: str, *, nothing: object) -> AsyncGenerator[dict[str, Any], None]:
        arguments = parse_qs(target.partition("?")[2])
        topic = arguments["topic"][0]
        first = int(arguments.get("after", ["-1"])[0].rpartition(",")[2]) + 1
        if node == self._breaks:
            raise Unreadable("the answer broke off")
        if node == self._hangs:
            await trio.sleep_forever()
        self.most_at_once[node] = self.most_at_once.get(node, 0) + 1
        assert self.most_at_once[node] == 1  # one request at a time
        await trio.sleep(0.01)
        for number in range(first, min(first + int(arguments["limit"][0]), int(topic.rpartition("-")[2]))):
            self.read[topic] = self.read.get(topic, 0) + 1
            yield {
                "sequence": number,
                "after": f"run,{number},{number}",
                "reason": f"ValueError: {number % 2}",
                "body": self._body,
                "headers": {"job-name": f"task-{number % 2}", "job-retries": str(number % 3)},
            }
        self.most_at_once[node] -= 1

    async def get_json(self, node: str, target: str) -> dict[str, Any]:
        limit = int(parse_qs(target.partition("?")[2])["limit"][0])
        return {"end": 100_000, "waiting": [[number, 0] for number in range(min(limit, self._waiting))]}

    async def lines(self, node: str, topic: str, start: str, more: str) -> AsyncGenerator[dict[str, Any], None]:
        end = int(more.removeprefix("&to="))
        for number in range(int(start), end):
            yield {"sequence": number, "body": "{}", "headers": {"job-name": f"task-{number % 4}"}}
        yield {"next": end}


def queue(name: str, *rows: Any) -> Channel:
    return channel(*rows, topic=name, name="jobs")


def survey(nodes: Nodes, *channels: Channel, silent: str = "") -> dict[str, QueueReading]:
    addresses = {row.node for it in channels for row in it.nodes}
    known = tuple(node(it, health=Health.DOWN if it == silent else Health.OK) for it in sorted(addresses))
    surveyor = Surveyor(nodes, nodes)  # type: ignore[arg-type]
    clock = trio.testing.MockClock(autojump_threshold=0)
    found = trio.run(surveyor.survey, snapshot(nodes=known), channels, clock=clock)
    return {it.topic: it for it in found}


def test_what_is_buried_and_deferred_is_counted_by_task() -> None:
    nodes = Nodes()
    found = survey(nodes, queue("q-1500", channel_node("n1:4151", buried_count=1500, deferred_count=1500)))["q-1500"]
    buried, deferred = found.kinds[Kind.BURIED], found.kinds[Kind.DEFERRED]
    assert dict(buried.by_task) == {"task-0": 750, "task-1": 750}
    assert dict(buried.errors["task-1"]) == {"ValueError: 1": 750}
    assert dict(deferred.retrying) == {"task-0": 500, "task-1": 500}
    assert (buried.is_whole, deferred.is_whole) == (True, True)


def test_reading_is_bounded_and_small_queues_come_first() -> None:
    nodes = Nodes()
    found = survey(
        nodes,
        queue("large-50000", channel_node("n1:4151", buried_count=50_000)),
        queue("small-300", channel_node("n1:4151", buried_count=300)),
    )
    assert found["small-300"].kinds[Kind.BURIED].is_whole
    large = found["large-50000"].kinds[Kind.BURIED]
    assert large.read == MOST_READ - 300
    assert large.missing == {"n1:4151": "there are too many messages to read"}


def test_what_waits_is_a_sample_of_2000() -> None:
    found = survey(Nodes(), queue("q-0", channel_node("n1:4151", depth=50_000)))["q-0"].kinds[Kind.WAITING]
    assert (found.read, found.total) == (2_000, 50_000)
    assert found.by_task["task-1"] == 500


def test_many_queues_share_one_budget_of_samples() -> None:
    found = survey(Nodes(), *(queue(f"q-{it}", channel_node("n1:4151", depth=5_000)) for it in range(100)))
    assert sum(it.kinds[Kind.WAITING].read for it in found.values()) <= MOST_READ


def test_large_bodies_end_a_list_early() -> None:
    found = survey(Nodes(large=True), queue("q-1000", channel_node("n1:4151", buried_count=1000)))["q-1000"]
    assert found.kinds[Kind.BURIED].missing == {"n1:4151": "its messages are large, and were not all read"}


def test_nodes_that_break_off_hang_or_are_down_are_named() -> None:
    on = [channel_node(it, buried_count=10) for it in ("n1:4151", "n2:4151", "n3:4151", "n4:4151")]
    found = survey(Nodes(breaks="n1:4151", hangs="n2:4151"), queue("q-10", *on), silent="n3:4151")["q-10"]
    buried = found.kinds[Kind.BURIED]
    assert buried.missing == {
        "n1:4151": "the answer broke off",
        "n2:4151": "it was not read in time",
        "n3:4151": "it does not answer",
    }
    assert buried.read == 10
    # A node that is down may have jobs of any kind by now.
    assert "n3:4151" in found.kinds[Kind.IN_FLIGHT].missing


def test_queues_are_the_channels_called_jobs_and_those_whose_workers_report() -> None:
    seen = snapshot(
        topic(queue("mails", channel_node()), name="mails"),
        topic(channel(topic="orders", name="billing"), name="orders"),
        topic(channel(topic="orders2", name="billing"), name="orders2"),
        topic(channel(topic="x#ephemeral", name="jobs"), name="x#ephemeral"),
    )
    found = queues_of(seen, frozenset({("orders", "billing")}))
    assert [(it.topic, it.name) for it in found] == [("mails", "jobs"), ("orders", "billing")]


def test_messages_that_follow_in_the_log_only_make_an_estimate() -> None:
    """They may be deferred or done, so the sum of 1,000 known places and 500 of them is not exact."""
    found = survey(Nodes(), queue("q-0", channel_node("n1:4151", depth=1_500)))["q-0"]
    rows = {it.name: it.waiting for it in task_rows([found], [])}
    assert rows["task-1"] == Quantity(375, Trust.ABOUT)


@pytest.mark.parametrize(("waiting", "expected"), [(0, 0), (1, 1), (5, 2)])
def test_what_waits_in_a_short_queue_is_exact_though_the_snapshot_is_older(waiting: int, expected: int) -> None:
    """A message of the snapshot may have been delivered since, and others may have come."""
    found = survey(Nodes(waiting=waiting), queue("q-1", channel_node("n1:4151", depth=1, buried_count=1)))["q-1"]
    rows = {it.name: it.waiting for it in task_rows([found], [])}
    assert rows["task-0"] == Quantity(expected)
    assert found.kinds[Kind.WAITING].total == waiting


def test_a_queue_that_has_grown_much_since_the_snapshot_makes_an_estimate() -> None:
    found = survey(Nodes(waiting=500), queue("q-1", channel_node("n1:4151", depth=100)))["q-1"]
    rows = {it.name: it.waiting for it in task_rows([found], [])}
    assert rows["task-0"] == Quantity(30, Trust.ABOUT)


def test_a_flood_of_names_is_bounded_and_takes_no_room_from_others() -> None:
    """There are 100,000 names. Those that workers report and those of smaller queues are still counted exactly."""
    flood = queue("flood", channel_node("n1:4151", deferred_count=100_000))
    small = queue("small", channel_node("n1:4151", deferred_count=1))
    surveyor = Surveyor(None, Names())  # type: ignore[arg-type]
    reported = f"{5_000:0200}"
    found = trio.run(
        surveyor.survey,
        snapshot(nodes=(node("n1:4151"),)),
        (flood, small),
        {reported},
        clock=trio.testing.MockClock(autojump_threshold=0),
    )
    rows = {it.name: it for it in task_rows(found, ())}
    assert len(rows) == MOST_NAMES + 1
    assert rows["known"].scheduled == Quantity(1)
    assert rows[reported].scheduled == Quantity(1, Trust.AT_LEAST)  # the queue has more than we read
    assert (
        sum(it.unlisted for it in found) == MOST_READ - 1 - MOST_NAMES
    )  # all but `known`'s place, and the listed ones
    hidden = unlisted_row(f"{90_000:0200}", found)
    assert hidden is not None
    assert (hidden.scheduled, hidden.queues) == (UNKNOWN, (("flood", "jobs"),))
    assert unlisted_row("known", found) is None


def test_a_name_that_no_library_writes_finds_no_room() -> None:
    flood = queue("flood", channel_node("n1:4151", deferred_count=5))
    clock = trio.testing.MockClock(autojump_threshold=0)
    surveyor = Surveyor(None, Names(length=256))  # type: ignore[arg-type]
    (found,) = trio.run(surveyor.survey, snapshot(nodes=(node("n1:4151"),)), (flood,), clock=clock)
    assert not found.kinds[Kind.DEFERRED].by_task
    assert found.unlisted == found.kinds[Kind.DEFERRED].read
