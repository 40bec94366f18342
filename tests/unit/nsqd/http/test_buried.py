"""The endpoints about buried messages: lists, kicks, discards, jobs, and what is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest

from nsqd.broker.buried import Note
from nsqd.broker.channel import Channel
from tests.unit.nsqd.http.conftest import Nsqd, code

CHANNEL = "topic=t&channel=c"


@pytest.fixture
def nsqd() -> Nsqd:
    """Return an nsqd on which a, b and c are buried, and d waits."""
    nsqd = Nsqd()
    nsqd.post("/topic/create?topic=t")
    nsqd.post(f"/channel/create?{CHANNEL}")
    nsqd.post("/mpub?topic=t", b"a\nb\n\xff\nd")
    for sequence, reason in enumerate(("bad", "5 attempts, the last one timed out", "bad")):
        bury(nsqd, sequence, reason)
    return nsqd


def channel(nsqd: Nsqd) -> Channel:
    return nsqd.broker.topics["t"].channels["c"]


def bury(nsqd: Nsqd, sequence: int, reason: str) -> None:
    found = channel(nsqd)
    batch = found.topic.log.batch_at(sequence)
    assert batch is not None
    found.cursor = max(found.cursor, sequence + 1)
    found._bury([(sequence, batch.base_id + sequence, 5)], Note(reason, "worker-1"))


def listed(nsqd: Nsqd, more: str = "") -> list[dict[str, Any]]:
    answer = nsqd.get(f"/channel/buried?{CHANNEL}{more}")
    assert answer.status == 200
    return [json.loads(line) for line in answer.body.splitlines()]


def post(nsqd: Nsqd, verb: str, more: str = "") -> Any:
    answer = nsqd.post(f"/channel/{verb}?{CHANNEL}{more}")
    assert answer.status == 200, answer.body
    return json.loads(answer.body)


def depth(nsqd: Nsqd) -> int:
    return channel(nsqd).depth


def test_each_buried_message_is_a_line_with_all_that_is_known(nsqd: Nsqd) -> None:
    first, second, third = listed(nsqd)
    batch = channel(nsqd).topic.log.batch_at(0)
    assert batch is not None
    assert first == {
        "sequence": 0,
        "id": f"{batch.base_id:016x}",
        "attempts": 5,
        "buried_at": nsqd.broker.timestamp // 1_000_000 * 1_000_000,
        "reason": "bad",
        "client": "worker-1",
        "timestamp": batch.timestamp,
        "body": "a",
    }
    assert second["body"] == "b"
    assert third["body_base64"] == "/w=="


def test_a_list_is_limited_goes_on_behind_a_place_and_may_be_about_one_reason(nsqd: Nsqd) -> None:
    assert [it["sequence"] for it in listed(nsqd, "&limit=2")] == [0, 1]
    assert [it["sequence"] for it in listed(nsqd, "&after=0")] == [1, 2]
    assert [it["sequence"] for it in listed(nsqd, "&reason=timed%20out")] == [1]
    assert "body" not in listed(nsqd, "&bodies=false")[0]


def test_a_body_that_is_gone_is_told_of(nsqd: Nsqd, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(channel(nsqd).topic.log), "next_readable", lambda self, sequence: sequence + 1)
    assert listed(nsqd)[0]["unread"] == "the log no longer has it"


def test_the_summary_counts_reasons(nsqd: Nsqd) -> None:
    summary = json.loads(nsqd.get(f"/channel/buried?{CHANNEL}&summary=true").body)
    assert summary == {
        "count": 3,
        "reasons": [
            {"reason": "bad", "client": "worker-1", "count": 2},
            {"reason": "5 attempts, the last one timed out", "client": "worker-1", "count": 1},
        ],
        "other_reasons": 0,
        "job": None,
        "paused_why": "",
    }


def test_all_are_kicked_and_the_answer_is_durable(nsqd: Nsqd) -> None:
    before = nsqd.turn.synced
    assert post(nsqd, "kick") == {"kicked": 3, "job": None}
    assert nsqd.turn.synced == before + 1
    assert depth(nsqd) == 4
    assert listed(nsqd) == []


def test_named_messages_are_kicked_alone(nsqd: Nsqd) -> None:
    second = listed(nsqd)[1]["id"]
    assert post(nsqd, "kick", f"&id={second}&sequence=2&sequence=77") == {"kicked": 2, "job": None}
    assert [it["sequence"] for it in listed(nsqd)] == [0]


def test_those_of_a_reason_are_discarded(nsqd: Nsqd) -> None:
    assert post(nsqd, "discard", "&reason=bad&limit=1") == {"discarded": 1, "job": None}
    assert [it["sequence"] for it in listed(nsqd)] == [1, 2]
    assert depth(nsqd) == 1


def test_those_that_were_buried_before_a_time_are_kicked(nsqd: Nsqd) -> None:
    assert post(nsqd, "kick", "&before=2020-01-01T00:00:00Z") == {"kicked": 0, "job": None}
    assert post(nsqd, "kick", "&before=2999-01-01T00:00:00Z") == {"kicked": 3, "job": None}


def test_a_rate_makes_a_job_which_can_be_watched_and_stopped(nsqd: Nsqd) -> None:
    job = post(nsqd, "kick", "&rate=2")["job"]
    assert (job["verb"], job["rate"], job["done"], job["ended_at"]) == ("kick", 2, 0, None)
    refused = nsqd.post(f"/channel/discard?{CHANNEL}")
    assert (refused.status, json.loads(refused.body)["message"]) == (409, "JOB_UNDER_WAY")
    assert json.loads(nsqd.get(f"/channel/jobs?{CHANNEL}").body) == {"jobs": [job]}
    stopped = post(nsqd, "jobs/stop")["job"]
    assert stopped["ended_at"] is not None
    assert json.loads(nsqd.get(f"/channel/jobs?{CHANNEL}").body) == {"jobs": [stopped]}
    assert post(nsqd, "jobs/stop") == {"job": None}


def test_what_has_no_sense_is_refused(nsqd: Nsqd) -> None:
    for more, refusal in {
        "&id=xyz": "INVALID_ARG_ID",
        "&id=00000000000000zz": "INVALID_ARG_ID",
        "&sequence=-1": "INVALID_ARG_SEQUENCE",
        "&rate=fast": "INVALID_ARG_RATE",
        "&rate=-1": "INVALID_ARG_RATE",
        "&rate=nan": "INVALID_ARG_RATE",
        "&before=5": "INVALID_ARG_BEFORE",
        "&limit=x": "INVALID_ARG_LIMIT",
    }.items():
        answer = nsqd.post(f"/channel/kick?{CHANNEL}{more}")
        assert (answer.status, answer.body) == (400, code(refusal)), more
    answer = nsqd.post(f"/channel/kick?{CHANNEL}&sequence=1&reason=bad")
    assert answer.status == 400
    for verb, path in (("GET", "buried"), ("POST", "kick"), ("POST", "discard"), ("GET", "jobs")):
        ask = nsqd.get if verb == "GET" else nsqd.post
        assert ask(f"/channel/{path}?topic=t&channel=unknown").body == code("CHANNEL_NOT_FOUND")
        assert ask(f"/channel/{path}?topic=t%23ephemeral&channel=c").status == 400
    assert len(listed(nsqd)) == 3


def test_stats_tell_of_burials_only_where_there_are_some(nsqd: Nsqd) -> None:
    described = json.loads(nsqd.get("/stats?format=json").body)["topics"][0]["channels"][0]
    assert described["buried_count"] == 3
    channel(nsqd)._hold("more than 2 messages are buried (max_buried)")
    described = json.loads(nsqd.get("/stats?format=json").body)["topics"][0]["channels"][0]
    assert described["paused_why"] == "more than 2 messages are buried (max_buried)"
    post(nsqd, "kick")
    nsqd.post(f"/channel/unpause?{CHANNEL}")
    described = json.loads(nsqd.get("/stats?format=json").body)["topics"][0]["channels"][0]
    assert not {"buried_count", "paused_why"} & described.keys()
