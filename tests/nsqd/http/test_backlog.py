"""The endpoints that give a channel messages again: answers, refusals, and documents that nobody should trust."""

from __future__ import annotations

import json
from typing import Any
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqcommon import slices
from nsqd.http import HistoryReads
from nsqd.http.backlog import LONGEST, MOST, BadDocument, parse_document
from tests.nsqd.http.conftest import Nsqd, code
from tests.nsqd.http.fake_history import at_once
from tests.nsqd.http.whole.test_turns import LineCounter
from tests.support import asgi

CHANNEL = "topic=t&channel=c"
LOG = "8a217571e710893474d0e8e31e8ff94c"
PAST = {"log_id": LOG, "first": 0, "next": 5, "retention_time": 90_000_000_000, "retention_bytes": 0}
SOUND: dict[str, Any] = {
    "log": LOG,
    "next": 2,
    "end": 5,
    "finished": [[3, 4]],
    "requeued": [[0, 7]],
    "deferred": [[2, 1, 1_800_000_000_000]],
    "paused": False,
}


@pytest.fixture
def nsqd() -> Nsqd:
    """Return an nsqd whose channel has five messages."""
    nsqd = Nsqd(HistoryReads(Mock(node="n", find=Mock(return_value=Mock(**PAST))), at_once))
    nsqd.post("/topic/create?topic=t")
    nsqd.post(f"/channel/create?{CHANNEL}")
    nsqd.post("/mpub?topic=t", b"a\nb\nc\nd\ne")
    return nsqd


def restore(nsqd: Nsqd, document: object) -> Any:
    body = document if isinstance(document, bytes) else json.dumps(document).encode()
    return nsqd.post(f"/channel/restore?{CHANNEL}", body)


def state(nsqd: Nsqd) -> Any:
    answer = nsqd.get(f"/channel/state?{CHANNEL}")
    assert answer.status == 200
    return json.loads(answer.body)


def test_the_state_is_told(nsqd: Nsqd) -> None:
    found = state(nsqd)
    assert found.pop("retention") == {"kept": True, "time": 90, "bytes": 0}
    assert found == {
        "log": LOG,
        "next": 0,
        "end": 5,
        "finished": [],
        "requeued": [],
        "deferred": [],
        "paused": False,
        "count": 5,
    }


def test_the_state_of_a_log_without_retention_says_so() -> None:
    past = Mock(**{**PAST, "retention_time": 0})
    nsqd = Nsqd(HistoryReads(Mock(find=Mock(return_value=past)), at_once))
    nsqd.broker.topic("t").channel("c")
    assert state(nsqd)["retention"] == {"kept": False, "time": 0, "bytes": 0}


def test_what_is_told_can_be_restored(nsqd: Nsqd) -> None:
    before = state(nsqd)
    nsqd.post(f"/channel/empty?{CHANNEL}")
    nsqd.post("/pub?topic=t", b"f")
    synced = nsqd.turn.synced
    answer = restore(nsqd, before)
    assert (answer.status, answer.body) == (200, b'{"restored":5,"gone":0}')
    assert nsqd.turn.synced == synced + 1
    assert nsqd.broker.topics["t"].channels["c"].depth == 6


def test_a_deleted_channel_is_made_again_with_its_pause_and_what_came_since(nsqd: Nsqd) -> None:
    nsqd.post(f"/channel/pause?{CHANNEL}")
    before = state(nsqd)
    nsqd.post(f"/channel/delete?{CHANNEL}")
    nsqd.broker.topics["t"].channel("other")
    nsqd.post("/pub?topic=t", b"f")
    assert restore(nsqd, before).body == b'{"restored":5,"gone":0}'
    channel = nsqd.broker.topics["t"].channels["c"]
    assert (channel.paused, channel.depth) == (True, 6)


def test_an_existing_channel_keeps_its_pause(nsqd: Nsqd) -> None:
    before = state(nsqd)
    nsqd.post(f"/channel/pause?{CHANNEL}")
    restore(nsqd, before)
    assert nsqd.broker.topics["t"].channels["c"].paused


def test_what_came_for_a_deleted_channel_and_is_gone_is_counted(nsqd: Nsqd) -> None:
    before = state(nsqd)
    nsqd.post(f"/channel/delete?{CHANNEL}")
    nsqd.broker.topics["t"].channel("other")
    nsqd.post("/mpub?topic=t", b"f\ng\nh")
    nsqd.store.logs["t"].first = 7
    assert restore(nsqd, before).body == b'{"restored":0,"gone":7}'
    assert nsqd.broker.topics["t"].channels["c"].depth == 1


def test_a_sound_document_is_taken(nsqd: Nsqd) -> None:
    answer = restore(nsqd, {**SOUND, "unknown": 1})
    assert (answer.status, answer.body) == (200, b'{"restored":3,"gone":0}')
    found = state(nsqd)
    assert (found["next"], found["finished"], found["requeued"], found["count"]) == (4, [], [[0, 7]], 3)
    assert found["deferred"][0][:2] == [2, 1]
    assert found["deferred"][0][2] == pytest.approx(1_800_000_000_000, abs=3)


def test_what_was_buried_then_and_waits_now_still_waits(nsqd: Nsqd) -> None:
    assert restore(nsqd, {**SOUND, "buried": [[1, 2], [3, 4]]}).status == 200
    assert state(nsqd)["requeued"] == [[0, 7], [1, 0], [3, 0]]


@pytest.mark.parametrize("document", [
    b"", b"[", b"{}", b"[]", b"null", b"\xff", b"[" * 100_000, b'{"next":' + b"9" * 5000 + b"}",
    {**SOUND, "log": 5},
    {**SOUND, "paused": 0},
    {**SOUND, "next": -1},
    {**SOUND, "next": 6},
    {**SOUND, "next": 1.0},
    {**SOUND, "next": True},
    {**SOUND, "next": "2"},
    {**SOUND, "next": None},
    {**SOUND, "end": 1 << 63},
    {**SOUND, "end": float("inf")},
    {**SOUND, "finished": None},
    {**SOUND, "finished": {}},
    {**SOUND, "finished": [3, 4]},
    {**SOUND, "finished": [[3]]},
    {**SOUND, "finished": [[4, 3]]},
    {**SOUND, "finished": [[3, 3]]},
    {**SOUND, "finished": [[1, 3]]},
    {**SOUND, "finished": [[3, 6]]},
    {**SOUND, "finished": [[4, 5], [3, 4]]},
    {**SOUND, "finished": [[3, 5], [4, 5]]},
    {**SOUND, "buried": None},
    {**SOUND, "buried": [1, 2]},
    {**SOUND, "buried": [[1, 6]]},
    {**SOUND, "buried": [[1, 1]]},
    {**SOUND, "buried": [[1, 2], [1, 2]]},
    {**SOUND, "buried": [[0, 2]]},
    {**SOUND, "buried": [[2, 3]]},
    {**SOUND, "buried": [[4, 5]]},
    {**SOUND, "requeued": [[5, 1]]},
    {**SOUND, "requeued": [[-1, 1]]},
    {**SOUND, "requeued": [[0, 1 << 16]]},
    {**SOUND, "requeued": [[0, -1]]},
    {**SOUND, "requeued": [[0, 1, 2]]},
    {**SOUND, "requeued": [[0, 1], [0, 1]]},
    {**SOUND, "requeued": [[2, 1]]},
    {**SOUND, "requeued": [[3, 1]]},
    {**SOUND, "requeued": [["0", 1]]},
    {**SOUND, "deferred": [[2, 1, 0]]},
    {**SOUND, "deferred": [[2, 1, -1]]},
    {**SOUND, "deferred": [[2, 1, 1 << 60]]},
    {**SOUND, "deferred": [[2, 1, 1e300]]},
    {**SOUND, "requeued": [[0, 1]] * (MOST + 1)},
])  # fmt: skip
def test_a_hostile_document_changes_nothing(nsqd: Nsqd, document: object) -> None:
    before = state(nsqd)
    answer = restore(nsqd, document)
    assert (answer.status, json.loads(answer.body)["message"]) == (400, "INVALID_BODY")
    assert json.loads(answer.body)["reason"]
    assert state(nsqd) == before


def test_a_document_of_another_log_or_beyond_the_end_changes_nothing(nsqd: Nsqd) -> None:
    before = state(nsqd)
    answer = restore(nsqd, {**SOUND, "log": "f" * 32})
    assert (answer.status, json.loads(answer.body)["message"]) == (409, "ANOTHER_LOG")
    answer = restore(nsqd, {**SOUND, "end": 6})
    assert (answer.status, json.loads(answer.body)) == (
        400,
        {"message": "BEYOND_END", "log": LOG, "first": 0, "end": 5},
    )
    assert state(nsqd) == before


def test_a_refused_document_makes_no_channel(nsqd: Nsqd) -> None:
    nsqd.post(f"/channel/delete?{CHANNEL}")
    assert restore(nsqd, {**SOUND, "log": "f" * 32}).status == 409
    assert restore(nsqd, {**SOUND, "end": 6}).status == 400
    assert nsqd.broker.topics["t"].channels == {}


def test_a_document_is_bounded(nsqd: Nsqd) -> None:
    answer = restore(nsqd, json.dumps(SOUND).encode() + b" " * LONGEST)
    assert (answer.status, json.loads(answer.body)["message"]) == (413, "BODY_TOO_BIG")


def long_document() -> dict[str, Any]:
    """Return a document of as many entries as it may have, which ends beyond the log."""
    few = MOST // 4
    return {
        **SOUND,
        "next": 2 * few,
        "end": 6 * few,
        "requeued": [[number, 1] for number in range(few)],
        "deferred": [[few + number, 1, 1_800_000_000_000] for number in range(few)],
        "finished": [[2 * few + 2 * number, 2 * few + 2 * number + 1] for number in range(2 * few)],
    }


def test_a_long_document_is_checked_while_others_have_their_turns(nsqd: Nsqd, monkeypatch: pytest.MonkeyPatch) -> None:
    counter = LineCounter()
    monkeypatch.setattr(slices, "SLICE", 0.0)
    monkeypatch.setattr(asgi, "run", counter.run)
    answer = restore(nsqd, long_document())
    assert (answer.status, json.loads(answer.body)["message"]) == (400, "BEYOND_END")
    assert counter.longest < 4 * MOST  # a few lines for each entry


@pytest.mark.parametrize("document", [
    {**SOUND, "requeued": [[0, 1]] * 150_000},
    {**SOUND, "unknown": [[]] * 300_000},
    {**SOUND, "unknown": [0] * 300_000},
])  # fmt: skip
def test_a_document_that_is_far_too_long_is_refused_before_it_is_decoded(
    nsqd: Nsqd, document: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = json.dumps(document, separators=(",", ":")).encode()
    counter = LineCounter()
    monkeypatch.setattr(asgi, "run", counter.run)
    answer = nsqd.post(f"/channel/restore?{CHANNEL}", body)
    assert answer.status == 400
    assert f"more than {MOST} ranges and exceptions" in answer.body.decode()
    assert counter.longest < MOST


def test_a_state_of_too_many_pieces_is_refused(nsqd: Nsqd) -> None:
    channel = nsqd.broker.topics["t"].channels["c"]
    for sequence in range(MOST + 1):
        channel.ledger.retries.add(sequence, 1)
    answer = nsqd.get(f"/channel/state?{CHANNEL}")
    assert (answer.status, json.loads(answer.body)["message"]) == (413, "TOO_MANY")


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.floats() | st.text(), st.lists), st.data())
def test_whatever_a_member_is_a_document_is_parsed_or_refused(value: object, data: st.DataObject) -> None:
    document = {**SOUND, data.draw(st.sampled_from(sorted(SOUND))): value}
    try:
        *_, last = parse_document(json.dumps(document).encode())
    except BadDocument:
        return
    assert last is not None
    backlog = last.backlog
    assert 0 <= backlog.next <= backlog.end
    assert 0 <= backlog.count <= backlog.end


@pytest.mark.parametrize("action", ["state", "restore", "redeliver"])
@pytest.mark.parametrize(("query", "status", "answer"), [
    ("", 400, "MISSING_ARG_TOPIC"),
    ("topic=!&channel=c", 400, "INVALID_ARG_TOPIC"),
    ("topic=t", 400, "MISSING_ARG_CHANNEL"),
    ("topic=unknown&channel=c", 404, "TOPIC_NOT_FOUND"),
])  # fmt: skip
def test_names_are_checked(nsqd: Nsqd, action: str, query: str, status: int, answer: str) -> None:
    got = (nsqd.get if action == "state" else nsqd.post)(f"/channel/{action}?{query}")
    assert (got.status, got.body) == (status, code(answer))


@pytest.mark.parametrize("action", ["state", "restore", "redeliver"])
def test_what_is_ephemeral_has_nothing_to_give_back(nsqd: Nsqd, action: str) -> None:
    for query, message in (
        ("topic=t%23ephemeral&channel=c", "EPHEMERAL_TOPIC"),
        ("topic=t&channel=c%23ephemeral", "EPHEMERAL_CHANNEL"),
    ):
        got = (nsqd.get if action == "state" else nsqd.post)(f"/channel/{action}?{query}")
        assert (got.status, json.loads(got.body)["message"]) == (400, message)


@pytest.mark.parametrize("action", ["state", "redeliver"])
def test_unknown_channel(nsqd: Nsqd, action: str) -> None:
    got = (nsqd.get if action == "state" else nsqd.post)(f"/channel/{action}?topic=t&channel=unknown&sequence=1")
    assert (got.status, got.body) == (404, code("CHANNEL_NOT_FOUND"))


@pytest.mark.parametrize(("query", "answer"), [
    ("from=1&to=3", b'{"redelivered":2,"waiting":0,"gone":0}'),
    ("from=1&to=1", b'{"redelivered":0,"waiting":0,"gone":0}'),
    ("sequence=1&sequence=4&sequence=1", b'{"redelivered":2,"waiting":0,"gone":0}'),
])  # fmt: skip
def test_finished_messages_are_redelivered(nsqd: Nsqd, query: str, answer: bytes) -> None:
    nsqd.post(f"/channel/empty?{CHANNEL}")
    synced = nsqd.turn.synced
    assert nsqd.post(f"/channel/redeliver?{CHANNEL}&{query}").body == answer
    assert nsqd.turn.synced == synced + 1


@pytest.mark.parametrize(("query", "message"), [
    ("", "MISSING_ARG_FROM"),
    ("from=1", "MISSING_ARG_TO"),
    ("to=1", "MISSING_ARG_FROM"),
    ("from=2&to=1", "INVALID_ARG_TO"),
    ("from=-1&to=1", "INVALID_ARG_FROM"),
    ("from=earliest&to=1", "INVALID_ARG_FROM"),
    ("from=1&to=9999999999999999999", "INVALID_ARG_TO"),
    ("sequence=", "INVALID_ARG_SEQUENCE"),
    ("sequence=1&sequence=x", "INVALID_ARG_SEQUENCE"),
    ("sequence=1&from=1&to=2", "INVALID_ARG_SEQUENCE"),
    (f"from=0&to={MOST + 1}", "TOO_MANY"),
    ("from=0&to=6", "BEYOND_END"),
    ("sequence=5", "BEYOND_END"),
])  # fmt: skip
def test_redelivery_of_what_makes_no_sense_changes_nothing(nsqd: Nsqd, query: str, message: str) -> None:
    nsqd.post(f"/channel/empty?{CHANNEL}")
    answer = nsqd.post(f"/channel/redeliver?{CHANNEL}&{query}")
    assert (answer.status, json.loads(answer.body)["message"]) == (400, message)
    assert nsqd.broker.topics["t"].channels["c"].depth == 0


def test_redelivery_from_another_log_is_refused(nsqd: Nsqd) -> None:
    answer = nsqd.post(f"/channel/redeliver?{CHANNEL}&sequence=1&log=x")
    assert (answer.status, json.loads(answer.body)["message"]) == (409, "ANOTHER_LOG")


def test_the_changes_tell_of_each_message_that_was_redelivered(nsqd: Nsqd) -> None:
    before = state(nsqd)
    nsqd.post(f"/channel/redeliver?{CHANNEL}&sequence=1&sequence=4")
    restore(nsqd, before)
    changes = json.loads(nsqd.get("/changes").body)["changes"]
    assert [(it["what"], it["detail"]) for it in changes[-2:]] == [
        ("redeliver", "sequence=1 sequence=4"),
        ("restore_channel", ""),
    ]
