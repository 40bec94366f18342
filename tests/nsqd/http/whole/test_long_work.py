"""No request holds a turn for long, however many messages a channel has: entries that are looked at are counted."""

from __future__ import annotations

import asyncio
import gc
import json
import sys
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from unittest.mock import Mock

import pytest
from pyroaring import BitMap64

from nsqcommon.wire.headers import encode_headers
from nsqcommon.wire.limits import SizeLimits
from nsqd.broker import operator_actions
from nsqd.broker.cancel_and_reschedule import Recall
from nsqd.broker.consumer import Consumer
from nsqd.broker.journal_replay import replay
from nsqd.broker.operator_actions import CancelOutcome
from nsqd.broker.reclaimer import FREED_IN_TURN
from nsqd.broker.rules import ChannelRules
from nsqd.http import HistoryReads
from nsqd.log.journal.rotation import JournalRotation
from tests.nsqd.http.conftest import Nsqd
from tests.nsqd.http.fake_history import at_once
from tests.nsqd.http.whole.test_stats import CLIENT
from tests.nsqd.looks import Looks
from tests.support.asgi import Answer, ask_in_loop
from tests.support.given_rules import GivenRules
from tests.support.node import Node

if TYPE_CHECKING:
    from nsqd.broker.change import Change
    from nsqd.broker.channel import Channel
    from nsqd.broker.store import Entry

COUNT: Final = 20_000  # messages
MOST: Final = 10_000  # that may be looked at between two turns: some ten milliseconds
LIMITS: Final = SizeLimits(max_message=100, max_body=1_000_000)
CHANNEL: Final = "topic=t&channel=c"
DEFER: Final = 600_000


class Told:
    """The journal, and of each turn how much it was told."""

    def __init__(self, nsqd: Nsqd) -> None:
        self.changes: list[Change] = []
        self.most_in_turn = 0
        self._nsqd = nsqd
        self._turns, self._in_turn = nsqd.turn.finished, 0
        nsqd.store.record = self._record  # type: ignore[method-assign]

    def _record(self, change: Change, *, urgent: bool) -> None:
        if self._turns != self._nsqd.turn.finished:
            self._turns, self._in_turn = self._nsqd.turn.finished, 0
        self._in_turn += 1
        self.most_in_turn = max(self.most_in_turn, self._in_turn)
        self.changes.append(change)

    def words(self) -> list[str]:
        return [change[0] for change in self.changes]


@pytest.fixture
def nsqd() -> Nsqd:
    past = Mock(log_id="1f0c2d", first=0, retention_time=0, retention_bytes=0)
    nsqd = Nsqd(HistoryReads(Mock(node="n", find=Mock(return_value=past)), at_once), LIMITS)
    nsqd.post("/topic/create?topic=t")
    nsqd.post(f"/channel/create?{CHANNEL}")
    return nsqd


def channel_of(nsqd: Nsqd) -> Channel:
    return nsqd.broker.topics["t"].channels["c"]


def publish(nsqd: Nsqd, count: int, arguments: str = "") -> None:
    body = count.to_bytes(4, "big") + b"\0\0\0\1x" * count
    assert nsqd.post(f"/mpub?topic=t&binary=true{arguments}", body).status == 200


def take(nsqd: Nsqd, count: int) -> tuple[Consumer, list[bytes]]:
    """Let a consumer have so many messages. Return their ids."""
    got: list[bytes] = []
    consumer = Consumer(send=got.extend, close=lambda: None, describe=lambda: CLIENT, msg_timeout=60.0)
    consumer.ready_count = count
    channel = channel_of(nsqd)
    channel.join(consumer)
    channel.schedule_delivery()
    while consumer.in_flight < count:
        before = consumer.in_flight
        nsqd.turn.finish()
        consumer.unsent_bytes = 0
        channel.schedule_delivery()
        assert consumer.in_flight > before
    consumer.ready_count = 0
    return consumer, got[1::3]


def retry_all(nsqd: Nsqd) -> None:
    consumer, ids = take(nsqd, COUNT)
    for message_id in ids:
        channel_of(nsqd).requeue(consumer, message_id, 0, nsqd.broker.turn.now)


def bury_all(nsqd: Nsqd) -> list[bytes]:
    consumer, ids = take(nsqd, COUNT)
    for message_id in ids:
        channel_of(nsqd).bury(consumer, message_id, "bad", nsqd.broker.turn.now)
    return ids


def counted(nsqd: Nsqd) -> Looks:
    looks = Looks()
    looks.watch(channel_of(nsqd))
    return looks


def during(nsqd: Nsqd, looks: Looks, method: str, target: str) -> Any:
    answer = looks.during(ask_in_loop(nsqd.app, method, target))
    assert answer is not None
    assert answer.status == 200, answer
    return json.loads(answer.body)


def sums(**counts: int) -> dict[str, int]:
    return {"in_flight": 0, "buried": 0, "done": 0, "unknown": 0} | counts


def test_taking_back_what_is_finished_looks_at_no_delivery_for_each(nsqd: Nsqd) -> None:
    publish(nsqd, 10_000)
    consumer, ids = take(nsqd, 10_000)
    channel_of(nsqd).finish(consumer, ids)
    publish(nsqd, 2_000)
    take(nsqd, 2_000)
    looks = counted(nsqd)
    found = during(nsqd, looks, "POST", f"/message/cancel?{CHANNEL}&from=0&to=10000")
    assert found == sums(cancelled=0, done=10_000)
    found = during(nsqd, looks, "POST", f"/message/cancel?{CHANNEL}&from=2001&to=12000")
    assert found == sums(cancelled=0, done=7_999, in_flight=2_000)
    assert looks.count <= MOST


@pytest.mark.parametrize(("what", "done"), [("cancel", "cancelled"), ("due", "moved")])
@pytest.mark.parametrize("delay", [0, DEFER])
def test_a_batch_of_any_length_is_dealt_with_in_slices(nsqd: Nsqd, what: str, done: str, delay: int) -> None:
    publish(nsqd, COUNT, f"&key=k&defer={DEFER}")
    looks, told = counted(nsqd), Told(nsqd)
    before = nsqd.turn.finished
    assert during(nsqd, looks, "POST", f"/message/{what}?topic=t&key=k&defer={delay}") == sums(**{done: 1})
    assert nsqd.turn.finished - before >= 10
    assert looks.most <= MOST
    most = max(len(change[-1]) for change in told.changes if isinstance(change[-1], list | tuple))
    assert most <= 3 * 2_000
    channel = channel_of(nsqd)
    is_due = what == "due" and not delay
    assert (len(channel.ledger.deferred), len(channel.ledger.retries)) == (
        (0, COUNT) if is_due else (0, 0) if what == "cancel" else (COUNT, 0)
    )


def test_a_turn_passes_some_thousands_of_retries_that_were_taken_out(nsqd: Nsqd) -> None:
    """They lie between others, so each message that is taken has some on its way."""
    for _ in range(3):
        publish(nsqd, COUNT)
    channel = channel_of(nsqd)
    operator_actions.seek(channel, 3 * COUNT)
    operator_actions.redeliver(channel, range(3 * COUNT))
    operator_actions.cancel(channel, BitMap64(number for number in range(3 * COUNT // 2) if number % 1_000))
    looks = counted(nsqd)
    consumer = Consumer(send=lambda pieces: None, close=lambda: None, describe=lambda: CLIENT, msg_timeout=60.0)
    consumer.ready_count = 100
    channel.join(consumer)
    channel.schedule_delivery()
    while consumer.in_flight < 100:
        before = looks.count
        nsqd.turn.finish()
        assert looks.count - before <= MOST + 3_000  # two looks at each
        nsqd.broker.turn.now += 0.001
        nsqd.broker.expire()
    assert channel.in_flight.lowest() == 0


def test_old_files_are_passed_in_pieces_where_every_other_message_was_taken_back() -> None:
    hour = 3_600_000_000_000
    node = Node(policy=GivenRules(ChannelRules(ttl=hour)))
    channel = node.broker.topic("t").channel("c")
    for _ in range(COUNT // 2_000):
        node.broker.topic("t").publish(b"\0\0\0\1x" * 2_000, range(0, 10_001, 5))
        node.turn()
    operator_actions.cancel(channel, BitMap64(range(0, COUNT, 2)))
    node.broker.record_progress()
    node.turn()
    told, depth = len(node.store.journal), channel.depth
    node.now += 2 * 3_600
    node.broker.turn.now, node.broker.turn.timestamp = node.now, node.broker.turn.timestamp + 2 * hour
    while channel.depth:
        node.broker.expire()
        node.broker.record_progress()
        node.store.write_journal(force=True)
        assert depth - 6_000 <= channel.depth < depth
        depth = channel.depth
    assert channel.policy_counts == {"ttl, dropped": COUNT // 2}
    assert max(len(change[-1]) for change in node.store.journal[told:] if change[0] == "progress") <= 2 * 6_000
    node.crash()
    assert node.broker.topics["t"].channels["c"].depth == 0


def test_one_of_many_is_moved_without_a_look_at_the_others(nsqd: Nsqd) -> None:
    publish(nsqd, COUNT)
    retry_all(nsqd)
    looks = counted(nsqd)
    assert during(nsqd, looks, "POST", f"/message/due?{CHANNEL}&sequence=7&defer={DEFER}") == sums(moved=1)
    assert during(nsqd, looks, "POST", f"/message/cancel?{CHANNEL}&sequence=9999") == sums(cancelled=1)
    assert during(nsqd, looks, "POST", f"/message/due?{CHANNEL}&sequence=7&defer=0") == sums(moved=1)
    assert looks.count <= 100
    assert (len(channel_of(nsqd).ledger.retries), channel_of(nsqd).ledger.retries.attempts_of(7)) == (COUNT - 1, 1)


def test_a_deferred_one_may_be_moved_again_and_again(nsqd: Nsqd) -> None:
    publish(nsqd, COUNT, f"&key=k&defer={DEFER}")
    looks = counted(nsqd)
    for number in range(50):
        target = f"/message/due?{CHANNEL}&sequence={number % 5}&defer={DEFER + number}"
        assert during(nsqd, looks, "POST", target) == sums(moved=1)
    assert looks.count <= 1_000
    assert len(channel_of(nsqd).ledger.deferred) == COUNT


def test_neighbours_ahead_of_the_cursor_are_one_word_of_the_journal(nsqd: Nsqd) -> None:
    publish(nsqd, COUNT)
    told = Told(nsqd)
    found = during(nsqd, counted(nsqd), "POST", f"/message/cancel?{CHANNEL}&from=5000&to=15000")
    assert found == sums(cancelled=10_000)
    assert told.words().count("skip") <= 5
    assert channel_of(nsqd).depth == 10_000


def test_what_no_channel_has_got_yet_is_taken_back_in_slices(nsqd: Nsqd) -> None:
    nsqd.post("/topic/pause?topic=t")
    publish(nsqd, COUNT, f"&key=k&defer={DEFER}")
    told = Told(nsqd)
    assert during(nsqd, Looks(), "POST", "/message/cancel?topic=t&key=k") == sums(cancelled=1)
    assert (told.words().count("cancel"), told.most_in_turn) == (COUNT, 2_000)
    nsqd.post("/topic/unpause?topic=t")
    assert (channel_of(nsqd).depth, len(channel_of(nsqd).ledger.deferred)) == (0, 0)


@pytest.mark.parametrize(("path", "done"), [("kick", "kicked"), ("discard", "discarded")])
def test_an_id_is_looked_for_in_pieces(nsqd: Nsqd, path: str, done: str) -> None:
    publish(nsqd, 3 * COUNT // 2)
    ids = bury_all(nsqd)
    looks = counted(nsqd)
    found = during(nsqd, looks, "POST", f"/channel/{path}?{CHANNEL}&id={ids[-1].decode()}&id={'0' * 16}")
    assert (found[done], found["missing"]) == (1, 1)
    assert looks.most <= 17_000  # a block of buried messages


def test_what_is_buried_is_told_as_ranges_without_a_look_at_each(nsqd: Nsqd) -> None:
    publish(nsqd, COUNT)
    bury_all(nsqd)
    looks = counted(nsqd)
    assert during(nsqd, looks, "GET", f"/channel/state?{CHANNEL}")["buried"] == [[0, COUNT]]
    assert looks.count == 0


def test_going_on_elsewhere_and_once_more_look_at_what_they_name_only(nsqd: Nsqd) -> None:
    publish(nsqd, COUNT)
    retry_all(nsqd)
    publish(nsqd, 2, f"&key=k&defer={DEFER}")
    channel = channel_of(nsqd)
    looks = counted(nsqd)
    assert channel.ledger.waits_before(10)
    assert operator_actions.redeliver(channel, [5, 6, COUNT]) == (0, 3, 0)
    assert looks.count == 0


@pytest.mark.parametrize("place", ["deferred", "retries"])
def test_a_new_journal_passes_over_what_was_taken_out_some_at_a_time(nsqd: Nsqd, place: str) -> None:
    publish(nsqd, COUNT, f"&key=k&defer={DEFER}" if place == "deferred" else "")
    if place == "retries":
        retry_all(nsqd)
    while channel_of(nsqd).ledger.deferred.has_runs:
        nsqd.broker.expire()
    looks, rotation = counted(nsqd), JournalRotation()
    for start, end in ((0, 9_000), (9_000, 12_000)):  # fewer at once than are worth dropping at once
        assert operator_actions.move(channel_of(nsqd), BitMap64(range(start, end)), 2 * DEFER) == {
            CancelOutcome.MOVED: end - start
        }
    rotation.begin(Path("journal"), ["t"])
    told: list[Entry] = []
    looks.turn()
    looks.most = 0
    while rotation.lacks_snapshots:
        told += rotation.next_changes(nsqd.broker.snapshot_topic)
        rotation.written()
        looks.turn()
    waiting = replay(told)["t"].channels["c"].waiting
    assert sum(bool(due) for _, due in waiting.values()) == (COUNT if place == "deferred" else 12_000)
    assert len(waiting) == COUNT
    assert looks.most <= MOST


def defer_each(nsqd: Nsqd) -> None:
    for start in range(0, COUNT, 1_000):
        for number in range(start, start + 1_000):
            nsqd.broker.topics["t"].publish(b"\0\0\0\1x", (0, 5), DEFER, b"k-%d" % number, b"")
        nsqd.turn.finish()


def defer_batch(nsqd: Nsqd) -> None:
    publish(nsqd, COUNT, f"&defer={DEFER}")
    while channel_of(nsqd).ledger.deferred.has_runs:
        nsqd.broker.expire()


def hold_all(nsqd: Nsqd) -> None:
    publish(nsqd, COUNT)
    ready = 2_500
    for _ in range(0, COUNT, ready):
        consumer = Consumer(send=lambda pieces: None, close=lambda: None, describe=lambda: CLIENT, msg_timeout=60.0)
        consumer.ready_count = ready
        channel_of(nsqd).join(consumer)
        channel_of(nsqd).schedule_delivery()
        nsqd.turn.finish()
    assert len(channel_of(nsqd).in_flight) == COUNT


def retry_batch(nsqd: Nsqd) -> None:
    publish(nsqd, COUNT)
    retry_all(nsqd)
    for consumer in list(channel_of(nsqd).consumers):
        channel_of(nsqd).leave(consumer)


@pytest.fixture
def no_collector() -> Iterator[None]:
    """Keep the garbage collector from freeing what other tests have left: it isn't what a request has freed."""
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("no_collector")
@pytest.mark.parametrize("fill", [defer_each, defer_batch, hold_all, retry_batch])
@pytest.mark.parametrize("target", [f"/channel/empty?{CHANNEL}", f"/channel/delete?{CHANNEL}", "/topic/delete?topic=t"])
def test_what_nobody_needs_any_more_is_freed_some_at_a_time(
    nsqd: Nsqd, target: str, fill: Callable[[Nsqd], None]
) -> None:
    fill(nsqd)
    blocks = [sys.getallocatedblocks()]
    for asked in (target, "/topic/create?topic=t", f"/channel/create?{CHANNEL}"):
        assert nsqd.post(asked).status == 200
        blocks.append(sys.getallocatedblocks())
    assert len(channel_of(nsqd).in_flight) + channel_of(nsqd).depth + len(channel_of(nsqd).ledger.deferred) == 0
    publish(nsqd, 5, f"&key=new&defer={DEFER}")
    while not nsqd.broker.turn.reclaimer.is_empty:
        blocks.append(sys.getallocatedblocks())
        nsqd.turn.finish()
    blocks.append(sys.getallocatedblocks())
    freed = [before - after for before, after in pairwise(blocks)]
    assert max(freed) < 2 * FREED_IN_TURN + 2_000
    assert sum(freed) > COUNT * 0.9
    assert len(channel_of(nsqd).ledger.deferred) == 5


def test_the_collector_meets_what_was_deferred_together_some_thousands_at_a_time(nsqd: Nsqd) -> None:
    gc.collect()
    gc.disable()  # the interpreter counts objects, and each thousand messages are one
    try:
        publish(nsqd, COUNT, f"&defer={DEFER}")
        while channel_of(nsqd).ledger.deferred.has_runs:
            nsqd.broker.expire()
        young = [it for generation in (0, 1) for it in gc.get_objects(generation) if isinstance(it, list)]
    finally:
        gc.enable()
    assert sum(map(len, young)) < COUNT / 2


def test_messages_become_due_and_time_out_some_thousands_at_a_time(nsqd: Nsqd) -> None:
    publish(nsqd, COUNT)
    take(nsqd, COUNT)
    channel, broker = channel_of(nsqd), nsqd.broker
    publish(nsqd, COUNT, "&defer=1000")
    broker.turn.now += 100
    before, steps = 0, 0
    while channel.ledger.deferred or channel.in_flight:
        broker.expire()
        assert len(channel.ledger.retries) - before <= MOST
        before, steps = len(channel.ledger.retries), steps + 1
        assert steps < 100
    assert len(channel.ledger.retries) == 2 * COUNT
    assert channel.timeout_count == COUNT


# Seen and stopped


def test_long_work_is_among_the_jobs_and_ends_where_somebody_stops_it(nsqd: Nsqd) -> None:
    publish(nsqd, COUNT, f"&key=k&defer={DEFER}")
    seen: list[Any] = []

    async def both() -> Answer | None:
        request = asyncio.ensure_future(ask_in_loop(nsqd.app, "POST", "/message/cancel?topic=t&key=k"))
        for _ in range(3):
            await asyncio.sleep(0)
        for method, path in (("GET", "jobs"), ("POST", "jobs/stop"), ("POST", "jobs/stop")):
            answer = await ask_in_loop(nsqd.app, method, f"/channel/{path}?{CHANNEL}")
            assert answer is not None
            seen.append(json.loads(answer.body))
        return await request

    answer = asyncio.run(both())
    (job,) = seen[0]["jobs"]
    assert (job["verb"], job["limit"], job["who"], job["ended_at"]) == ("cancel", COUNT, "10.0.0.1:5555", None)
    assert 0 < job["done"] < COUNT
    assert seen[1]["job"]["verb"] == "cancel"
    assert seen[2] == {"job": None}
    assert answer is not None
    said = json.loads(answer.body)
    assert (answer.status, said["message"], said["count"]) == (409, "STOPPED", COUNT)
    assert len(channel_of(nsqd).ledger.deferred) == COUNT - said["done"] > 0
    assert json.loads(nsqd.get(f"/channel/jobs?{CHANNEL}").body) == {"jobs": []}


def test_long_work_ends_when_its_client_goes(nsqd: Nsqd) -> None:
    publish(nsqd, COUNT, f"&key=k&defer={DEFER}")

    async def both() -> Answer | None:
        is_gone = asyncio.Event()
        asyncio.get_running_loop().call_later(0, is_gone.set)
        return await ask_in_loop(nsqd.app, "POST", "/message/cancel?topic=t&key=k", is_gone=is_gone)

    assert asyncio.run(both()) is None
    assert 0 < len(channel_of(nsqd).ledger.deferred) < COUNT
    assert not channel_of(nsqd).recalls


def test_a_channel_that_is_deleted_or_gone_on_meanwhile_is_no_trouble(nsqd: Nsqd) -> None:
    nsqd.post("/channel/create?topic=t&channel=other")
    publish(nsqd, COUNT, f"&key=k&defer={DEFER}")

    async def both() -> Answer | None:
        request = asyncio.ensure_future(ask_in_loop(nsqd.app, "POST", "/message/cancel?topic=t&key=k"))
        for _ in range(3):
            await asyncio.sleep(0)
        await ask_in_loop(nsqd.app, "POST", f"/channel/delete?{CHANNEL}")
        await ask_in_loop(nsqd.app, "POST", "/channel/create?topic=t&channel=new")
        return await request

    answer = asyncio.run(both())
    assert answer is not None
    assert json.loads(answer.body) == sums(cancelled=2, done=1)
    assert not nsqd.broker.topics["t"].channels["other"].ledger.deferred


def test_what_has_its_own_time_to_live_is_judged_as_far_as_it_is_delivered(nsqd: Nsqd) -> None:
    headers = encode_headers({f"h{number}": b"" for number in range(63)} | {"nsq-ttl": b"1000"})
    topic = nsqd.broker.topics["t"]
    for _ in range(COUNT // 2_000):
        payload = b"\0\0\0\1x" * 2_000
        topic.publish(payload, range(0, len(payload) + 1, 5), headers=headers * 2_000)
    consumer = Consumer(send=lambda pieces: None, close=lambda: None, describe=lambda: CLIENT, msg_timeout=60.0)
    consumer.ready_count = COUNT
    channel_of(nsqd).join(consumer)
    steps = 0
    while consumer.in_flight < COUNT:
        before = consumer.in_flight
        nsqd.broker.turn.now += 0.001
        nsqd.broker.expire()
        nsqd.turn.finish()
        consumer.unsent_bytes = 0
        assert before < consumer.in_flight <= before + 2_000
        steps += 1
    assert steps >= 10


def test_a_topic_that_is_made_anew_meanwhile_keeps_its_messages_and_keys() -> None:
    node = Node()
    topic = node.broker.topic("t")
    topic.publish(b"\0\0\0\1x" * 4_500, range(0, 5 * 4_500 + 1, 5), 0, b"k", b"")
    node.turn()
    recall = Recall(topic, range(4_500), key=b"k", channel="", delay_ms=-1, who="", started_at=0)
    recall.step()
    node.broker.delete_topic("t")
    topic = node.broker.topic("t")
    topic.publish(b"\0\0\0\1x" * 4_500, range(0, 5 * 4_500 + 1, 5), 0, b"new", b"")
    node.turn()
    while not recall.is_over:
        recall.step()
    node.turn()
    node.crash()
    topic = node.broker.topic("t")
    assert topic.knows_key(b"new")
    assert topic.channel("c").depth == 4_500


def test_who_takes_messages_of_a_topic_back_that_is_deleted_meanwhile_hears_that(nsqd: Nsqd) -> None:
    publish(nsqd, COUNT, f"&key=k&defer={DEFER}")

    async def both() -> Answer | None:
        request = asyncio.ensure_future(ask_in_loop(nsqd.app, "POST", "/message/cancel?topic=t&key=k"))
        for _ in range(3):
            await asyncio.sleep(0)
        await ask_in_loop(nsqd.app, "POST", "/topic/delete?topic=t")
        return await request

    answer = asyncio.run(both())
    assert answer is not None
    assert (answer.status, json.loads(answer.body)) == (404, {"message": "TOPIC_NOT_FOUND"})


def test_the_key_stays_if_a_channel_came_meanwhile_that_has_some_of_the_messages() -> None:
    topic = (node := Node()).broker.topic("t")
    topic.channel("c")
    topic.publish(b"\0\0\0\1x" * 4_500, range(0, 5 * 4_500 + 1, 5), 0, b"k", b"")
    node.turn()
    recall = Recall(topic, range(4_500), key=b"k", channel="", delay_ms=-1, who="", started_at=0)
    recall.step()
    topic.channel("late", cursor=0)
    while not recall.is_over:
        recall.step()
    assert topic.channels["late"].depth > 0
    assert topic.knows_key(b"k")


def test_one_message_in_hundreds_of_channels_is_among_the_jobs() -> None:
    topic = (node := Node()).broker.topic("t")
    channels = [topic.channel(f"c{number}") for number in range(300)]
    topic.publish(b"\0\0\0\1x", (0, 5), 0, b"k", b"")
    node.turn()
    recall = Recall(topic, range(1), key=b"k", channel="", delay_ms=-1, who="", started_at=0)
    recall.step()
    assert not recall.is_over
    assert all(recall in channel.recalls for channel in channels)


@pytest.mark.parametrize("ends", ["stopped", "gone"])
def test_what_was_done_before_long_work_was_ended_is_among_the_changes(nsqd: Nsqd, ends: str) -> None:
    publish(nsqd, COUNT, f"&key=k&defer={DEFER}")

    async def both() -> None:
        is_gone = asyncio.Event()
        target = "/message/cancel?topic=t&key=k"
        request = asyncio.ensure_future(ask_in_loop(nsqd.app, "POST", target, is_gone=is_gone))
        for _ in range(3):
            await asyncio.sleep(0)
        if ends == "gone":
            is_gone.set()
        else:
            await ask_in_loop(nsqd.app, "POST", f"/channel/jobs/stop?{CHANNEL}")
        await request

    asyncio.run(both())
    assert len(channel_of(nsqd).ledger.deferred) > 0
    changes = json.loads(nsqd.get("/changes").body)["changes"]
    assert "cancel" in [change["what"] for change in changes]
