"""Messages that are taken back, or become due at another time: by key, by id, in all channels or in one."""

from __future__ import annotations

import json
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from tests.support.brokers import StartNsqd
from tests.support.process import Nsqd, eventually

MINUTES = 600_000
NOTHING = {"in_flight": 0, "buried": 0, "done": 0, "unknown": 0}


@pytest.fixture
def nsqd(start_nsqd: StartNsqd) -> Nsqd:
    started = start_nsqd()
    make_channels(started)
    return started


@pytest.fixture(scope="module")
def unchanged(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nsqd]:
    """Run an nsqd whose channels have one message, for requests that change nothing."""
    with Nsqd(tmp_path_factory.mktemp("unchanged")) as nsqd:
        make_channels(nsqd)
        publish(nsqd, "one", key="k", defer=MINUTES)
        yield nsqd


def make_channels(nsqd: Nsqd) -> None:
    nsqd.post("/topic/create?topic=t")
    for channel in ("a", "b"):
        nsqd.post(f"/channel/create?topic=t&channel={channel}")


def publish(nsqd: Nsqd, body: str, *, key: str = "", defer: int = 0, topic: str = "t") -> None:
    path = f"/pub?topic={topic}" + (f"&key={key}" if key else "") + (f"&defer={defer}" if defer else "")
    nsqd.post(path, body.encode())


def ask(nsqd: Nsqd, what: str, **arguments: object) -> Any:
    query = "&".join(f"{name}={value}" for name, value in {"topic": "t", **arguments}.items())
    answer = nsqd.http("POST", f"/message/{what}?{query}")
    assert answer.status == 200, answer
    return answer.json


def cancel(nsqd: Nsqd, **arguments: object) -> Any:
    return ask(nsqd, "cancel", **arguments)


def deferred(nsqd: Nsqd, channel: str = "a", query: str = "") -> list[Any]:
    body = nsqd.http("GET", f"/channel/deferred?topic=t&channel={channel}{query}").body
    return [json.loads(line) for line in body.splitlines()]


def counts(nsqd: Nsqd, channel: str) -> tuple[int, int]:
    found = nsqd.channel("t", channel)
    return found["depth"], found["deferred_count"]


def left(nsqd: Nsqd, channel: str = "a") -> list[bytes]:
    """Take everything that the channel delivers now."""
    depth = nsqd.channel("t", channel)["depth"]
    with nsqd.connect() as client:
        client.subscribe("t", channel, ready=100)
        messages = client.messages(depth)
        client.finish(*messages)
        client.in_step()
    return sorted(message.body for message in messages)


def test_a_deferred_message_is_taken_back_from_all_channels_or_from_one(nsqd: Nsqd) -> None:
    publish(nsqd, "both", key="k-1", defer=MINUTES)
    publish(nsqd, "one", key="k-2", defer=MINUTES)
    publish(nsqd, "stays", key="k-3", defer=MINUTES)
    assert counts(nsqd, "a") == counts(nsqd, "b") == (0, 3)
    assert cancel(nsqd, key="k-1") == {"cancelled": 2, **NOTHING}
    assert cancel(nsqd, key="k-2", channel="b") == {"cancelled": 1, **NOTHING}
    assert (counts(nsqd, "a"), counts(nsqd, "b")) == ((0, 2), (0, 1))
    assert cancel(nsqd, key="k-1") == {"cancelled": 0, **NOTHING, "done": 2}
    assert cancel(nsqd, key="k-2") == {"cancelled": 1, **NOTHING, "done": 1}
    assert [it["body"] for it in deferred(nsqd)] == ["stays"]


@pytest.mark.parametrize("restart", [False, True])
def test_the_answer_and_the_other_keys_hold_after_kill_9(nsqd: Nsqd, restart: bool) -> None:
    long = "x" * 60
    for number in range(20):
        publish(nsqd, f"{number}", key=f"{long}{number}", defer=MINUTES)
    assert cancel(nsqd, key=f"{long}3") == {"cancelled": 2, **NOTHING}
    if not restart:
        nsqd.kill()
        nsqd.start()
    else:
        nsqd.restart()
    assert counts(nsqd, "a") == counts(nsqd, "b") == (0, 19)
    assert cancel(nsqd, key=f"{long}3") == {"cancelled": 0, **NOTHING, "done": 2}
    assert cancel(nsqd, key=f"{long}7", channel="a") == {"cancelled": 1, **NOTHING}
    nsqd.kill()
    nsqd.start()
    assert ask(nsqd, "due", key=f"{long}7", defer=0) == {"moved": 1, **NOTHING, "done": 1}
    assert (counts(nsqd, "a"), counts(nsqd, "b")) == ((0, 18), (1, 18))


def test_what_waits_for_a_consumer_is_taken_back_by_key_and_by_id(nsqd: Nsqd) -> None:
    for number in range(6):
        publish(nsqd, f"{number}", key=f"k-{number}" if number != 4 else "")
    assert cancel(nsqd, key="k-2") == {"cancelled": 2, **NOTHING}
    # Only what is synced can be read, and a last line says where to go on.
    read = eventually(lambda: len(it := nsqd.http("GET", "/topic/read?topic=t&from=0").body.splitlines()) > 6 and it)
    ids = {it["body"]: it["id"] for it in map(json.loads, read) if "body" in it}
    assert cancel(nsqd, id=ids["4"], channel="a") == {"cancelled": 1, **NOTHING}
    assert cancel(nsqd, id=ids["4"]) == {"cancelled": 1, **NOTHING, "done": 1}
    assert (counts(nsqd, "a"), counts(nsqd, "b")) == ((4, 0), (4, 0))
    nsqd.kill()
    nsqd.start()
    assert left(nsqd) == left(nsqd, "b") == [b"0", b"1", b"3", b"5"]
    assert cancel(nsqd, key="k-0") == {"cancelled": 0, **NOTHING, "done": 2}


def test_what_is_in_flight_requeued_or_buried(nsqd: Nsqd) -> None:
    client = nsqd.connect()
    client.identify(feature_negotiation=True, extensions=["bury"])
    client.subscribe("t", "a", ready=1)
    publish(nsqd, "one", key="k-1")
    message = client.message()
    assert cancel(nsqd, key="k-1") == {"cancelled": 1, **NOTHING, "in_flight": 1}
    client.requeue(message, MINUTES)
    eventually(lambda: counts(nsqd, "a") == (0, 1))
    assert cancel(nsqd, key="k-1") == {"cancelled": 1, **NOTHING, "done": 1}
    publish(nsqd, "two", key="k-2")
    message = client.message()
    client.send(b"BURY %b\n" % message.id + (4).to_bytes(4, "big") + b"why?")
    eventually(lambda: nsqd.channel("t", "a").get("buried_count") == 1)
    assert cancel(nsqd, key="k-2", channel="a") == {"cancelled": 0, **NOTHING, "buried": 1}
    for key in ("k-1", "k-2"):  # of which a consumer has seen the message, so the key stays in use
        publish(nsqd, "a repeat", key=key)
    assert counts(nsqd, "a") == (0, 0)


def test_a_batch_has_one_key(nsqd: Nsqd) -> None:
    nsqd.post(f"/mpub?topic=t&key=k&defer={MINUTES}", b"one\ntwo\nthree")
    assert counts(nsqd, "a") == (0, 3)
    ids = {it["body"]: it["id"] for it in deferred(nsqd)}
    assert cancel(nsqd, id=ids["two"]) == {"cancelled": 2, **NOTHING}
    assert [it["body"] for it in deferred(nsqd)] == ["one", "three"]
    assert cancel(nsqd, key="k") == {"cancelled": 2, **NOTHING}
    assert counts(nsqd, "a") == counts(nsqd, "b") == (0, 0)


@pytest.mark.parametrize("kills", [False, True])
@pytest.mark.parametrize("defer", [0, MINUTES])
def test_a_reminder_that_is_cancelled_and_set_again_is_there(nsqd: Nsqd, defer: int, kills: bool) -> None:
    for body in ("first", "second"):
        for _ in range(2):
            publish(nsqd, body, key="order-17", defer=defer)
        if kills:
            nsqd.kill()
            nsqd.start()
        assert cancel(nsqd, key="order-17") == {"cancelled": 2, **NOTHING}
        if kills:
            nsqd.kill()
            nsqd.start()
        assert cancel(nsqd, key="order-17") == {"cancelled": 0, **NOTHING, "done": 2}
    publish(nsqd, "third", key="order-17", defer=defer)
    publish(nsqd, "a repeat", key="order-17", defer=defer)
    assert sum(counts(nsqd, "a")) == sum(counts(nsqd, "b")) == 1
    assert ask(nsqd, "due", key="order-17", defer=0) == {"moved": 2, **NOTHING}
    assert left(nsqd) == left(nsqd, "b") == [b"third"]


def test_a_key_stays_in_use_if_not_all_was_taken_back_at_once(nsqd: Nsqd) -> None:
    publish(nsqd, "one", key="k", defer=MINUTES)
    for channel in ("a", "b"):
        assert cancel(nsqd, key="k", channel=channel) == {"cancelled": 1, **NOTHING}
    nsqd.post(f"/mpub?topic=t&key=batch&defer={MINUTES}", b"one\ntwo")
    cancel(nsqd, id=deferred(nsqd)[0]["id"])
    assert cancel(nsqd, key="batch") == {"cancelled": 2, **NOTHING}  # in each channel, what was left of it
    publish(nsqd, "two", key="k", defer=MINUTES)
    publish(nsqd, "two", key="batch", defer=MINUTES)
    assert counts(nsqd, "a") == (0, 0)


@pytest.mark.parametrize("defer", [0, 1])
def test_what_a_paused_topic_holds_is_never_handed_over(nsqd: Nsqd, defer: int) -> None:
    nsqd.post("/topic/pause?topic=t")
    for number in range(5):
        publish(nsqd, f"{number}", key=f"k-{number}", defer=defer)
    assert cancel(nsqd, key="k-2") == {"cancelled": 2, **NOTHING}
    assert cancel(nsqd, key="k-3", channel="a") == {"cancelled": 0, **NOTHING, "unknown": 1}
    assert cancel(nsqd, key="k-2") == {"cancelled": 0, **NOTHING, "done": 2}
    nsqd.kill()
    nsqd.start()
    assert nsqd.topic("t")["depth"] == 4
    assert cancel(nsqd, key="k-4") == {"cancelled": 2, **NOTHING}
    nsqd.post("/topic/unpause?topic=t")
    eventually(lambda: counts(nsqd, "a") == counts(nsqd, "b") == (3, 0))
    nsqd.kill()
    nsqd.start()
    eventually(lambda: counts(nsqd, "a") == counts(nsqd, "b") == (3, 0))
    assert left(nsqd) == left(nsqd, "b") == [b"0", b"1", b"3"]


def test_a_topic_without_channels_counts_as_one(nsqd: Nsqd) -> None:
    publish(nsqd, "one", key="k", defer=1, topic="lonely")
    publish(nsqd, "two", topic="lonely")
    assert cancel(nsqd, topic="lonely", key="k") == {"cancelled": 1, **NOTHING}
    nsqd.post("/channel/create?topic=lonely&channel=c")
    with nsqd.connect() as client:
        client.subscribe("lonely", "c", ready=10)
        assert client.message().body == b"two"
        assert client.stays_silent(0.2)


def test_a_message_becomes_due_at_another_time(nsqd: Nsqd) -> None:
    publish(nsqd, "late", key="k-1", defer=MINUTES)
    publish(nsqd, "later", key="k-2", defer=2 * MINUTES)
    publish(nsqd, "now", key="k-3")
    assert [it["body"] for it in deferred(nsqd)] == ["late", "later"]
    assert ask(nsqd, "due", key="k-1", defer=3 * MINUTES, channel="a") == {"moved": 1, **NOTHING}
    assert [it["body"] for it in deferred(nsqd)] == ["later", "late"]
    assert [it["body"] for it in deferred(nsqd, "b")] == ["late", "later"]
    assert ask(nsqd, "due", key="k-3", defer=MINUTES // 2) == {"moved": 2, **NOTHING}
    nsqd.kill()
    nsqd.start()
    assert [it["body"] for it in deferred(nsqd)] == ["now", "later", "late"]
    assert ask(nsqd, "due", key="k-2", defer=0) == {"moved": 2, **NOTHING}
    assert left(nsqd) == left(nsqd, "b") == [b"later"]
    assert ask(nsqd, "due", key="k-2", defer=0) == {"moved": 0, **NOTHING, "done": 2}


def test_deferred_messages_are_listed_by_the_time_when_they_are_due(nsqd: Nsqd) -> None:
    for number in (3, 1, 2):
        headers = {"Nsq-Header-number": str(number)}
        nsqd.http("POST", f"/pub?topic=t&key=k-{number}&defer={number * MINUTES}", b"%d" % number, headers=headers)
    first, second, third = deferred(nsqd)
    assert [it["body"] for it in (first, second, third)] == ["1", "2", "3"]
    assert (first["key"], first["headers"], first["attempts"]) == ("k-1", {"number": "1"}, 0)
    assert abs(first["due"] - first["timestamp"] - MINUTES * 1_000_000) < 1_000_000_000
    assert deferred(nsqd, query="&limit=1") == [first]
    assert [it["body"] for it in deferred(nsqd, query=f"&limit=1&after={first['after']}")] == ["2"]


@pytest.mark.parametrize(
    ("query", "status", "code"),
    [
        ("topic=t&key=k-9", 404, "MESSAGE_NOT_FOUND"),
        ("topic=t&id=0123456789abcdef", 404, "MESSAGE_NOT_FOUND"),
        ("topic=t", 400, "INVALID_REQUEST"),
        ("topic=t&key=k&id=0123456789abcdef", 400, "INVALID_REQUEST"),
        ("topic=t&key=a%20b", 400, "INVALID_ARG_KEY"),
        ("topic=t&id=12", 400, "INVALID_ARG_ID"),
        ("topic=none&key=k", 404, "TOPIC_NOT_FOUND"),
        ("topic=t&channel=none&key=k", 404, "CHANNEL_NOT_FOUND"),
        ("topic=t%23ephemeral&key=k", 400, "EPHEMERAL_TOPIC"),
        ("key=k", 400, "MISSING_ARG_TOPIC"),
    ],
)
def test_what_is_refused(unchanged: Nsqd, query: str, status: int, code: str) -> None:
    answer = unchanged.http("POST", f"/message/cancel?{query}")
    assert (answer.status, answer.json["message"]) == (status, code)
    answer = unchanged.http("POST", f"/message/due?{query}&defer=5")
    assert (answer.status, answer.json["message"]) == (status, code)
    assert counts(unchanged, "a") == (0, 1)


def test_publishers_name_keys_and_operators_ids_as_well(start_nsqd: StartNsqd, tmp_path: Path) -> None:
    file = tmp_path / "rights.toml"
    file.write_text("".join(
        f'[[allow]]\nname = "{role}"\ntoken_sha256 = "{sha256(role.encode()).hexdigest()}"\nroles = ["{role}"]\n'
        for role in ("publish", "read", "operate", "admin")
    ))  # fmt: skip
    nsqd = start_nsqd(f"rights-file={file}")

    def status(role: str, path: str) -> int:
        return nsqd.http("POST", path, b"x", headers={"Authorization": f"Bearer {role}"}).status

    assert status("publish", f"/pub?topic=t&key=k&defer={MINUTES}") == 200
    by_id = "/message/cancel?topic=t&id=0123456789abcdef"
    assert [status(role, by_id) for role in ("publish", "read", "operate", "admin")] == [403, 403, 404, 404]
    assert status("admin", "/channel/create?topic=t&channel=a") == 200
    by_sequence = "/message/cancel?topic=t&channel=a&sequence=0"
    assert [status(role, by_sequence) for role in ("publish", "read", "operate", "admin")] == [403, 403, 200, 200]
    by_key = "/message/cancel?topic=t&key=k"
    assert [status(role, by_key) for role in ("read", "operate", "publish", "admin")] == [403, 200, 200, 200]


def test_a_request_for_another_nsqd_is_not_answered(nsqd: Nsqd) -> None:
    publish(nsqd, "one", key="k", defer=MINUTES)
    for what in ("cancel?topic=t&key=k", "cancel?topic=none&key=k", "due?topic=t&key=k&defer=0"):
        answer = nsqd.http("POST", f"/message/{what}&node=0123")
        assert (answer.status, answer.json["message"]) == (421, "WRONG_NODE")
    assert counts(nsqd, "a") == (0, 1)
    told = nsqd.connect().identify(feature_negotiation=True, extensions=["http"])["http"]
    assert (told["port"], told["https_port"]) == (nsqd.http_address[1], 0)
    assert cancel(nsqd, key="k", node=told["node"]) == {"cancelled": 2, **NOTHING}


@pytest.mark.parametrize(("query", "code"), [("", "MISSING_ARG_DEFER"), ("&defer=x", "INVALID_DEFER")])
def test_a_delay_that_is_none(unchanged: Nsqd, query: str, code: str) -> None:
    answer = unchanged.http("POST", f"/message/due?topic=t&key=k{query}")
    assert (answer.status, answer.json["message"]) == (400, code)


@pytest.mark.parametrize(
    ("query", "code"),
    [("&limit=10001", "INVALID_ARG_LIMIT"), ("&limit=x", "INVALID_ARG_LIMIT"), ("&after=5", "INVALID_ARG_AFTER")],
)
def test_a_list_that_cannot_be_made(unchanged: Nsqd, query: str, code: str) -> None:
    answer = unchanged.http("GET", f"/channel/deferred?topic=t&channel=a{query}")
    assert (answer.status, answer.json["message"]) == (400, code)


def test_a_message_that_is_moved_between_two_pages_is_listed_by_its_time_as_of_each_page(nsqd: Nsqd) -> None:
    for number in range(6):
        publish(nsqd, f"{number}", key=f"key-{number}", defer=MINUTES + 1000 * number)
    first = deferred(nsqd, query="&limit=3")
    ask(nsqd, "due", key="key-1", defer=2 * MINUTES)  # behind the place of the next page
    ask(nsqd, "due", key="key-4", defer=MINUTES // 2)  # and before it
    rest = deferred(nsqd, query=f"&after={first[-1]['after']}")
    assert [it["body"] for it in first] == ["0", "1", "2"]
    assert [it["body"] for it in rest] == ["3", "5", "1"]
    assert (rest[-1]["sequence"], rest[-1]["due"] > first[1]["due"]) == (first[1]["sequence"], True)


def test_a_place_in_the_list_of_another_run_is_refused(nsqd: Nsqd) -> None:
    for number in range(3):
        publish(nsqd, f"{number}", defer=MINUTES)
    after = deferred(nsqd)[0]["after"]
    assert [it["body"] for it in deferred(nsqd, query=f"&after={after}")] == ["1", "2"]
    nsqd.restart()
    answer = nsqd.http("GET", f"/channel/deferred?topic=t&channel=a&after={after}")
    assert (answer.status, answer.json["message"]) == (409, "STARTED_ANEW")


def test_a_summary_has_the_number_and_the_log_and_a_list_can_be_of_this_log_only(nsqd: Nsqd) -> None:
    publish(nsqd, "one", defer=MINUTES)
    summary = nsqd.http("GET", "/channel/deferred?topic=t&channel=a&summary=true").json
    assert summary == {"count": 1, "log": nsqd.http("GET", "/topic/log?topic=t").json["log"]}
    assert [it["body"] for it in deferred(nsqd, query=f"&log={summary['log']}")] == ["one"]
    answer = nsqd.http("GET", "/channel/deferred?topic=t&channel=a&log=other")
    assert (answer.status, answer.json["message"]) == (409, "ANOTHER_LOG")


def test_many_messages_of_a_channel_are_named_by_their_sequences(nsqd: Nsqd) -> None:
    for number in range(10):
        publish(nsqd, f"{number}", defer=(20 - number) * MINUTES // 20)
    assert [it["sequence"] for it in deferred(nsqd)] == list(range(9, -1, -1))
    assert ask(nsqd, "cancel", channel="a", **{"from": 2, "to": 5}) == {"cancelled": 3, **NOTHING}
    some = "channel=a&sequence=4&sequence=5&sequence=5"
    answer = nsqd.http("POST", f"/message/cancel?topic=t&{some}")
    assert answer.json == {"cancelled": 1, **NOTHING, "done": 1}
    assert ask(nsqd, "due", channel="a", defer=0, **{"from": 0, "to": 3}) == {"moved": 2, **NOTHING, "done": 1}
    assert counts(nsqd, "a") == (2, 3 + 1)
    late = ask(nsqd, "due", channel="a", defer=5 * MINUTES, **{"from": 0, "to": 8})
    assert late == {"moved": 4, **NOTHING, "done": 4}  # two of them wait already, and are put off
    assert (counts(nsqd, "a"), counts(nsqd, "b")) == ((0, 6), (0, 10))
    nsqd.kill()
    nsqd.start()
    assert [it["body"] for it in deferred(nsqd)][:2] == ["9", "8"]
    assert ask(nsqd, "due", channel="a", defer=0, **{"from": 0, "to": 10}) == {"moved": 6, **NOTHING, "done": 4}
    assert left(nsqd) == [b"0", b"1", b"6", b"7", b"8", b"9"]


@pytest.mark.parametrize(
    ("query", "status", "code"),
    [
        ("from=0&to=1", 400, "MISSING_ARG_CHANNEL"),
        ("channel=a&from=0", 400, "MISSING_ARG_TO"),
        ("channel=a&from=0&to=10001", 400, "TOO_MANY"),
        ("channel=a&sequence=x", 400, "INVALID_ARG_SEQUENCE"),
        ("channel=a&sequence=0&key=k", 400, "INVALID_REQUEST"),
        ("channel=a&sequence=7", 400, "BEYOND_END"),
        ("channel=a&sequence=0&log=other", 409, "ANOTHER_LOG"),
        ("channel=none&sequence=0", 404, "CHANNEL_NOT_FOUND"),
    ],
)
def test_sequences_that_are_refused(unchanged: Nsqd, query: str, status: int, code: str) -> None:
    for path in ("cancel?", "due?defer=5&"):
        answer = unchanged.http("POST", f"/message/{path}topic=t&{query}")
        assert (answer.status, answer.json["message"]) == (status, code)
    assert counts(unchanged, "a") == (0, 1)


def test_a_key_is_found_when_only_a_compacted_file_has_the_message(start_nsqd: StartNsqd) -> None:
    """After retention has removed everything else, also across a restart."""
    nsqd = start_nsqd("max-bytes-per-file=65536", "idempotence-window=1s")
    nsqd.post("/topic/create?topic=t")
    nsqd.post("/channel/create?topic=t&channel=a")
    publish(nsqd, "kept", key="k-1", defer=MINUTES)
    publish(nsqd, "kept too", key="k-2", defer=MINUTES)
    publish(nsqd, "and this", key="k-3", defer=MINUTES)
    with nsqd.connect() as client:
        client.subscribe("t", "a", ready=100)

        def is_compacted() -> bool:
            nsqd.connect().publish("t", *[b"x" * 1000] * 60)
            client.finish(*client.messages(60))
            return bool(nsqd.http("GET", "/topic/log?topic=t").json["first"] > 3)

        assert eventually(is_compacted, timeout=30)
    assert cancel(nsqd, key="k-1") == {"cancelled": 1, **NOTHING}
    nsqd.restart()
    assert [it["key"] for it in deferred(nsqd)] == ["k-2", "k-3"]
    assert cancel(nsqd, id=deferred(nsqd)[1]["id"]) == {"cancelled": 1, **NOTHING}
    assert cancel(nsqd, key="k-2") == {"cancelled": 1, **NOTHING}
    assert counts(nsqd, "a") == (0, 0)
