"""No request looks at everything in one turn: the walk of `python -m bench turns`, small, and counted instead of timed.

A turn is what a handler does until it gives way. In each, fewer lines of Python run than there are messages, so that
nothing is done for each of them. Loops in C are not counted here; docs/explanation/turns.md lists them.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
import traceback
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterator, Mapping
from contextlib import suppress
from functools import lru_cache
from types import FrameType
from typing import Any, Final
from unittest.mock import Mock

import pytest

from bench.turns.cases import CASES, MPUB, Case, missing
from bench.turns.filling import CHANNEL, GROUPED, KEY, LATER
from nsqcommon import slices
from nsqcommon.version import suite_version
from nsqcommon.wire.limits import SizeLimits
from nsqd.broker.consumer import Consumer
from nsqd.broker.rules import ChannelRules
from nsqd.http import HistoryReads
from tests.nsqd.http.conftest import Nsqd
from tests.nsqd.http.fake_history import at_once
from tests.nsqd.http.whole.test_stats import CLIENT
from tests.support import asgi
from tests.support.given_rules import GivenRules
from tests.support.leasing import bounds
from tests.support.quick import unless_quick

COUNT: Final = 24_000
MANY: Final = unless_quick(400, quick=150)  # topics or channels
LOG: Final = "8a217571e710893474d0e8e31e8ff94c"
PAST: Final = {"log_id": LOG, "first": 0, "next": COUNT, "retention_time": 0, "retention_bytes": 0}


class Walked(Nsqd):
    """An nsqd whose channel has messages in some state."""

    def __init__(self, state: str, count: int) -> None:
        self.count = count
        self.batch = count.to_bytes(4, "big") + b"\0\0\0\1x" * count
        limits = SizeLimits(max_message=1 << 20, max_body=5 << 20)
        past = Mock(**PAST, keys=Mock(return_value=()), sequence_of=Mock(return_value=None))
        reading = HistoryReads(Mock(node="n", find=Mock(return_value=past)), at_once)
        super().__init__(reading, limits, within=bounds(in_channel=COUNT, of_holder=COUNT))
        self.topic = self.broker.topic("t")
        self.ids: list[str] = []
        if state not in ("parked", "unclaimed"):
            self.topic.channel(CHANNEL)
        STATES[state](self)

    @property
    def at(self) -> str:
        return f"topic=t&channel={CHANNEL}"

    def publish(self, more: str = "") -> None:
        assert self.post(f"/mpub?topic=t&binary=true&key={KEY}{more}", self.batch).status == 200

    def defer(self) -> None:
        for number in range(self.count // 10):
            self.topic.publish(b"\0\0\0\1x" * 10, range(0, 51, 5), LATER, b"k-%d" % number, b"")
        self.turn.finish()

    def defer_each(self) -> None:
        for _ in range(self.count):
            self.topic.publish_one(b"\0\0\0\1x", LATER)
        self.turn.finish()

    def pause(self) -> None:
        self.topic.pause()
        self.defer_each()

    def retry(self) -> None:
        self.publish()
        self.post(f"/channel/seek?{self.at}&from=latest")
        for start in range(0, self.count, 6_000):
            assert (
                self.post(f"/channel/redeliver?{self.at}&from={start}&to={min(start + 6_000, self.count)}").status
                == 200
            )

    def deliver(self) -> None:
        self.publish()
        for _ in range(0, self.count, 1_000):
            taken = self.post(f"/sub?{self.at}&max=1000").body.decode()
            self.ids += re.findall(r'"id":"([0-9a-f]{16})"', taken)
        assert len(self.ids) == self.count

    def bury(self) -> None:
        self.deliver()
        for start in range(0, self.count, 1_000):
            self.post(f"/bury?{self.at}", "\n".join(self.ids[start : start + 1_000]).encode())
        assert len(self.topic.channels[CHANNEL].buried_queue.buried) == self.count

    def group(self) -> None:
        self.broker.turn.rules = GivenRules(ChannelRules(max_in_flight_per_group=1))
        self.broker.rules_changed(["t"])
        body = b"".join([GROUPED[number % len(GROUPED)] for number in range(self.count)])
        assert self.post("/hmpub?topic=t", self.count.to_bytes(4, "big") + body).status == 200
        consumer = Consumer(send=lambda pieces: None, close=lambda: None, describe=lambda: CLIENT, msg_timeout=60.0)
        consumer.ready_count = 2 * len(GROUPED)
        channel = self.topic.channels[CHANNEL]
        channel.join(consumer)
        while channel.ledger.held.total < self.count - len(GROUPED):
            consumer.unsent_bytes = 0
            self.broker.turn.now += 0.001
            channel.schedule_delivery()
            self.turn.finish()

    def request(self, case: Case) -> tuple[str, str, bytes, dict[str, str]]:
        known = {"topic": "t", "ids": "&".join(f"id={it}" for it in self.ids[:100]) or "sequence=7", "kick": "1"}
        body = (
            self.batch
            if case.body == MPUB
            else case.body.replace(b"LOG", LOG.encode()).replace(b"{ids}", "\n".join(self.ids[:1_000]).encode())
        )
        query = case.query.replace("limit=10000", "limit=1000").format(**known)  # the store of this test is slow
        path = f"{case.path or case.route.split()[1]}?{query}"
        headers = {"accept": case.accept, "content-type": "application/x-www-form-urlencoded"}
        return case.route.split()[0], path, body, headers


STATES: Final[Mapping[str, Callable[[Walked], None]]] = {
    "": lambda nsqd: None,
    "waiting": Walked.publish,
    "parked": Walked.publish,
    "paused": Walked.pause,
    "unclaimed": Walked.defer_each,
    "delayed": lambda nsqd: nsqd.publish(f"&defer={LATER}"),
    "deferred": Walked.defer,
    "retries": Walked.retry,
    "in_flight": Walked.deliver,
    "buried": Walked.bury,
    "grouped": Walked.group,
}


# These need a thread, trio or a real log, and look at nothing that requests could make longer.
ELSEWHERE: Final = {
    *(f"GET /debug/pprof/{name}" for name in ("goroutine", "block", "threadcreate", "profile")),
    "GET /topic/read",
    "GET /sub",
}
WALK: Final = [
    pytest.param(case, state, id=case.name_in(state))
    for case in CASES
    for state in case.states
    if case.route not in ELSEWHERE
]
WALK.append(pytest.param(Case("GET /debug/pprof/heap", "force=true"), "", id="GET /debug/pprof/heap force=true"))


class _Stepped:
    """An application whose turns are made by somebody else; it ends where it waits for something that would come later."""

    def __init__(
        self, step: Callable[[Coroutine[Any, Any, None]], object], application: Coroutine[Any, Any, None]
    ) -> None:
        self._step = step
        self._application = application

    def __await__(self) -> Generator[None, None, None]:
        with suppress(StopIteration):
            while self._step(self._application) is None:
                yield
            self._application.close()


class LineCounter:
    """Runs an application, and counts the lines of its longest turn."""

    def __init__(self) -> None:
        self.longest = 0

    def run(self, application: Coroutine[Any, Any, None]) -> None:
        asyncio.run(self._run(_Stepped(self._step, application)))

    async def _run(self, application: Awaitable[None]) -> None:
        await application

    def _step(self, application: Coroutine[Any, Any, None]) -> object:
        lines = 0

        def trace(frame: FrameType, event: str, argument: object) -> Callable[..., Any]:
            nonlocal lines
            if event == "line":
                lines += 1
            return trace

        before = sys.gettrace()
        sys.settrace(trace)
        try:
            return application.send(None)
        finally:
            sys.settrace(before)
            self.longest = max(self.longest, lines)


filled = lru_cache(Walked)  # for what changes nothing


@pytest.fixture(scope="module", autouse=True)
def forgotten() -> Iterator[None]:
    """Forget all channels after the last test: the collector would look at their messages in all tests that follow."""
    yield
    filled.cache_clear()


def changes_nothing(case: Case, state: str) -> bool:
    if state == "paused":
        return False
    finds_nothing = "key=absent" in case.query or "id=0123456789abcdef" in case.query
    return case.route.startswith("GET") or case.route.endswith(("/unpause", "/jobs/stop")) or finds_nothing


def lines_of(case: Case, state: str, count: int) -> int:
    """Make the request to a channel that has so many messages, and return how many lines its longest turn has run.

    A request that changes something has a channel of its own, or a fork where filling one takes longer than that.
    """
    if changes_nothing(case, state):
        return longest_turn(filled(state, count), case)
    if state != "buried":
        return longest_turn(Walked(state, count), case)
    nsqd = filled(state, count)
    return in_a_fork(lambda: longest_turn(nsqd, case))


def longest_turn(nsqd: Walked, case: Case) -> int:
    counter = LineCounter()
    method, path, body, headers = nsqd.request(case)
    with pytest.MonkeyPatch.context() as patched, suppress(ValueError):  # ValueError: it waits, and has no answer yet
        patched.setattr(slices, "SLICE", 0.0)  # otherwise the lines depend on how quick the machine is just now
        patched.setattr(asgi, "run", counter.run)
        asgi.ask(nsqd.app, method, path, body, headers)
    return counter.longest


def in_a_fork(count: Callable[[], int]) -> int:
    reader, writer = os.pipe()
    if not (pid := os.fork()):
        try:
            os.write(writer, b"%d" % count())
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(0)
    os.close(writer)
    with open(reader, "rb") as answer:
        lines = answer.read()
    os.waitpid(pid, 0)
    assert lines, "the request has failed, see above"
    return int(lines)


@pytest.mark.parametrize(("case", "state"), WALK)
def test_no_request_does_something_for_each_message(case: Case, state: str) -> None:
    lines = lines_of(case, state, COUNT // 2)
    if lines >= COUNT // 2:  # many, but perhaps only because it takes 10,000 messages or 1,000 ids
        assert lines_of(case, state, COUNT) < 1.3 * lines


def test_the_walk_knows_each_route_and_command() -> None:
    assert missing([f"{route.method} {route.path}" for route in Nsqd().app.routes]) == set()


def test_the_oldest_message_of_each_consumer_is_looked_for_in_many_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    nsqd, counter = Walked("waiting", COUNT), LineCounter()
    channel = nsqd.topic.channels[CHANNEL]
    for ready in (COUNT - 1, 1):  # the oldest message of the second one comes last of all
        consumer = Consumer(send=lambda pieces: None, close=lambda: None, describe=lambda: CLIENT, msg_timeout=60.0)
        consumer.ready_count = ready
        channel.join(consumer)
        while consumer.in_flight < ready:
            consumer.unsent_bytes = 0
            channel.schedule_delivery()
            nsqd.turn.finish()
    monkeypatch.setattr(slices, "SLICE", 0.0)
    monkeypatch.setattr(asgi, "run", counter.run)
    (topic,) = json.loads(nsqd.get("/stats?format=json&topic=t&ages=true").body)["topics"]
    assert all("oldest_in_flight_ms" in it for it in topic["channels"][0]["clients"])
    assert counter.longest < COUNT // 2


@pytest.mark.parametrize("target", ["/stats?format=json&ages=true", "/stats", "/metrics"])
@pytest.mark.parametrize(("topics", "channels"), [(MANY, 1), (1, MANY)], ids=["topics", "channels"])
def test_figures_are_made_in_many_turns(
    target: str, topics: int, channels: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    nsqd, counter = Nsqd(), LineCounter()
    suite_version()  # the daemon finds it before it serves: lines of the modules that this imports do not count
    for topic in range(topics):
        for channel in range(channels):
            nsqd.broker.topic(f"t{topic}").channel(f"c{channel}")
    monkeypatch.setattr(slices, "SLICE", 0.0)
    monkeypatch.setattr(asgi, "run", counter.run)
    answer = nsqd.get(target)
    assert all(f"c{channel}" in answer.body.decode() for channel in range(channels))
    assert counter.longest < 10 * (topics + channels), "it does everything in one turn"
