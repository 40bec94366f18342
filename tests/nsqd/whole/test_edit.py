"""Edit and run with a real nsqd: what consumers, readers of the log and a repeated request get, also after a restart."""

from __future__ import annotations

import json
from typing import Any

import pytest

from nsqcommon.wire.edited_copy import mark_in
from nsqcommon.wire.extensions import bury
from nsqcommon.wire.headers import decode_headers
from nsqcommon.wire.history import MSGPACK, HistoryReader, StoredBatch
from tests.support.brokers import StartNsqd
from tests.support.process import Nsqd, eventually


@pytest.fixture
def nsqd(start_nsqd: StartNsqd) -> Nsqd:
    started = start_nsqd("max-bytes-per-file=4096")
    started.post("/topic/create?topic=t")
    for channel in ("a", "b"):
        started.post(f"/channel/create?topic=t&channel={channel}")
    return started


def publish(nsqd: Nsqd, *bodies: str) -> None:
    for body in bodies:
        assert nsqd.http("POST", "/pub?topic=t", body.encode(), headers={"nsq-header-kind": "order"}).status == 200


def edit(nsqd: Nsqd, body: str, **arguments: object) -> Any:
    query = "&".join(f"{name}={value}" for name, value in {"topic": "t", "channel": "a", **arguments}.items())
    answer = nsqd.http("POST", f"/channel/edit?{query}", body.encode())
    assert answer.status == 200, answer
    return answer.json


def take(nsqd: Nsqd, channel: str, count: int, *, reason: str = "") -> list[tuple[bytes, int]]:
    """Take so many messages, finish or bury them, and return bodies and attempts."""
    with nsqd.connect() as client:
        client.identify(feature_negotiation=True, extensions=["bury"])
        client.subscribe("t", channel, ready=100)
        messages = client.messages(count)
        for message in messages if reason else ():
            client.send(bury(message.id, reason))
        client.finish(*(() if reason else messages))
        client.in_step()
    return [(message.body, message.attempts) for message in messages]


def counts(nsqd: Nsqd, channel: str) -> tuple[int, int]:
    found = nsqd.channel("t", channel)
    return found["depth"], found.get("buried_count", 0)


@pytest.mark.parametrize("kills", [False, True])
def test_a_copy_runs_in_one_channel_and_a_repeat_gets_the_same_answer(nsqd: Nsqd, kills: bool) -> None:
    publish(nsqd, "one", "two")
    take(nsqd, "a", 2, reason="bad")
    answer = edit(nsqd, "ONE", sequence=0, token="x")
    assert counts(nsqd, "a") == (1, 1)
    if kills:
        nsqd.kill()
        nsqd.start()
    assert edit(nsqd, "other", sequence=0, token="x") == answer | {"repeated": True}
    assert (counts(nsqd, "a"), counts(nsqd, "b")) == ((1, 1), (2, 0))
    assert take(nsqd, "a", 1) == [(b"ONE", 1)]
    assert take(nsqd, "b", 2) == [(b"one", 1), (b"two", 1)]
    assert (counts(nsqd, "a"), counts(nsqd, "b")) == ((0, 1), (0, 0))


def test_a_repeat_gets_the_same_answer_after_the_copy_was_finished(nsqd: Nsqd) -> None:
    publish(nsqd, "one")
    answer = edit(nsqd, "ONE", sequence=0, token="x")
    for channel in ("a", "b"):
        take(nsqd, channel, 1)
    for _ in range(3):  # segments end, but one with keys stays as long as these are remembered
        publish(nsqd, "." * 2_000)
        for channel in ("a", "b"):
            take(nsqd, channel, 1)
    nsqd.restart()
    assert edit(nsqd, "ONE", sequence=0, token="x") == answer | {"repeated": True}
    assert counts(nsqd, "a") == (0, 0)


def test_a_message_is_found_by_its_id_wherever_it_is(nsqd: Nsqd) -> None:
    publish(nsqd, "one", "two", "three")
    take(nsqd, "a", 3, reason="bad")
    lines = [json.loads(it) for it in nsqd.http("GET", "/channel/buried?topic=t&channel=a").body.splitlines()]
    nsqd.post("/channel/kick?topic=t&channel=a&sequence=1")
    eventually(lambda: nsqd.http("GET", "/topic/log?topic=t").json["next"] == 3)  # a search by id reads what is synced
    for line, body in zip(lines[:2], ("ONE", "TWO"), strict=True):
        answer = edit(nsqd, body, id=line["id"])
        assert answer["copy_of"] == {"sequence": line["sequence"], "id": line["id"]}
    edit(nsqd, "ONE AGAIN", id=answer["id"])
    assert sorted(take(nsqd, "a", 2)) == [(b"ONE", 1), (b"ONE AGAIN", 1)]


def test_a_consumer_with_headers_sees_whose_copy_it_is_and_others_see_an_ordinary_message(nsqd: Nsqd) -> None:
    publish(nsqd, "one", "two")
    for sequence in (0, 1):
        edit(nsqd, "EDITED", sequence=sequence)
    with nsqd.connect() as client:
        client.identify(feature_negotiation=True, extensions=["headers"])
        client.subscribe("t", "a", ready=1)
        headers = decode_headers(client.message().headers)
        assert headers["kind"] == b"order"
        assert mark_in(headers).channel == "a"
    assert take(nsqd, "a", 1) == [(b"EDITED", 1)]


def test_lines_of_the_log_say_for_which_channel_a_copy_is_and_records_say_that_it_is_one(nsqd: Nsqd) -> None:
    publish(nsqd, "one")
    edit(nsqd, "ONE", sequence=0)
    first, second, end = (json.loads(it) for it in nsqd.http("GET", "/topic/read?topic=t").body.splitlines())
    assert ("channel" in first, second["channel"], second["body"], end["next"]) == (False, "a", "ONE", 2)
    reader = HistoryReader()
    reader.receive(nsqd.http("GET", "/topic/read?topic=t", headers={"accept": MSGPACK}).body)
    events = list(iter(reader.next_event, None))
    assert [it.is_copy for it in events if isinstance(it, StoredBatch)] == [False, True]


def test_copies_are_compacted_as_copies(nsqd: Nsqd) -> None:
    publish(nsqd, "one")
    edit(nsqd, "ONE", sequence=0, defer=3_000_000)
    for _ in range(8):
        publish(nsqd, "." * 2_000)
    for channel, count in (("a", 8), ("b", 9)):
        take(nsqd, channel, count)
    log = nsqd.data_path / "topics"
    eventually(lambda: any(it.name.startswith("carried") for it in log.rglob("*")), timeout=30)
    nsqd.kill()
    nsqd.start()
    copy = json.loads(nsqd.http("GET", "/channel/deferred?topic=t&channel=a").body.splitlines()[0])
    assert (copy["body"], copy["headers"]["nsq-channel"]) == ("ONE", "a")
    assert edit(nsqd, "TWO", id=copy["id"])["copy_of"]["sequence"] == copy["sequence"]
    assert take(nsqd, "a", 1) == [(b"TWO", 1)]


def test_what_was_replaced_does_not_run_again_while_another_channel_needs_it(nsqd: Nsqd) -> None:
    publish(nsqd, "one")
    for channel in ("a", "b"):
        take(nsqd, channel, 1, reason="bad")
    edit(nsqd, "ONE", sequence=0)
    for _ in range(4):
        publish(nsqd, "." * 2_000)
    for channel, count in (("a", 5), ("b", 4)):
        take(nsqd, channel, count)
    log = nsqd.data_path / "topics"
    eventually(lambda: any(it.name.startswith("carried") for it in log.rglob("*")), timeout=30)
    publish(nsqd, "two")
    edit(nsqd, "TWO", sequence=6)
    assert take(nsqd, "a", 1) == [(b"TWO", 1)]
    answer = nsqd.http("POST", "/channel/redeliver?topic=t&channel=a&sequence=0").json
    assert (answer["redelivered"], counts(nsqd, "a")) == (0, (0, 0))
    assert counts(nsqd, "b") == (1, 1)


def test_the_journal_of_changes_says_who_has_edited_what(nsqd: Nsqd) -> None:
    publish(nsqd, "one")
    edit(nsqd, "ONE", sequence=0)
    change = nsqd.http("GET", "/changes").json["changes"][-1]
    assert (change["what"], change["topic"], change["channel"], change["detail"]) == ("edit", "t", "a", "sequence=0")
