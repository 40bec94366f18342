"""Edit and run over HTTP: what a request may say, and what it is answered."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from unittest.mock import Mock

import pytest

from nsqcommon.wire.headers import decode_headers
from nsqd.broker.channel import Channel
from nsqd.broker.consumer import Consumer
from nsqd.broker.edit import MessagePlace, place_of
from nsqd.broker.rules import ChannelRules, Overflow
from nsqd.http import HistoryReads
from tests.nsqd.http.conftest import Nsqd
from tests.nsqd.http.fake_history import at_once
from tests.nsqd.http.whole.test_stats import CLIENT
from tests.support.asgi import ask

CHANNEL = "topic=t&channel=c"


@pytest.fixture
def nsqd() -> Nsqd:
    """Return an nsqd whose channels c and d have the messages 0 to 2, with a header."""
    nsqd = Nsqd()
    nsqd.post("/topic/create?topic=t")
    for name in ("c", "d"):
        nsqd.post(f"/channel/create?topic=t&channel={name}")
    for body in (b"a", b"b", b"c"):
        ask(nsqd.app, "POST", "/pub?topic=t", body, headers={"nsq-header-kind": "order", "nsq-header-x": "1"})
    return nsqd


def channel_of(nsqd: Nsqd, name: str = "c") -> Channel:
    return nsqd.broker.topics["t"].channels[name]


def post(
    nsqd: Nsqd, arguments: str, body: bytes = b"A", headers: dict[str, str] | None = None
) -> tuple[int, dict[str, Any]]:
    answer = ask(nsqd.app, "POST", f"/channel/edit?{CHANNEL}&{arguments}", body, headers=headers)
    return answer.status, json.loads(answer.body)


def headers_of(nsqd: Nsqd, sequence: int) -> dict[str, bytes]:
    return decode_headers(next(it for it in nsqd.store.logs["t"].batches if it.base_sequence == sequence).headers)


def test_the_answer_names_both_messages(nsqd: Nsqd) -> None:
    status, answer = post(nsqd, "sequence=1")
    batches = nsqd.store.logs["t"].batches
    assert (status, answer) == (
        200,
        {
            "sequence": 3,
            "id": f"{batches[-1].base_id:016x}",
            "copy_of": {"sequence": 1, "id": f"{batches[0].base_id + 1:016x}"},
            "replaced": True,
            "repeated": False,
        },
    )
    assert (channel_of(nsqd).depth, channel_of(nsqd, "d").depth) == (3, 3)


def test_the_copy_keeps_headers_changes_some_and_says_whose_it_is(nsqd: Nsqd) -> None:
    assert post(nsqd, "sequence=0&without=x", headers={"nsq-header-kind": "refund", "nsqadmin-user": "ann"})[0] == 200
    found = headers_of(nsqd, 3)
    assert found.pop("nsq-copy-of").decode() == f"{nsqd.store.logs['t'].batches[0].base_id:016x}"
    assert found == {"kind": b"refund", "nsq-channel": b"c", "nsq-replaces": b"0", "nsq-edited-by": b"ann"}


def test_a_copy_of_a_copy_says_only_whose_it_is(nsqd: Nsqd) -> None:
    post(nsqd, "sequence=0")
    assert post(nsqd, "sequence=3", b"B")[1]["copy_of"]["sequence"] == 3
    assert headers_of(nsqd, 4)["nsq-replaces"] == b"3"


@pytest.mark.parametrize(
    ("arguments", "body", "headers", "status", "code"),
    [
        ("", b"A", {}, 400, "INVALID_REQUEST"),
        ("sequence=0&id=0000000000000000", b"A", {}, 400, "INVALID_REQUEST"),
        ("sequence=x", b"A", {}, 400, "INVALID_ARG_SEQUENCE"),
        ("sequence=3", b"A", {}, 400, "BEYOND_END"),
        ("id=1", b"A", {}, 400, "INVALID_ARG_ID"),
        ("id=0000000000000001", b"A", {}, 404, "MESSAGE_NOT_FOUND"),
        ("sequence=0", b"", {}, 400, "MSG_EMPTY"),
        ("sequence=0", b"A" * 101, {}, 413, "MSG_TOO_BIG"),
        ("sequence=0&defer=-1", b"A", {}, 400, "INVALID_DEFER"),
        ("sequence=0&token=a%20b", b"A", {}, 400, "INVALID_TOKEN"),
        ("sequence=0", b"A", {"nsq-header-nsq-channel": "d"}, 400, "INVALID_HEADERS"),
        ("sequence=0", b"A", {"nsq-header-x": "1" * 4_000}, 400, "INVALID_HEADERS"),
        ("sequence=0&log=other", b"A", {}, 400, "EPHEMERAL_TOPIC"),  # this fake history has no logs
    ],
)
def test_what_is_wrong_changes_nothing(
    nsqd: Nsqd, arguments: str, body: bytes, headers: dict[str, str], status: int, code: str
) -> None:
    found, answer = post(nsqd, arguments, body, headers)
    assert (found, answer["message"]) == (status, code)
    assert nsqd.store.logs["t"].tail == 3


def test_a_message_in_flight_is_refused_and_the_answer_says_who_has_it(nsqd: Nsqd) -> None:
    consumer = Consumer(send=lambda pieces: None, close=lambda: None, describe=lambda: CLIENT, msg_timeout=60.0)
    channel = channel_of(nsqd)
    channel.join(consumer)
    consumer.ready_count = 1
    channel.schedule_delivery()
    nsqd.post("/pub?topic=t", b"d")
    status, answer = post(nsqd, "sequence=0&again=true")
    assert (status, answer["message"], answer["place"]) == (409, "CANNOT_EDIT", "in_flight")
    assert (answer["client_id"], answer["remote_address"]) == (CLIENT.client_id, CLIENT.remote_address)


def test_a_finished_message_is_refused_and_runs_again_if_asked(nsqd: Nsqd) -> None:
    nsqd.post(f"/channel/empty?{CHANNEL}")
    status, answer = post(nsqd, "sequence=0")
    assert (status, answer["place"]) == (409, "finished")
    assert "again=true" in answer["reason"]
    assert post(nsqd, "sequence=0&again=true")[1]["replaced"] is False
    assert headers_of(nsqd, 3)["nsq-repeats"] == b"0"
    assert channel_of(nsqd).depth == 1


def test_a_replaced_message_is_refused(nsqd: Nsqd) -> None:
    post(nsqd, "sequence=0")
    assert post(nsqd, "sequence=0")[1]["place"] == "replaced"


def test_a_copy_for_another_channel_is_refused(nsqd: Nsqd) -> None:
    post(nsqd, "sequence=0")
    answer = ask(nsqd.app, "POST", "/channel/edit?topic=t&channel=d&sequence=3&again=true", b"B")
    assert (answer.status, json.loads(answer.body)["message"]) == (409, "OTHER_CHANNEL")


def test_a_channel_that_is_full_takes_a_copy_only_instead_of_a_waiting_message_or_by_force(nsqd: Nsqd) -> None:
    nsqd.post(f"/channel/empty?{CHANNEL}")
    channel_of(nsqd).take_rules(ChannelRules(max_messages=1, overflow=Overflow.DROP_OLDEST))
    assert post(nsqd, "sequence=0&again=true")[0] == 200
    status, answer = post(nsqd, "sequence=1&again=true")
    assert (status, answer["message"], answer["fits"]) == (409, "FULL", 0)
    assert post(nsqd, "sequence=3")[0] == 200
    assert post(nsqd, "sequence=1&again=true&force=true")[0] == 200


def test_a_topic_that_was_made_again_during_the_search_keeps_its_new_messages() -> None:
    """The sequence that the search finds names another message in the new topic's log."""
    found = Mock()
    nsqd = Nsqd(HistoryReads(Mock(find=Mock(return_value=found)), at_once))

    def make() -> None:
        nsqd.post("/topic/create?topic=t")
        nsqd.post(f"/channel/create?{CHANNEL}")
        nsqd.post("/pub?topic=t", b"a")

    def make_again(message_id: int) -> int:
        with ThreadPoolExecutor(1) as thread:  # the request's own thread has a running event loop
            thread.submit(nsqd.post, "/topic/delete?topic=t").result()
            thread.submit(make).result()
        return 0

    make()
    found.sequence_of = make_again
    assert post(nsqd, "id=0000000000000001") == (404, {"message": "MESSAGE_NOT_FOUND"})
    assert place_of(channel_of(nsqd), 0) is MessagePlace.WAITING


def test_an_ephemeral_channel_is_refused(nsqd: Nsqd) -> None:
    nsqd.post("/channel/create?topic=t&channel=e%23ephemeral")
    answer = ask(nsqd.app, "POST", "/channel/edit?topic=t&channel=e%23ephemeral&sequence=0", b"B")
    assert json.loads(answer.body)["message"] == "EPHEMERAL_CHANNEL"


def test_a_disk_that_refuses_leaves_the_message(nsqd: Nsqd) -> None:
    nsqd.broker.refusal = "draining"
    assert post(nsqd, "sequence=0") == (503, {"message": "EXITING"})
    nsqd.broker.refusal = None
    assert post(nsqd, "sequence=0")[0] == 200
