"""What ports of nsqd usually miss about topics, channels and the disk, or what nsqd does better than NSQ.

The numbers are rows of docs/reference/nsq-traps.md.
"""

from __future__ import annotations

import signal
import time
from itertools import count
from pathlib import Path

import pytest

from nsqcommon.wire.commands import dpub, mpub, pub, sub, touch
from tests.support.brokers import StartNsqd
from tests.support.lateness import is_within
from tests.support.process import Nsqd, eventually

EXACT = 0.05  # seconds that a timeout or deferral may be late


# Time


def test_trap_26_a_timeout_on_a_fresh_channel_is_exact(nsqd: Nsqd, topic: str) -> None:
    channels = count()

    def lateness() -> float:
        channel = f"c{next(channels)}"
        with nsqd.connect() as consumer:
            consumer.identify(msg_timeout=1000)
            consumer.subscribe(topic, channel, ready=1)
            began = time.monotonic()
            nsqd.connect().publish(topic, b"x")
            consumer.message()
            assert consumer.message().attempts == 2
            took = time.monotonic() - began
        nsqd.post(f"/channel/delete?topic={topic}&channel={channel}")
        assert took >= 1.0
        return took - 1.0

    assert is_within(EXACT, lateness)


def test_trap_26_touch_gives_more_time(nsqd: Nsqd, topic: str) -> None:
    consumer = nsqd.connect()
    consumer.identify(msg_timeout=2000)
    consumer.subscribe(topic, ready=1)

    def lateness() -> float:
        nsqd.connect().publish(topic, b"x")
        message = consumer.message()
        assert consumer.stays_silent(0.5)
        began = time.monotonic()
        consumer.send(touch(message.id))
        again = consumer.message()
        took = time.monotonic() - began
        assert again.attempts == 2
        consumer.finish(again)
        assert took >= 2.0
        return took - 2.0

    assert is_within(EXACT, lateness)


@pytest.mark.parametrize("delay_ms", [1, 100, 400])
def test_trap_26_a_deferral_on_a_fresh_channel_is_exact(nsqd: Nsqd, topic: str, delay_ms: int) -> None:
    topics = count()

    def lateness() -> float:
        consumer, name = nsqd.connect(), f"{topic[-60:]}-{next(topics)}"
        consumer.subscribe(name, ready=1)
        began = time.monotonic()
        nsqd.connect().defer(name, delay_ms, b"x")
        consumer.message()
        late = time.monotonic() - began - delay_ms / 1000
        assert late >= 0
        return late

    assert is_within(EXACT, lateness)


def test_trap_26_a_requeue_with_a_delay_is_exact(nsqd: Nsqd, topic: str) -> None:
    consumer = nsqd.connect()
    consumer.subscribe(topic, ready=1)

    def lateness() -> float:
        nsqd.connect().publish(topic, b"x")
        message = consumer.message()
        began = time.monotonic()
        consumer.requeue(message, 300)
        again = consumer.message()
        took = time.monotonic() - began
        assert again.attempts == 2
        consumer.finish(again)
        assert took >= 0.3
        return took - 0.3

    assert is_within(EXACT, lateness)


def test_trap_27_a_deferral_survives_an_overflow_of_memory(start_nsqd: StartNsqd) -> None:
    nsqd = start_nsqd("mem-queue-size=0")
    consumer = nsqd.connect()
    consumer.subscribe("t", ready=10)

    def lateness() -> float:
        began = time.monotonic()
        consumer.send(dpub("t", 500, b"later"), pub("t", b"now"))
        assert (consumer.response(), consumer.response()) == (b"OK", b"OK")
        now, later = consumer.messages(2)
        took = time.monotonic() - began
        assert (now.body, later.body) == (b"now", b"later")
        consumer.finish(now, later)
        assert took >= 0.5
        return took - 0.5

    assert is_within(EXACT, lateness)


@pytest.mark.parametrize("end", ["stop", "kill"])
def test_trap_27_a_deferral_survives_a_restart(start_nsqd: StartNsqd, end: str) -> None:
    nsqd, topics = start_nsqd(), count()

    def lateness() -> float:
        name = f"t{next(topics)}"  # a kill may undo the last FIN, so another round has another topic
        with nsqd.connect() as client:
            client.subscribe(name)
            client.defer(name, 3_600_000, b"much later")
            began = time.monotonic()
            client.defer(name, 2000, b"later")
        getattr(nsqd, end)()
        nsqd.start()
        assert nsqd.channel(name)["deferred_count"] >= 1
        with nsqd.connect() as consumer:
            consumer.subscribe(name, ready=1)
            subscribed = time.monotonic()
            message = consumer.message()
            came = time.monotonic()
            assert (message.body, message.attempts) == (b"later", 1)
        assert came - began >= 2.0
        return came - max(began + 2.0, subscribed)  # the start may have taken longer than the delay

    assert is_within(2 * EXACT, lateness)


def test_trap_27_the_clock_stands_still_while_there_is_no_channel(nsqd: Nsqd, topic: str) -> None:
    topics = count()

    def lateness() -> float:
        client, name = nsqd.connect(), f"{topic[-60:]}-{next(topics)}"
        client.defer(name, 400, b"x")
        assert nsqd.topic(name)["depth"] == 1
        time.sleep(0.5)  # until the deferral would be over
        began = time.monotonic()
        client.subscribe(name, ready=1)
        client.message()
        late = time.monotonic() - began - 0.4
        assert late >= 0
        return late

    assert is_within(EXACT, lateness)


def test_trap_27_the_clock_stands_still_while_the_topic_is_paused(nsqd: Nsqd, topic: str) -> None:
    client = nsqd.connect()
    client.subscribe(topic, ready=1)

    def lateness() -> float:
        nsqd.post(f"/topic/pause?topic={topic}")
        client.defer(topic, 300, b"x")
        assert client.stays_silent(0.4)
        began = time.monotonic()
        nsqd.post(f"/topic/unpause?topic={topic}")
        message = client.message()
        late = time.monotonic() - began - 0.3
        client.finish(message)
        assert late >= 0
        return late

    assert is_within(EXACT, lateness)


# Topics and channels


def test_trap_28_the_first_channel_gets_the_backlog(nsqd: Nsqd, topic: str) -> None:
    nsqd.connect().publish(topic, b"one", b"two", b"three")
    for channel in ("first", "second"):
        nsqd.post(f"/channel/create?topic={topic}&channel={channel}")
    assert [nsqd.channel(topic, it)["depth"] for it in ("first", "second")] == [3, 0]


def test_trap_29_empty_drops_what_is_in_flight_and_deferred(nsqd: Nsqd, topic: str) -> None:
    client = nsqd.connect()
    client.subscribe(topic, ready=2)
    client.publish(topic, *[b"x"] * 5)
    client.defer(topic, 60_000, b"later")
    old, _ = client.messages(2)
    nsqd.post(f"/channel/empty?topic={topic}&channel=c")
    channel = nsqd.channel(topic)
    assert [channel[it] for it in ("depth", "in_flight_count", "deferred_count", "message_count")] == [0, 0, 0, 6]
    client.finish(old)
    assert client.error() == b"E_FIN_FAILED FIN " + old.id + b" failed ID not in flight"
    client.publish(topic, b"new", b"newer")
    assert client.bodies(2) == [b"new", b"newer"]


@pytest.mark.parametrize("what", ["channel", "topic"])
def test_trap_30_deleting_ends_consumers_without_a_word(nsqd: Nsqd, topic: str, what: str) -> None:
    consumer = nsqd.connect()
    consumer.subscribe(topic, ready=1)
    nsqd.post(f"/{what}/delete?topic={topic}&channel=c")
    assert consumer.closes()
    assert nsqd.channel(topic) is None


def test_trap_31_an_ephemeral_channel_lives_from_first_to_last_consumer(nsqd: Nsqd, topic: str) -> None:
    nsqd.post(f"/topic/create?topic={topic}")
    nsqd.post(f"/channel/create?topic={topic}&channel=c%23ephemeral")
    assert nsqd.channel(topic, "c#ephemeral")["client_count"] == 0
    consumer = nsqd.connect()
    consumer.subscribe(topic, "c#ephemeral")
    assert nsqd.channel(topic, "c#ephemeral")["client_count"] == 1
    consumer.close()
    eventually(lambda: nsqd.topic(topic)["channels"] == [])


def test_trap_31_an_ephemeral_topic_ends_with_its_last_channel(nsqd: Nsqd, topic: str) -> None:
    name = topic[-50:] + "#ephemeral"
    nsqd.connect().publish(name, b"x")
    assert nsqd.topic(name)["depth"] == 1
    consumer = nsqd.connect()
    consumer.subscribe(name, "c#ephemeral")
    consumer.close()
    eventually(lambda: nsqd.topic(name) is None)


def test_trap_32_an_ephemeral_topic_keeps_only_what_fits(start_nsqd: StartNsqd) -> None:
    nsqd = start_nsqd("mem-queue-size=3")
    nsqd.connect().publish("t#ephemeral", *[b"%d" % number for number in range(10)])
    topic = nsqd.topic("t#ephemeral")
    assert (topic["depth"], topic["message_count"]) == (3, 10)


def test_trap_32_an_ephemeral_channel_keeps_what_the_disk_lets_go_of(start_nsqd: StartNsqd) -> None:
    nsqd = start_nsqd("max-bytes-per-file=20000")
    lasting, passing = nsqd.connect(), nsqd.connect()
    lasting.subscribe("t", "lasting", ready=300)
    passing.subscribe("t", "passing#ephemeral", ready=1)
    bodies = [b"%01000d" % number for number in range(300)]
    publisher = nsqd.connect()
    for body in bodies:
        publisher.publish("t", body)
    lasting.finish(*lasting.messages(300))
    lasting.in_step()
    eventually(lambda: len(list(nsqd.data_path.rglob("0*.log"))) <= 2)
    assert nsqd.channel("t", "passing#ephemeral")["backend_depth"] == 0
    got = []
    for _ in bodies:
        message = passing.message()
        got.append(message.body)
        passing.finish(message)
    assert got == bodies


@pytest.mark.parametrize("name", ["t", "t#ephemeral"])
def test_trap_32_who_waits_is_served_before_anything_is_dropped(start_nsqd: StartNsqd, name: str) -> None:
    nsqd = start_nsqd("mem-queue-size=0")
    consumer = nsqd.connect()
    consumer.subscribe(name, "c#ephemeral", ready=100)
    consumer.in_step()
    bodies = [b"%d" % number for number in range(200)]
    nsqd.connect().publish(name, *bodies)
    assert consumer.bodies(100) == bodies[:100]
    channel = nsqd.channel(name, "c#ephemeral")
    assert [channel[it] for it in ("depth", "in_flight_count", "message_count")] == [0, 100, 200]


def test_trap_32_one_long_message_does_not_fill_an_ephemeral_topic(start_nsqd: StartNsqd) -> None:
    nsqd = start_nsqd("mem-queue-size=10")
    consumer, publisher = nsqd.connect(), nsqd.connect()
    consumer.subscribe("t#ephemeral", ready=2)
    publisher.publish("t#ephemeral", b"long")
    consumer.message()
    publisher.defer("t#ephemeral", 60_000, b"deferred")
    for number in range(40):
        publisher.publish("t#ephemeral", b"%d" % number)
        message = consumer.message()
        assert message.body == b"%d" % number
        consumer.finish(message)


# The disk


def test_trap_33_a_disk_that_does_not_write_is_said_to_everyone(start_nsqd: StartNsqd) -> None:
    nsqd = start_nsqd()
    nsqd.connect().publish("t", b"before")
    nsqd.limit_file_size(0)
    for command, word in ((pub("t", b"x"), b"PUB"), (mpub("t", [b"x", b"y"]), b"MPUB"), (dpub("t", 50, b"x"), b"DPUB")):
        client = nsqd.connect()
        client.send(command)
        error = client.error()
        assert error.startswith(b"E_%b_FAILED %b failed " % (word, word))
        assert b"file too large" in error.lower()
        assert client.closes()
    answer = nsqd.http("POST", "/pub?topic=t", b"x")
    assert (answer.status, answer.body) == (503, b'{"message":"EXITING"}')
    ping = nsqd.http("GET", "/ping")
    assert (ping.status, ping.body[:6]) == (500, b"NOK - ")
    assert nsqd.stats()["health"].startswith("NOK - ")


def test_trap_33_consuming_goes_on_without_the_disk(start_nsqd: StartNsqd) -> None:
    nsqd = start_nsqd()
    consumer = nsqd.connect()
    consumer.subscribe("t", ready=1)
    consumer.publish("t", *[b"%d" % number for number in range(100)])
    first = consumer.message()
    nsqd.limit_file_size(0)
    failing = nsqd.connect()
    failing.send(pub("t", b"x"))
    failing.error()
    consumer.finish(first)
    for number in range(1, 100):
        message = consumer.message()
        assert message.body == b"%d" % number
        consumer.finish(message)
    consumer.in_step()
    assert consumer.stays_silent(0.05)


def test_trap_33_a_disk_that_heals_is_healthy_again(start_nsqd: StartNsqd) -> None:
    nsqd = start_nsqd()
    nsqd.connect().publish("t", b"before")
    nsqd.limit_file_size(0)
    failing = nsqd.connect()
    failing.send(pub("t", b"refused"))
    failing.error()
    nsqd.limit_file_size(None)
    eventually(lambda: nsqd.http("POST", "/pub?topic=t", b"after").status == 200)  # nsqd tries again once a second
    eventually(lambda: nsqd.http("GET", "/ping").body == b"OK")
    nsqd.restart()
    consumer = nsqd.connect()
    consumer.subscribe("t", ready=10)
    assert consumer.bodies(2) == [b"before", b"after"]
    assert consumer.stays_silent(0.1)


def test_trap_32_an_ephemeral_topic_does_not_heal_the_disk(start_nsqd: StartNsqd) -> None:
    nsqd = start_nsqd("mem-queue-size=3")
    nsqd.connect().publish("t", b"before")
    nsqd.limit_file_size(0)
    failing = nsqd.connect()
    failing.send(pub("t", b"x"))
    failing.error()
    nsqd.connect().publish("t#ephemeral", *[b"x"] * 10)
    assert nsqd.http("GET", "/ping").status == 500


def test_trap_56_what_was_in_flight_comes_again_after_a_restart(start_nsqd: StartNsqd) -> None:
    nsqd = start_nsqd()
    client = nsqd.connect()
    client.subscribe("t", ready=1)
    client.publish("t", b"in flight", b"waiting")
    client.defer("t", 60_000, b"deferred")
    client.message()
    nsqd.restart()
    channel = nsqd.channel("t")
    assert (channel["depth"], channel["in_flight_count"], channel["deferred_count"]) == (2, 0, 1)
    consumer = nsqd.connect()
    consumer.subscribe("t", ready=10)
    assert {it.body: it.attempts for it in consumer.messages(2)} == {b"in flight": 2, b"waiting": 1}
    assert consumer.stays_silent(0.1)


def test_trap_56_topics_channels_and_pauses_come_back(start_nsqd: StartNsqd) -> None:
    nsqd = start_nsqd()
    for topic in ("a", "b"):
        nsqd.post(f"/topic/create?topic={topic}")
        nsqd.post(f"/channel/create?topic={topic}&channel=c")
    nsqd.post("/topic/pause?topic=a")
    nsqd.post("/channel/pause?topic=b&channel=c")
    nsqd.restart()
    assert [(it["topic_name"], it["paused"]) for it in nsqd.stats()["topics"]] == [("a", True), ("b", False)]
    assert [nsqd.channel(topic)["paused"] for topic in ("a", "b")] == [False, True]


def test_trap_58_the_folder_itself_is_locked(start_nsqd: StartNsqd) -> None:
    nsqd = start_nsqd()
    second = Nsqd(nsqd.data_path)
    with pytest.raises(AssertionError) as failure:
        second.__enter__()
    expected = (
        f"FATAL: failed to instantiate nsqd - failed to lock data-path: cannot flock directory {nsqd.data_path} - "
        "resource temporarily unavailable (possibly in use by another instance of nsqd)"
    )
    assert expected in str(failure.value)


def test_trap_61_sighup_loses_nothing(start_nsqd: StartNsqd) -> None:
    nsqd = start_nsqd("ack=memory")
    nsqd.connect().publish("t", *[b"%d" % number for number in range(1000)])
    assert nsqd.stop(signal.SIGHUP) == 0
    nsqd.start()
    consumer = nsqd.connect()
    consumer.subscribe("t", ready=1000)
    assert len(set(consumer.bodies(1000))) == 1000


def test_a_connection_without_a_magic_does_not_hold_up_the_end(start_nsqd: StartNsqd) -> None:
    nsqd = start_nsqd("drain-timeout=120s")  # longer than a stop may take here
    silent = nsqd.connect(magic=b"")
    nsqd.connect().subscribe("t", ready=1)
    assert nsqd.stop() == 0
    assert silent.closes()


def test_a_limit_of_consumers_is_kept(start_nsqd: StartNsqd) -> None:
    nsqd = start_nsqd("max-channel-consumers=1")
    nsqd.connect().subscribe("t")
    second = nsqd.connect()
    second.send(sub("t", "c"))
    assert second.error() == b"E_SUB_FAILED SUB failed consumers for t:c exceeds limit of 1"


@pytest.mark.parametrize("end", ["stop", "kill"])
def test_trap_53_54_55_57_files_of_the_original_are_never_written(tmp_path: Path, end: str) -> None:
    originals = {"nsqd.dat": b'{"topics":null,"version":"1.3.0"}', "t.diskqueue.meta.dat": b"0\n0,0\n0,0\n"}
    for name, content in originals.items():
        (tmp_path / name).write_bytes(content)
    with Nsqd(tmp_path, "import-go=false") as nsqd:
        nsqd.connect().publish("t", b"x")
        nsqd.post("/channel/create?topic=t&channel=c")
        getattr(nsqd, end)()
    found = {it.name: it.read_bytes() for it in tmp_path.iterdir() if "nsqd.dat" in it.name or "diskqueue" in it.name}
    assert found == originals


def test_a_deleted_topic_stays_deleted_when_a_kill_meets_its_next_creation(start_nsqd: StartNsqd) -> None:
    """The kill comes after the new folder, before the journal, and before the next topology.json."""
    nsqd = start_nsqd()
    nsqd.connect().subscribe("t", "old")
    topology = nsqd.data_path / "topology.json"
    eventually(lambda: topology.exists() and b'"old"' in topology.read_bytes())
    stale = topology.read_bytes()
    nsqd.post("/topic/delete?topic=t")
    nsqd.kill()
    (nsqd.data_path / "topics" / "t.t").mkdir()
    topology.write_bytes(stale)
    nsqd.start()
    assert nsqd.channel("t", "old") is None
