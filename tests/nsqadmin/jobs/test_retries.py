"""Retries of failed jobs by task, against nodes that keep, list and kick buried messages as nsqd does; on a steered clock."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from urllib.parse import parse_qs

import pytest
import trio
import trio.testing

from nsqadmin.access import ALL_RIGHTS, Identity, Right, Role
from nsqadmin.actions.audit import ActivityLog
from nsqadmin.cluster.model import Channel
from nsqadmin.decoding.decoders import Decoders
from nsqadmin.http.responses import Caller
from nsqadmin.jobs.retries import CannotRetry, Retries
from nsqadmin.jobs.retry import FailedReading, Retry, RetryWanted, in_words
from nsqadmin.jobs.tasks import Quantity, Trust
from nsqadmin.messages.filters import Filter
from nsqadmin.messages.looking import Looking
from nsqadmin.messages.masking import Masking
from nsqadmin.upstream.client import UpstreamError
from tests.support.picture import channel, channel_node, node, snapshot, topic

EVERYONE = Identity(roles=(ALL_RIGHTS,))
CALLER = Caller(identity=EVERYONE, remote="10.0.0.1:5000")
WANTED = RetryWanted(topic="t", channel="jobs", task="charge")


class Nodes:
    """The buried jobs of each node, by sequence."""

    def __init__(self, **counts: int) -> None:
        self.buried = {
            f"{name}:4151": {number: self._job(number) for number in range(it)} for name, it in counts.items()
        }
        self.kicked: list[tuple[float, str, str]] = []  # when, node, id
        self.numbers: set[tuple[str, str]] = set()  # of kicks that requests continue
        self.room: dict[str, int] = {}
        self.broken: set[str] = set()
        self.fail_again = False

    def _job(self, number: int) -> dict[str, Any]:
        """Return a line. Every second job is of the task, and half of these have another error."""
        name = "charge" if number % 2 == 0 else "other"
        return {
            "sequence": number,
            "id": f"{number:016x}",
            "attempts": 1,
            "buried_at": 1,
            "reason": f"ValueError: {number % 4}",
            "client": "w",
            "timestamp": 1,
            "body": "{}",
            "headers": {"job-name": name, "job-id": str(number)},
        }

    async def get_json(self, node: str, target: str) -> Any:
        if "/jobs" in target:
            return {"jobs": []}
        return {"count": len(self.buried[node]), "reasons": [], "others": len(self.buried[node]), "job": None}

    async def documents(self, node: str, target: str, *, nothing: object) -> AsyncGenerator[dict[str, Any], None]:
        arguments = parse_qs(target.partition("?")[2])
        after, limit = int(arguments.get("after", ["-1"])[0]), int(arguments["limit"][0])
        for sequence in [it for it in sorted(self.buried[node]) if it > after][:limit]:
            yield self.buried[node][sequence]

    def look(self, identity: Identity, topic: str, wanted: Filter) -> Looking[Any]:
        return Looking(Decoders(), Masking(), identity, topic, wanted)

    async def post(self, node: str, target: str) -> bytes:
        await trio.sleep(0.001)
        arguments = parse_qs(target.partition("?")[2])
        if node in self.broken:
            raise UpstreamError("no", status=404, body=b'{"message":"CHANNEL_NOT_FOUND"}')
        ids = arguments["id"]
        if self.room.get(node, len(ids)) < len(ids):
            body = json.dumps({"message": "FULL", "fits": self.room[node]}).encode()
            raise UpstreamError("no", status=409, body=body)
        if node in self.room:
            self.room[node] -= len(ids)
        self.numbers.add((node, arguments.get("kick", [""])[0]))
        sequences = [int(it, 16) for it in ids if int(it, 16) in self.buried[node]]
        for sequence in sequences:
            self.kicked.append((trio.current_time(), node, f"{sequence:016x}"))
            if not self.fail_again:
                del self.buried[node][sequence]
        return json.dumps({"kicked": len(sequences), "job": None, "kick": 17}).encode()


def the_channel(nodes: Nodes) -> Channel:
    rows = [channel_node(it, buried_count=len(lines)) for it, lines in nodes.buried.items()]
    return channel(*rows, topic="t", name="jobs")


Test = Callable[[Retries, ActivityLog], Awaitable[None]]


def with_retries(nodes: Nodes, test: Test) -> None:
    """Run a test in which time passes only while everything waits."""
    queue = the_channel(nodes)
    known = snapshot(topic(queue, name="t"), nodes=tuple(node(it) for it in nodes.buried))

    async def main() -> None:
        activity = ActivityLog()
        view: Any = SimpleNamespace(snapshot=known)
        retries = Retries(nodes, nodes, view, activity, wall=trio.current_time)  # type: ignore[arg-type]
        async with trio.open_nursery() as nursery:
            nursery.start_soon(retries.run)
            await test(retries, activity)
            nursery.cancel_scope.cancel()

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


async def begun(retries: Retries, nodes: Nodes, wanted: RetryWanted = WANTED) -> tuple[Retry, FailedReading]:
    reading = await retries.reading(the_channel(nodes), wanted.task, EVERYONE)
    return await retries.begin(wanted, reading, CALLER), reading


def retried(
    nodes: Nodes, wanted: RetryWanted = WANTED, *, seconds: float = 3600.0
) -> tuple[Retry, FailedReading, ActivityLog]:
    """Retry, and return once it has ended, or after some time."""
    found: list[Any] = []

    async def test(retries: Retries, activity: ActivityLog) -> None:
        retry, reading = await begun(retries, nodes, wanted)
        await retries.wait(retry, seconds)
        found.extend((retry, reading, activity))

    with_retries(nodes, test)
    retry, reading, activity = found
    return retry, reading, activity


def test_all_jobs_of_the_task_are_retried_and_no_other() -> None:
    nodes = Nodes(n1=30, n2=10)
    retry, reading, activity = retried(nodes)
    assert reading.count() == Quantity(20)
    assert (retry.done, retry.is_running, retry.outcome) == (20, False, "20 jobs retried")
    assert {it % 2 for lines in nodes.buried.values() for it in lines} == {1}
    assert sorted(retry.kicks) == ["17@n1:4151", "17@n2:4151"]
    (noted,) = activity.newest()
    assert noted.text == "retried 20 failed jobs of one task of t/jobs"
    assert (noted.what, noted.result) == ("retry_task", "ok")


def test_only_those_with_an_error() -> None:
    nodes = Nodes(n1=40)
    retry, reading, _ = retried(nodes, RetryWanted(topic="t", channel="jobs", task="charge", reason="ValueError: 2"))
    assert (reading.reasons, retry.done) == ([("ValueError: *", 20)], 10)
    assert all(int(id, 16) % 4 == 2 for _, _, id in nodes.kicked)


def test_errors_that_differ_in_a_number_are_retried_together_and_no_others() -> None:
    nodes = Nodes(n1=40)
    wanted = RetryWanted(topic="t", channel="jobs", task="charge", reason="ValueError: *")
    retry, reading, _ = retried(nodes, wanted)
    assert (reading.count(wanted.reason), retry.done) == (Quantity(20), 20)
    assert retried(Nodes(n1=40), replace(wanted, reason="KeyError: *"))[0].done == 0


@pytest.mark.parametrize("rate", [0.5, 7.0, 100.0])
def test_a_rate_holds_in_every_stretch_of_time(rate: float) -> None:
    nodes = Nodes(n1=60, n2=60)
    retried(nodes, RetryWanted(topic="t", channel="jobs", task="charge", rate=rate))
    times = [at for at, _, _ in nodes.kicked]
    assert len(times) == 60
    most = max(1, int(rate / 2))  # in one step
    for first, at in enumerate(times):
        seen = sum(at <= other < at + 10 for other in times[first:])
        assert seen <= 10 * rate + most
    assert times[-1] - times[0] <= 60 / rate + 1


def test_a_job_that_fails_again_at_once_is_retried_only_once() -> None:
    nodes = Nodes(n1=2_000)
    nodes.fail_again = True
    retry, _, _ = retried(nodes)
    assert retry.done == 1_000
    assert len({id for _, _, id in nodes.kicked}) == 1_000


def test_beyond_what_is_read_the_number_is_an_estimate_and_all_are_retried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nsqadmin.jobs.retries.MOST_READ", 1_000)  # 10,000 take a second
    nodes = Nodes(n1=2_602)
    retry, reading, _ = retried(nodes)
    assert reading.count().trust is Trust.ABOUT
    assert in_words(reading.count(), "failed job").startswith("about 1,3")
    assert 1_000 <= reading.looked < 2_001
    assert retry.done == 1_301
    assert {int(it, 16) % 2 for _, _, it in nodes.kicked} == {0}


def test_a_kick_continues_the_one_before_so_that_an_undo_has_all() -> None:
    nodes = Nodes(n1=1_000)
    retried(nodes)
    assert nodes.numbers == {("n1:4151", ""), ("n1:4151", "17")}


def test_a_limit_tests_the_fix_with_one() -> None:
    nodes = Nodes(n1=30)
    retry, _, _ = retried(nodes, RetryWanted(topic="t", channel="jobs", task="charge", limit=1))
    assert (retry.done, retry.total) == (1, Quantity(1))


def test_a_node_that_refuses_is_named_and_the_others_go_on() -> None:
    nodes = Nodes(n1=300, n2=300)
    nodes.broken.add("n1:4151")
    retry, _, activity = retried(nodes)
    assert (retry.done, retry.errors) == (150, {"n1:4151": "it does not have the channel"})
    assert activity.newest()[0].result == "partly"


def test_a_channel_without_room_is_waited_for() -> None:
    nodes = Nodes(n1=100)
    nodes.room["n1:4151"] = 0

    async def test(retries: Retries, activity: ActivityLog) -> None:
        retry, _ = await begun(retries, nodes, RetryWanted(topic="t", channel="jobs", task="charge", rate=20))
        await retries.wait(retry, 60)
        assert (retry.is_running, retry.waits_for_room, retry.done) == (True, True, 0)
        del nodes.room["n1:4151"]
        at = trio.current_time()
        await retries.wait(retry, 60)
        assert (retry.is_running, retry.done) == (False, 50)
        assert trio.current_time() - at >= 50 / 20 - 1  # the minute is not made up for

    with_retries(nodes, test)


def test_a_stop_is_at_once_and_leaves_the_others_buried() -> None:
    nodes = Nodes(n1=100)

    async def test(retries: Retries, activity: ActivityLog) -> None:
        retry, _ = await begun(retries, nodes, RetryWanted(topic="t", channel="jobs", task="charge", rate=0.01))
        await trio.sleep(150)
        at = trio.current_time()
        with pytest.raises(CannotRetry):
            await begun(retries, nodes)  # while one runs for the task
        await retries.stop("t", retry.id, CALLER.name)
        await retries.wait(retry, 60)
        assert trio.current_time() == at
        assert (retry.is_running, retry.is_stopped, retry.done) == (False, True, 2)
        assert activity.newest()[0].text.endswith("at 0.01 a second, then stopped")
        assert retries.of("t", "jobs", "charge") == [retry]
        with pytest.raises(CannotRetry):
            await retries.stop("another-topic", retry.id, CALLER.name)

    with_retries(nodes, test)


def test_a_channel_that_never_has_room_for_a_whole_step_gets_as_many_as_fit() -> None:
    nodes = Nodes(n1=400)
    nodes.room["n1:4151"] = 30

    async def test(retries: Retries, activity: ActivityLog) -> None:
        retry, _ = await begun(retries, nodes)
        await retries.wait(retry, 0.5)
        assert (retry.done, retry.waits_for_room) == (30, True)
        while retry.is_running:
            nodes.room["n1:4151"] = 30  # its consumers have finished them
            await retries.wait(retry, 1)
        assert (retry.done, len(nodes.kicked)) == (200, 200)

    with_retries(nodes, test)


def test_a_form_that_is_sent_twice_begins_one_retry() -> None:
    nodes = Nodes(n1=100)
    nodes.fail_again = True

    async def test(retries: Retries, activity: ActivityLog) -> None:
        readings = [await retries.reading(the_channel(nodes), "charge", EVERYONE) for _ in range(2)]
        first = await retries.begin(WANTED, readings[0], CALLER, "a")
        assert await retries.begin(WANTED, readings[1], CALLER, "a") is first
        await retries.wait(first, 60)
        assert await retries.begin(WANTED, readings[1], CALLER, "a") is first
        assert len(nodes.kicked) == 50
        other = Caller(identity=EVERYONE, remote="10.0.0.2:5000")
        assert await retries.begin(WANTED, readings[1], other, "a") is not first

    with_retries(nodes, test)


def test_a_retry_that_runs_is_known_whatever_ends_meanwhile() -> None:
    nodes = Nodes(n1=100)

    async def test(retries: Retries, activity: ActivityLog) -> None:
        slow, _ = await begun(retries, nodes, RetryWanted(topic="t", channel="jobs", task="charge", rate=0.01))
        for _ in range(30):
            short, _ = await begun(retries, nodes, RetryWanted(topic="t", channel="jobs", task="other", limit=1))
            await retries.wait(short, 60)
        assert retries.of("t", "jobs", "charge") == [slow]
        assert len(retries.of("t", "jobs", "other")) <= 21
        await retries.stop("t", slow.id, "ana")
        await retries.wait(slow, 60)
        assert activity.newest()[0].text.endswith("at 0.01 a second, then stopped by ana")

    with_retries(nodes, test)


def test_a_retry_that_takes_long_is_in_the_audit_log_from_its_beginning() -> None:
    nodes = Nodes(n1=100)

    async def test(retries: Retries, activity: ActivityLog) -> None:
        retry, _ = await begun(retries, nodes, RetryWanted(topic="t", channel="jobs", task="charge", rate=5))
        for _ in range(2):
            await retries.wait_or_note(retry, 1, CALLER)
        await retries.wait(retry, 60)
        assert [it.text for it in activity.newest()] == [
            "retried 50 failed jobs of one task of t/jobs at 5 a second",
            "began to retry the failed jobs of one task of t/jobs at 5 a second",
        ]

    with_retries(nodes, test)


def test_a_node_that_was_silent_is_named_at_the_end() -> None:
    nodes = Nodes(n1=10)

    async def test(retries: Retries, activity: ActivityLog) -> None:
        reading = await retries.reading(the_channel(nodes), "charge", EVERYONE)
        silent = replace(reading, missing={"n2:4151": "it does not answer"}, silent=frozenset(("n2:4151",)))
        retry = await retries.begin(WANTED, silent, CALLER)
        await retries.wait(retry, 60)
        assert (retry.done, retry.result, retry.unread) == (5, "partly", {"n2:4151": "it does not answer"})
        assert activity.newest()[0].text.endswith("; not read to the end: n2:4151")

    with_retries(nodes, test)


def test_silent_nodes_make_the_number_a_lower_bound_or_unknown() -> None:
    reading = FailedReading(missing={"n1:4151": "it does not answer"}, silent=frozenset(("n1:4151",)))
    assert reading.count() == Quantity(None, Trust.UNKNOWN)
    assert in_words(reading.count(), "failed job") == "an unknown number of failed jobs"


def test_without_the_rights_nothing_begins() -> None:
    nodes = Nodes(n1=10)
    may_see = Identity(roles=(Role(name="r", can=frozenset((Right.VIEW, Right.PAYLOAD))),))

    async def test(retries: Retries, activity: ActivityLog) -> None:
        reading = await retries.reading(the_channel(nodes), "charge", may_see)
        with pytest.raises(CannotRetry):
            await retries.begin(WANTED, reading, Caller(identity=may_see, remote=""))

    with_retries(nodes, test)
    assert nodes.kicked == []
