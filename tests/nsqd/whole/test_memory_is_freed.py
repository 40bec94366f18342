"""Memory of a request is freed with its connection, and does not wait for the garbage collector.

The collector comes while anything changes, otherwise once a minute, and to objects that have become old every ten
minutes, if the heap is small. What piles up until then is spread over the heap, which therefore stays larger than what
is in use (`python -m tests.soak`). Where topics come and go, this counts only what the collector has not met yet.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest

from tests.support.brokers import StartNsqd
from tests.support.process import Nsqd

WARM_UP = 20
REQUESTS = 300  # so many that a look at the disk meanwhile, some 110 objects, makes no difference
ARENA = 64 << 20  # glibc reserves this much for a thread's heap, at a multiple of it
BATCH = "nsqd.broker.batch.Batch"


def living_objects(nsqd: Nsqd) -> Counter[str]:
    """Count the objects that the garbage collector watches by type, garbage included."""
    page = nsqd.http("GET", "/debug/pprof/heap").body.decode()
    return Counter({name: int(count) for count, name in re.findall(r"^ *(\d+) (\S+)$", page, re.MULTILINE)})


def publish(nsqd: Nsqd, number: int) -> None:
    """Publish over HTTP; each request has a head that nsqd has not seen before."""
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
        pytest.param(publish, 4, id="publish"),  # the message, in two objects, and the parsed head
        pytest.param(come_and_go, 3, id="topics"),  # a record of each change; the last 1,000 are kept
        *(pytest.param(get(path), 0, id=path) for path in ("/stats?format=json", "/info", "/metrics")),
        pytest.param(get("/topic/log?topic=t"), 0, id="bounds"),
        pytest.param(get("/topic/read?topic=t&from=0"), 10, id="history"),  # timers live until they are due
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
    grown = living_objects(nsqd) - before
    assert grown.total() < (kept + 1) * REQUESTS, grown.most_common(20)


def test_threads_share_one_heap(start_nsqd: StartNsqd) -> None:
    nsqd = start_nsqd()
    nsqd.post("/pub?topic=t", b"x" * 100_000)
    for _ in range(WARM_UP):
        nsqd.http("GET", "/topic/read?topic=t&from=0&wait=1s")  # its reads run in a thread
    maps = Path(f"/proc/{nsqd.pid}/maps").read_text()
    assert "[heap]" in maps
    assert heaps_of_threads(maps) == []


def heaps_of_threads(maps: str) -> list[str]:
    """Return the places where a thread has a heap of its own: a used part, and behind it space reserved for growth."""
    mappings = re.findall(r"^([0-9a-f]+)-([0-9a-f]+) (\S+) 0+ 00:00 0 *$", maps, re.MULTILINE)
    return [
        start
        for (start, used, first), (reserved, end, second) in pairwise(mappings)
        if (first, second) == ("rw-p", "---p") and used == reserved and int(start, 16) % ARENA == 0
        if int(end, 16) - int(start, 16) == ARENA
    ]


def test_heaps_of_threads_are_recognized() -> None:
    """A thread of this process gets a heap of its own, unlike those of nsqd."""
    allocate = "import threading; threading.Thread(target=lambda: print(open('/proc/self/maps').read())).start()"
    maps = subprocess.run(
        [sys.executable, "-c", allocate], capture_output=True, text=True, check=True, timeout=30
    ).stdout
    assert len(heaps_of_threads(maps)) == 1


def test_a_deleted_topic_leaves_no_message_in_memory(start_nsqd: StartNsqd) -> None:
    nsqd = start_nsqd()
    nsqd.post("/topic/create?topic=t")
    nsqd.post("/channel/create?topic=t&channel=c")
    nsqd.post("/pub?topic=t&defer=3600000", b"x")  # sets a timer of the channel for an hour from now
    for _ in range(REQUESTS):
        nsqd.post("/pub?topic=t", b"x")
    assert living_objects(nsqd)[BATCH] > REQUESTS
    nsqd.post("/topic/delete?topic=t")
    assert living_objects(nsqd)[BATCH] == 0
