"""/debug: its pages, and that they describe this process."""

from __future__ import annotations

import gc
import json
import sys
import threading

import pytest
import trio
import trio.testing

from nsqcommon import daemon
from nsqd.http import debug
from tests.nsqd.http.conftest import Nsqd, code
from tests.support.asgi import ask


def test_the_index_names_every_profile(nsqd: Nsqd) -> None:
    answer = nsqd.get("/debug/pprof/")
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    for name in ("goroutine", "heap", "block", "threadcreate", "profile", "cmdline"):
        assert f'href="{name}?debug=1"'.encode() in answer.body
        assert answer.headers["x-content-type-options"] == "nosniff"
    assert nsqd.get("/debug/pprof").headers["location"] == "/debug/pprof/"


def test_profiles_are_text_only_where_that_is_asked_for(nsqd: Nsqd) -> None:
    for name in ("heap", "threadcreate"):  # the others need a running trio: tests/nsqd/whole/test_operating.py
        path = f"/debug/pprof/{name}?force=true"  # there are many objects in a process that runs tests
        binary, readable = nsqd.get(path), nsqd.get(f"{path}&debug=1")
        assert (binary.status, binary.headers["content-type"]) == (200, "application/octet-stream")
        assert readable.headers["content-type"].startswith("text/plain")
        assert "x-nsq-content-type" not in readable.headers


def test_there_are_no_others(nsqd: Nsqd) -> None:
    assert nsqd.get("/debug/pprof/mutex").status == 404
    assert nsqd.get("/debug/pprof/trace").status == 404


def test_tasks_are_shown_as_a_tree() -> None:
    async def asleep() -> None:
        await trio.sleep_forever()

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(asleep, name="somebody asleep")
            await trio.testing.wait_all_tasks_blocked()
            shown.extend(debug.tasks_and_threads())
            nursery.cancel_scope.cancel()

    shown: list[str] = []
    trio.run(main)
    place = next(number for number, line in enumerate(shown) if line.strip() == "somebody asleep")
    assert shown[place].startswith("  " * 3)
    assert any("test_debug.py" in line and "asleep" in line for line in shown[place:])


def test_heap_counts_by_type() -> None:
    class Peculiar:
        def __init__(self) -> None:
            self.others: list[object] = []

    kept = [Peculiar() for _ in range(5000)]
    assert any(
        line.split() == [str(len(kept)), f"{__name__}.{Peculiar.__qualname__}"] for line in filter(None, debug.heap())
    )


@pytest.mark.parametrize(("query", "status"), [("", 409), ("?force=yes", 409), ("?force=true", 200)])
def test_many_objects_are_listed_only_by_force(
    nsqd: Nsqd, monkeypatch: pytest.MonkeyPatch, query: str, status: int
) -> None:
    monkeypatch.setattr(debug, "blocks_since_start", lambda: 1_234_567)
    assert nsqd.get(f"/debug/pprof/heap{query}").status == status


def test_a_few_objects_are_listed_at_once(nsqd: Nsqd, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(debug, "blocks_since_start", lambda: debug.MOST_OBJECTS)
    assert nsqd.get("/debug/pprof/heap").status == 200


def test_a_refused_listing_says_what_it_would_cost(nsqd: Nsqd, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(debug, "blocks_since_start", lambda: 1_234_567)
    assert json.loads(nsqd.get("/debug/pprof/heap").body) == {
        "message": "TOO_MANY_OBJECTS",
        "reason": "up to 1,234,567 objects: listing them stops the broker for up to 123 ms; add force=true to do it anyway",
    }


def test_blocks_are_those_since_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(daemon, "_blocks_at_start", sys.getallocatedblocks())
    assert daemon.blocks_since_start() < debug.MOST_OBJECTS
    kept = [object() for _ in range(2 * debug.MOST_OBJECTS)]
    assert daemon.blocks_since_start() > debug.MOST_OBJECTS
    del kept


def test_a_profile_names_where_the_time_goes() -> None:
    done = threading.Event()

    def toil() -> None:
        while not done.is_set():
            sum(range(1000))

    thread = threading.Thread(target=toil)
    thread.start()
    try:
        assert thread.ident is not None
        # A busy machine may let it look twice only.
        found = (next(debug.sampled_stacks(thread.ident, 0.3)).rpartition(" ") for _ in range(20))
        assert any("toil" in stack and int(count) >= 3 for stack, _, count in found)
    finally:
        done.set()
        thread.join()


def test_command_line_and_symbols(nsqd: Nsqd, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["nsqd", "--log-level=debug"])
    answer = nsqd.get("/debug/pprof/cmdline")
    assert answer.body == b"nsqd\0--log-level=debug"
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert "x-nsq-content-type" not in answer.headers
    assert nsqd.get("/debug/pprof/symbol").body == b"num_symbols: 1\n"
    assert nsqd.post("/debug/pprof/symbol").body == b"num_symbols: 1\n"


# What the process has freed since it called `tune_garbage_collection`, in some other test, makes its blocks fewer than 0.
@pytest.mark.parametrize(("small_heap", "collected"), [(1 << 40, 2), (-1 << 40, 1)], ids=["small heap", "large heap"])
def test_free_memory_frees_what_takes_no_time_and_answers_500(
    nsqd: Nsqd, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest, small_heap: int, collected: int
) -> None:
    monkeypatch.setattr(daemon, "SMALL_HEAP", small_heap)
    gc.disable()  # no collection but the one that was asked for
    request.addfinalizer(gc.enable)
    before = [it["collections"] for it in gc.get_stats()]
    answer = nsqd.post("/debug/freememory")
    assert (answer.status, answer.body) == (500, code("INTERNAL_ERROR"))
    after = [it["collections"] for it in gc.get_stats()]
    assert [now > then for now, then in zip(after, before, strict=True)][collected:] == [True] + [False] * (
        2 - collected
    )


def test_block_rate(nsqd: Nsqd) -> None:
    assert nsqd.put("/debug/setblockrate?rate=5").body == code("INTERNAL_ERROR")
    answer = nsqd.put("/debug/setblockrate?rate=x%22")
    assert (answer.status, answer.body) == (
        400,
        b'invalid block rate : strconv.Atoi: parsing "x\\"": invalid syntax',
    )
    assert nsqd.put("/debug/setblockrate").body.endswith(b'parsing "": invalid syntax')
    form = {"content-type": "application/x-www-form-urlencoded"}
    assert ask(nsqd.app, "PUT", "/debug/setblockrate?rate=x", b"rate=7", form).status == 500
