"""Memory of a request is given back with its connection, and does not wait for the garbage collector.

The collector comes once a minute, and to objects that have become old every ten minutes. What piles up until then is
spread over the heap, which therefore stays larger than what is in use (`python -m tests.soak`).
"""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from tests.e2e.conftest import StartNsqd
from tests.support.process import Nsqd

pytestmark = pytest.mark.e2e

WARM_UP = 20
REQUESTS = 100


def living_objects(nsqd: Nsqd) -> int:
    """Count what the garbage collector watches, garbage included."""
    page = nsqd.http("GET", "/debug/pprof/heap").body.decode()
    return sum(int(count) for count in re.findall(r"^ *(\d+) \S+$", page, re.MULTILINE))


def publish(nsqd: Nsqd, number: int) -> None:
    """Each has a head that was not seen before."""
    nsqd.post("/pub?topic=t", b"x" * (number + 1))


def come_and_go(nsqd: Nsqd, number: int) -> None:
    nsqd.post("/topic/create?topic=passing")
    nsqd.post("/channel/create?topic=passing&channel=c")
    nsqd.post("/topic/delete?topic=passing")


def get(path: str) -> Callable[[Nsqd, int], None]:
    def ask(nsqd: Nsqd, number: int) -> None:
        assert nsqd.http("GET", path).status == 200

    return ask


@pytest.mark.parametrize(
    ("ask", "kept"),
    [
        pytest.param(publish, 1, id="publish"),  # the head
        pytest.param(come_and_go, 0, id="topics"),
        *(
            pytest.param(get(path), 0, id=path)
            for path in ("/stats?format=json", "/info", "/metrics", "/topic/log?topic=t", "/topic/read?topic=t&from=0")
        ),
    ],
)
def test_requests_leave_nothing_to_the_garbage_collector(
    start_nsqd: StartNsqd, ask: Callable[[Nsqd, int], None], kept: int
) -> None:
    nsqd = start_nsqd()
    nsqd.post("/pub?topic=t", b"x")
    for number in range(WARM_UP):
        ask(nsqd, number)
    before = living_objects(nsqd)
    for number in range(WARM_UP, WARM_UP + REQUESTS):
        ask(nsqd, number)
    assert living_objects(nsqd) - before < (kept + 1) * REQUESTS
